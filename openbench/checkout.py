"""The git checkout that the package runs from: its commit and uncommitted changes."""

import importlib
import shlex
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import openbench
from openbench.errors import ConfigError
from openbench.source import OURS, closure, foreign_sources, loaded_sha256, modules_of

# Folders that can change a number. Configs and manifests count for `dirty` only, as run ids and digests cover them.
_WATCHED = ("openbench", "configs", "data_manifests")
_PATIENCE = 60  # seconds


def uncommitted(*modules: str, parts: tuple[object, ...] = ()) -> dict[str, str]:
    """Return {file: SHA-256} of the files with uncommitted changes among some modules and all that they import.

    Args:
        *modules: of openbench, e.g. `openbench.engine.run`.
        parts: objects; the modules of their classes are added.

    Returns:
        Paths from the checkout's root; empty without changes or without a checkout.

    Raises:
        ConfigError: git cannot say what has changed.
    """
    changed = _changed()
    if not changed:
        return {}
    named = {name: Path(str(importlib.import_module(name).__file__)).resolve() for name in modules}
    imported = _imported(tuple(sorted({**named, **modules_of(*parts)}.items())))
    used = {name: file for name, file in sorted(changed.items()) if file in imported and file.is_file()}
    return {name: loaded_sha256(_module(name), file) for name, file in used.items()}


def code_digests(module: str, *parts: object, data: tuple[object, ...] = ()) -> dict[str, dict[str, str]]:
    """Return {"sources": …, "uncommitted": …}, digests of code besides openbench's committed one; without empty ones.

    Args:
        module: of openbench, which does the work.
        *parts: objects whose classes may be foreign.
        data: further objects whose modules may have uncommitted changes.
    """
    digests = {"sources": foreign_sources(*parts), "uncommitted": uncommitted(module, parts=(*parts, *data))}
    return {kind: files for kind, files in digests.items() if files}


@cache
def _imported(starts: tuple[tuple[str, Path], ...]) -> frozenset[Path]:
    return frozenset(closure(dict(starts), ours=True).values())


def made_now() -> str:
    """Return the origin of a cached result: version, commit and time."""
    changed = " with changes" if dirty() else ""
    utc = datetime.now(UTC).isoformat(timespec="seconds")
    return f"openbench {openbench.__version__}, commit {(commit() or 'unknown')[:12]}{changed}, {utc}"


@cache
def commit() -> str | None:
    """Return the commit that is checked out; None for an installed wheel, or where git does not say."""
    try:
        return _git("rev-parse", "HEAD") or None
    except ConfigError:
        return None


@cache
def dirty() -> bool | None:
    """Return whether code, configs or manifests differ from the commit; None where that is not known."""
    try:
        changes = _git("status", "--porcelain", "--", *_WATCHED)
    except ConfigError:
        return None
    return None if changes is None else bool(changes)


@cache
def _changed() -> Mapping[str, Path]:
    """{path from the root: file} of modules of openbench that were changed since the commit, or are not part of it."""
    changes = _git("status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", OURS)
    names = [entry[3:] for entry in (changes or "").split("\0") if entry[:2].strip()]
    return {name: _root() / name for name in names if name.endswith(".py")}


def _root() -> Path:
    return Path(openbench.__file__).resolve().parent.parent


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _git(*args: str) -> str | None:
    """What git says of the checkout; None where there is none.

    Raises:
        ConfigError: git is not there, or refuses to answer.
    """
    if not (_root() / ".git").exists():
        return None
    command = ["git", "-C", str(_root()), *args]
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=_PATIENCE, check=True
        ).stdout.strip("\n")
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).splitlines()[0]
        raise ConfigError(
            f"git cannot say what has changed in openbench's checkout '{_root()}' ({reason}) — install git, or let it "
            f"read the folder: git config --global --add safe.directory {shlex.quote(str(_root()))}"
        ) from error
