"""Getting data sets: what the sources file says about them, download, and unpacking that never leaves half a folder."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from openbench import paths
from openbench.data.download.fetch import Expected, Patience, discard, fetch, hash_of, part_of
from openbench.errors import DataError
from openbench.say import Say
from openbench.storage.yaml_file import read_yaml

DOWNLOADS = ".downloads"
_FILE = "sources.yaml"
_FORMATS = ("tar", "zip")
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # a password
    ValueError,  # a name with a NUL
)


@dataclass(frozen=True)
class RemoteFile:
    """One file to download, and what it becomes below the data root.

    Args:
        expected: addresses, size and hashes.
        gives: what exists afterwards, relative to the data root: the file itself, or a folder from the archive.
        unpack: `tar` (compressed or not) or `zip`; None = the file is kept as it is.
        member: which part of the archive becomes `gives`; `.` = all of it.
        holds: MD5 by path below `gives`, where published.
    """

    expected: Expected
    gives: str
    unpack: str | None = None
    member: str = "."
    holds: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name under which it is downloaded."""
        return self.expected.urls[0].partition("?")[0].rpartition("/")[2]

    def problem(self, root: Path) -> str:
        """Return what is wrong with what stands at `gives` below a root, as far as hashes are published."""
        target = root / self.gives
        if self.unpack is None:
            return self.expected.wrong(target)
        for name, published in self.holds.items():
            path = target / name
            if not path.is_file():
                return f"'{name}' is missing"
            if hash_of(path, "md5") != published:
                return f"'{name}' is not the published file"
        return "" if target.is_dir() and any(target.iterdir()) else "it is empty"


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Args:
        name: as in configs/dataset.
        title: what it is.
        licence: as its authors state it.
        page: where it is described.
        files: what can be downloaded; empty if nothing may or can be.
        by_hand: what a person has to do, and where the result goes.
        note: what a person should know about the download.
    """

    name: str
    title: str
    licence: str
    page: str
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    note: str = ""

    @property
    def size(self) -> int | None:
        """Bytes to download, or None if not all of it is known."""
        sizes = [file.expected.size for file in self.files]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)

    def missing(self, roots: tuple[Path, ...]) -> list[RemoteFile]:
        """The files that are in none of the roots."""
        return [file for file in self.files if not any((root / file.gives).exists() for root in roots)]


@lru_cache(maxsize=1)
def data_sources() -> Mapping[str, DataSource]:
    """Return the sources in `data_manifests/sources.yaml` by data set.

    Raises:
        ConfigError: a file that is not plain, valid YAML.
        DataError: an entry with an unknown or missing key.
    """
    path = paths.manifest_dir() / _FILE
    entries: dict[str, dict[str, Any]] = read_yaml(path)
    return {name: parse_source(name, entry) for name, entry in entries.items()}


def parse_source(name: str, entry: Mapping[str, Any], file_name: str = _FILE) -> DataSource:
    """Return the source that an entry of the sources file describes.

    Args:
        name: of the entry.
        entry: its keys.
        file_name: where it stands, for messages.

    Raises:
        DataError: an unknown or missing key, or neither files nor instructions.
    """
    try:
        files = tuple(_remote(f"{file_name}: '{name}'", file) for file in entry.get("files", ()))
        source = DataSource(name, **{**entry, "files": files})
    except TypeError as error:
        raise DataError(
            f"{file_name}: '{name}' — {error} — allowed: title, licence, page, files, by_hand, note"
        ) from error
    if not source.files and not source.by_hand:
        raise DataError(f"{file_name}: '{name}' has neither files nor by_hand — one of them says how to get it")
    return source


def _remote(where: str, entry: Mapping[str, Any]) -> RemoteFile:
    rest = dict(entry)
    urls = rest.pop("url")
    facts = {key: rest.pop(key) for key in ("size", "md5", "sha256") if key in rest}
    file = RemoteFile(Expected((urls,) if isinstance(urls, str) else tuple(urls), **facts), **rest)
    if file.unpack not in (None, *_FORMATS):
        raise DataError(f"{where} — unpack {file.unpack!r} — allowed: {', '.join(_FORMATS)}")
    return file


def prepare_file(file: RemoteFile, root: Path, say: Say, patience: Patience | None = None) -> str:
    """Download and unpack one file below a data root, unless it is there; return what was done.

    A folder or file gets its name in one step, when it is complete, so everything that this function puts below the
    root is whole. Of two processes, the second waits and finds the work done.

    Raises:
        DataError: something else stands there already, the download fails, or the archive is not what it should be.
    """
    store = root / DOWNLOADS
    store.mkdir(parents=True, exist_ok=True)
    target = root / file.gives
    archive = store / file.name
    with FileLock(store / f"{file.name}.lock"):
        if target.exists():
            problem = file.problem(root)
            if problem:
                raise DataError(
                    f"'{target}' is there, but {problem} — nothing was changed; move it away and run this again"
                )
            _clear(archive)
            return f"{target}: is there"
        _check_space(file, root)
        if not archive.exists() or file.expected.wrong(archive):
            archive.unlink(missing_ok=True)
            say(f"download {file.expected.urls[0]}")
            fetch(file.expected, archive, say, patience)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.unpack is None:
            archive.replace(target)
            _clear(archive)
            return f"{target}: downloaded"
        say(f"unpack {archive.name}")
        _unpack(file, archive, target)
        _clear(archive)
        return f"{target}: downloaded and unpacked"


def _clear(archive: Path) -> None:
    """Delete an archive that is no longer needed, and what a process that was killed left of it."""
    archive.unlink(missing_ok=True)
    discard(part_of(archive))
    shutil.rmtree(_workplace(archive), ignore_errors=True)


def _workplace(archive: Path) -> Path:
    return archive.with_name(archive.name + ".unpacking")


def _unpack(file: RemoteFile, archive: Path, target: Path) -> None:
    """Extract into a folder that nothing reads, check, then rename."""
    workplace = _workplace(archive)
    # A process that was killed may have left one.
    shutil.rmtree(workplace, ignore_errors=True)
    workplace.mkdir()
    try:
        if file.unpack == "zip":
            with zipfile.ZipFile(archive) as pack:
                _Room(archive, workplace).take(sum(member.file_size for member in pack.infolist()))
                pack.extractall(workplace)
        else:
            with tarfile.open(archive) as pack:
                pack.extractall(workplace, filter=_Room(archive, workplace).admitted)
        found = workplace / file.member
        if not found.is_dir():
            inside = sorted(path.name for path in workplace.iterdir())[:5]
            raise DataError(f"archive '{archive.name}' holds {inside} — '{file.member}' expected — {archive} was kept")
        wrong = sorted(name for name, published in file.holds.items() if _differs(found / name, published))
        if wrong:
            raise DataError(f"archive '{archive.name}': {wrong} are not the published files — delete {archive}")
        found.replace(target)
    except _DAMAGED as error:
        raise DataError(f"archive '{archive}' cannot be unpacked — {error} — delete it and run this again") from error
    except OSError as error:
        raise DataError(
            f"archive '{archive}' cannot be unpacked below '{workplace.parent}' — {error} — make room there or choose "
            "another --root, and run this again; the archive was kept"
        ) from error
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


class _Room:
    """The free space of a disk: an archive that needs more is refused.

    Args:
        archive: for messages.
        folder: where it is unpacked.
    """

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive, self._free = archive, shutil.disk_usage(folder).free
        self._taken = 0

    def take(self, size: int) -> None:
        """Raise DataError if `size` bytes more do not fit."""
        self._taken += size
        if self._taken > self._free:
            raise DataError(
                f"archive '{self._archive}' unpacks to {self._taken / 1e9:,.1f} GB or more — "
                f"{self._free / 1e9:,.1f} GB are free — delete it if it is not the published one, or make room"
            )

    def admitted(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        """The member, if it is a file, a folder or a link within the folder, and there is room for it."""
        self.take(member.size)
        return tarfile.data_filter(member, folder)


def _differs(path: Path, published: str) -> bool:
    return not path.is_file() or hash_of(path, "md5") != published


def _check_space(file: RemoteFile, root: Path) -> None:
    if file.expected.size is None:
        return
    # The archive and what comes out of it; images do not compress further.
    needed = file.expected.size * (1 if file.unpack is None else 2)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise DataError(
            f"{file.name} needs about {needed / 1e9:.1f} GB — {free / 1e9:.1f} GB are free at '{root}' — make room, or "
            "set OPENBENCH_DATA to another disk"
        )
