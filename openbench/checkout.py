"""The checkout that the package runs from: its commit, and files that differ from it."""

import shlex
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import openbench
from openbench.errors import ConfigError
from openbench.source import OURS, closure, file_of, foreign_code, loaded_sha256, own_modules

# What can change a number. Configs and manifests are only watched for `dirty`: run ids and digests hold their content.
_WATCHED = ("openbench", "configs", "data_manifests")
_PATIENCE = 60  # seconds


def uncommitted(*modules: str, parts: tuple[object, ...] = ()) -> dict[str, str]:
    """Return {file: SHA-256} of the files with uncommitted changes among some modules and all that they import.

    Args:
        *modules: of openbench, e.g. `openbench.engine.run`.
        parts: objects; the modules of their classes are added.

    Returns:
        Paths from the checkout's root. Empty where nothing has changed, or where there is no checkout.

    Raises:
        ConfigError: git cannot say what has changed.
    """
    changed = _changed()
    if not changed:
        return {}
    starts = {name: _file(name) for name in (*modules, *own_modules(*parts))}
    starts |= {code.__module__: file for part in parts for code in foreign_code(part) if (file := file_of(code))}
    made_of = _made_of(tuple(sorted(starts.items())))
    used = {name: file for name, file in sorted(changed.items()) if file in made_of and file.is_file()}
    return {name: loaded_sha256(_module(name), file) for name, file in used.items()}


@cache
def _made_of(starts: tuple[tuple[str, Path], ...]) -> frozenset[Path]:
    return frozenset(closure(dict(starts), ours=True).values())


def made_now() -> str:
    """Return the note on something that is kept for reuse: version, commit and time."""
    changed = " with changes" if dirty() else ""
    utc = datetime.now(UTC).isoformat(timespec="seconds")
    return f"openbench {openbench.__version__}, commit {(commit() or 'unknown')[:12]}{changed}, {utc}"


@cache
def commit() -> str | None:
    """Return the commit that is checked out; None for an installed wheel."""
    return _git("rev-parse", "HEAD") or None if _is_checkout() else None


@cache
def dirty() -> bool | None:
    """Return whether code, configs or manifests differ from the commit; None where that is not known."""
    found = _git("status", "--porcelain", "--", *_WATCHED) if _is_checkout() else None
    return None if found is None else bool(found)


@cache
def _changed() -> Mapping[str, Path]:
    """{path from the root: file} of modules of openbench that were changed since the commit, or are not part of it."""
    if not _is_checkout():
        return {}
    try:
        found = _told("status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", OURS)
    except _UnansweredError as error:
        raise ConfigError(
            f"git cannot say what has changed in openbench's checkout '{_root()}' — {error} — results of changed code "
            "would be taken for those of the commit — install git, or let it read the folder: "
            f"git config --global --add safe.directory {shlex.quote(str(_root()))}"
        ) from error
    names = [entry[3:] for entry in found.split("\0") if entry[:2].strip()]
    return {name: _root() / name for name in names if name.endswith(".py")}


def _root() -> Path:
    return Path(openbench.__file__).resolve().parent.parent


def _file(module: str) -> Path:
    below = _root().joinpath(*module.split("."))
    return below / "__init__.py" if below.is_dir() else below.with_suffix(".py")


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_checkout() -> bool:
    return (_root() / ".git").exists()


def _git(*args: str) -> str | None:
    try:
        return _told(*args)
    except _UnansweredError:
        return None


def _told(*args: str) -> str:
    """What git says."""
    command = ["git", "-C", str(_root()), *args]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_PATIENCE, check=True)
    except subprocess.CalledProcessError as error:
        raise _UnansweredError(next(iter(error.stderr.splitlines()), f"it ended with {error.returncode}")) from error
    except subprocess.TimeoutExpired as error:
        raise _UnansweredError(f"no answer in {_PATIENCE} s") from error
    except OSError as error:
        raise _UnansweredError(f"git: {error.strerror}") from error
    return done.stdout.strip("\n")


class _UnansweredError(Exception):
    """Git is not there, or refuses to answer."""
