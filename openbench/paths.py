"""Folders: configs, manifests, data, cache and results."""

import os
from pathlib import Path

from openbench.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent


def config_dir() -> Path:
    """Return the folder of Hydra groups: the wheel's copy beside the package, else the checkout's `configs`."""
    return _shipped("configs")


def manifest_dir() -> Path:
    """Return the folder of manifests: the wheel's copy beside the package, else the checkout's `data_manifests`."""
    return _shipped("data_manifests")


def reference_dir() -> Path:
    """Return the folder of published figures: the wheel's copy beside the package, else the checkout's."""
    packaged = _PACKAGE / "reference"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "results" / "reference"


def data_roots() -> tuple[Path, ...]:
    """Return the folders searched for data sets, in order: `OPENBENCH_DATA` (several joined by `os.pathsep`), `./data`.

    Folders that do not exist are included, as error messages name every path that was searched.
    """
    named = [Path(part).expanduser() for part in os.environ.get("OPENBENCH_DATA", "").split(os.pathsep) if part]
    default = Path("data")
    known = {folder.absolute() for folder in named}
    return (*named,) if default.absolute() in known else (*named, default)


def places(file: str) -> list[Path]:
    """Return where a file that a config names is searched, in order: the working folder, then the data roots."""
    path = Path(file).expanduser()
    return [path] if path.is_absolute() else [path, *(root / path for root in data_roots())]


def cache_dir() -> Path:
    """Return the folder of features, scores and checkpoints: `OPENBENCH_CACHE`, else `~/.cache/openbench`."""
    named = os.environ.get("OPENBENCH_CACHE")
    if named:
        return writable(Path(named).expanduser(), "OPENBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return writable((Path(base) if base else Path.home() / ".cache") / "openbench", "the cache")


def results_dir() -> Path:
    """Return the folder of records and tables: `OPENBENCH_RESULTS`, else `./results`."""
    # Set but empty is unset, as for the other two: `Path("")` would be the working directory.
    return writable(Path(os.environ.get("OPENBENCH_RESULTS") or "results").expanduser(), "OPENBENCH_RESULTS")


def writable(folder: Path, key: str) -> Path:
    """Return a folder to write to; it need not exist.

    Args:
        folder: the folder.
        key: where it was named, for the message.

    Raises:
        ConfigError: it, or a part of the path to it, is a file.
    """
    present = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), None)
    if present is not None and not os.path.isdir(present):
        raise ConfigError(f"{key}: '{folder}' cannot be made, as '{present}' is not a folder — name another folder")
    return folder


def _shipped(name: str) -> Path:
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"folder '{name}' not found in {_PACKAGE} — pip install --force-reinstall openbench-ood")
