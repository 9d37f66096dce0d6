"""Which of Hydra's flags and settings openbench accepts: none that runs code or writes outside the cache."""

import argparse
import re
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from openbench.errors import ConfigError
from openbench.public import TARGET

# Flag → what to do instead.
_REFUSED_FLAGS = {
    "experimental_rerun": "it would run a pickle, which can hold any program — `python -m openbench verify RUN_ID` "
    "computes a record again",
    "config_path": "the configs are openbench's — add your own by --config-dir",
    "config_name": "the command names its config — choose group files by GROUP=NAME, your own by --config-dir",
    "package": "--cfg prints whole configs — leave it out",
    "shell_completion": "`openbench completion` prints the script for the tab key",
}
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
LAUNCHERS = ("basic", "joblib", "submitit_slurm", "submitit_local", "ray")
# Below hydra.launcher: where launchers write, and what they would load.
NOT_OF_LAUNCHERS = (TARGET, "submitit_folder", "temp_folder")
_SUBFOLDER = re.compile(r"(?:[\w-]|\$\{seed\})(?:[\w.-]|\$\{seed\}|/(?![./]))*")
_ALLOWED = (
    f"hydra/launcher={'|'.join(LAUNCHERS)}, hydra.launcher.KEY=VALUE, hydra.sweep.subdir=NAME, "
    "hydra.sweeper.max_batch_size=N"
)


def check_flags(asked: argparse.Namespace) -> None:
    """Refuse flags of Hydra that make no sense here.

    Args:
        asked: what Hydra's parser made of the arguments; it also takes abbreviations.

    Raises:
        ConfigError: a flag that is not taken.
    """
    for name, instead in _REFUSED_FLAGS.items():
        if getattr(asked, name, None):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is a flag of Hydra that openbench does not take — {instead}")


def check_overrides(overrides: Sequence[Override]) -> None:
    """Refuse overrides without a key, and those of Hydra's own config but for launchers' and sweeps' harmless ones.

    Hydra builds its callbacks, sweepers, launchers and loggers from `_target_`s of any kind.

    Args:
        overrides: parsed.

    Raises:
        ConfigError: an override that is not taken.
    """
    for override in overrides:
        key, typed = override.key_or_group, override.input_line
        if not key:
            raise ConfigError(f"override '{typed}' has no key — write key=value, e.g. seed=1")
        if override.package is not None and re.match(r"(_global_\.)?hydra\b", override.package):
            raise ConfigError(
                f"nothing can be put into Hydra's own config — found {typed} — leave out what follows '@'"
            )
        if not re.match(r"hydra(?![\w-])", key):
            continue
        if key in _FOLDERS:
            raise ConfigError(
                f"{key} cannot be set — found {typed} — sweeps lie below the cache; move it with runtime.cache=FOLDER"
            )
        if not _harmless(key, override):
            raise ConfigError(
                f"'{key}' of Hydra cannot be set — found {typed} — allowed: {_ALLOWED}; configs of your "
                "own: --config-dir DIR"
            )


def _harmless(key: str, override: Override) -> bool:
    if key == "hydra/launcher":
        return str(override.value()) in LAUNCHERS
    if key.startswith("hydra.launcher."):
        return key.split(".")[2] not in NOT_OF_LAUNCHERS and TARGET not in (override.input_line or "")
    if key == "hydra.sweep.subdir":
        return _SUBFOLDER.fullmatch(str(override.value())) is not None
    if key == "hydra.job.chdir":
        return override.value() is False
    return key == "hydra.sweeper.max_batch_size"
