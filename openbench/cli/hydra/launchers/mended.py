"""Hydra's launchers with what they lack, each from the moment when Hydra makes it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from openbench.cli.hydra.launchers import joblib_processes, ray_tasks, submitit_jobs

# Part of the module of a launcher → what holds from then on until the sweep has ended.
_MENDED = {
    "hydra_joblib_launcher": joblib_processes.quiet,
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
            return launcher

        held.callback(setattr, Plugins, "instantiate_launcher", make)
        Plugins.instantiate_launcher = making  # type: ignore
        yield
