"""Tasks of Ray, here or on a cluster: one whose process or node is lost too often has failed, and the others go on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from openbench.cli.hydra.killed import fail_unless_ended
from openbench.cli.hydra.outcome import Outcome, due
from openbench.cli.process import FAILED, OK


@contextmanager
def patient(folder: Path) -> Iterator[None]:
    """Have a cluster joined within the block, and a task that ends without a result count as failed.

    Ray gives a task whose process is killed to another one three times. Then the launcher raises, which ends the tasks
    that still run; it has no hook for this: hence what it calls is replaced.

    Args:
        folder: of the sweep.
    """
    from hydra_plugins.hydra_ray_launcher import _core

    core: Any = _core
    ray, send, start = core.ray, core.launch_job_on_ray, core.start_ray
    asked: list[tuple[Any, Outcome]] = []
    ended = JobReturn(_return_value=OK, status=JobStatus.COMPLETED)

    def sending(hydra_context: Any, remote: Any, config: Any, *rest: Any) -> Any:
        if int(config.hydra.job.num) not in due(folder):
            return ended
        task = send(hydra_context, remote, config, *rest)
        asked.append((task, Outcome(int(config.hydra.job.num), tuple(config.hydra.overrides.task), FAILED, "", 0.0)))
        return task

    def or_failed(task: Any) -> Any:
        if task is ended:
            return ended
        try:
            return ray.get(task)
        except ray.exceptions.RayError as error:
            [known] = [outcome for sent, outcome in asked if sent is task]
            words = f"its task ended without a result — {_last_line(str(error))} — the same command tries it again"
            fail_unless_ended(folder, Outcome(known.job, known.overrides, FAILED, words, 0.0))
            return JobReturn(_return_value=FAILED, status=JobStatus.COMPLETED)

    def joining(init: Any) -> None:
        known: Any = OmegaConf.to_container(init, resolve=True)
        environment = known.get("runtime_env") or {}
        # Tasks have the environment of their node, not that of the command: its folders would not be theirs.
        ours = {name: value for name, value in os.environ.items() if name.startswith("OPENBENCH_")}
        known["runtime_env"] = {**environment, "env_vars": {**ours, **environment.get("env_vars", {})}}
        if known.get("address") or os.environ.get("RAY_ADDRESS"):
            known.pop("object_store_memory", None)  # the launcher always sets it, and Ray then joins no cluster
        start(OmegaConf.create(known))

    core.ray, core.launch_job_on_ray, core.start_ray = SimpleNamespace(get=or_failed), sending, joining
    try:
        yield
    finally:
        core.ray, core.launch_job_on_ray, core.start_ray = ray, send, start


def _last_line(text: str) -> str:
    """The last line of what Ray says; it quotes tracebacks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["it left no trace"])[-1]
