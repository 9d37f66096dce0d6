"""Hydra's launchers with what they lack, each from the moment when Hydra makes it."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from openbench import paths
from openbench.cli.hydra.launchers import joblib_processes, ray_tasks, submitit_jobs
from openbench.cli.hydra.launchers.longest_first import longest_first

# Part of the module of a launcher → what holds from then on until the sweep has ended.
_JOBLIB = "hydra_joblib_launcher"
_MENDED = {
    _JOBLIB: joblib_processes.quiet,
    "hydra_ray_launcher": ray_tasks.patient,
    "hydra_submitit_launcher": submitit_jobs.patient,
}


@contextmanager
def mended() -> Iterator[None]:
    """Mend the launcher that Hydra makes within the block; the libraries of the others are not imported for it."""
    make = Plugins.instantiate_launcher
    with ExitStack() as held:

        def making(self: Plugins, *, config: DictConfig, **named: Any) -> Launcher:
            launcher = make(self, config=config, **named)
            for part, mend in _MENDED.items():
                if part in type(launcher).__module__:
                    held.enter_context(mend(Path(str(config.hydra.sweep.dir))))
            if _JOBLIB in type(launcher).__module__:
                results = config.runtime.get("results") if "runtime" in config else None
                held.enter_context(longest_first(Path(results) if results else paths.results_dir(), _say))
            return launcher

        held.callback(setattr, Plugins, "instantiate_launcher", make)
        Plugins.instantiate_launcher = making  # type: ignore
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
