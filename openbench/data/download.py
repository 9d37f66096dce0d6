"""Where data sets and released weights come from, what the weights have seen, and resumable downloads of both."""

import logging
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock

from openbench import __version__, paths
from openbench.config.constraints import Checked, Count
from openbench.core.benchmark import canonical
from openbench.data.manifests import load_classes
from openbench.errors import DataError
from openbench.storage.yaml_file import read_yaml

logger = logging.getLogger(__name__)

DOWNLOADS = ".downloads"
_CHUNK = 1 << 18
_ATTEMPTS = 5  # in a row without a single new byte, per mirror
_GONE = (401, 403, 404, 410)  # answers that stay the same


@dataclass(frozen=True)
class RemoteFile(Checked):
    """One file to download.

    Args:
        url: its address, or those of mirrors, tried in this order.
        gives: path of the file, or of the folder from the archive, below the data root.
        size: in bytes, or None if not published.
        md5: 32 hex digits, or None.
        sha256: 64 hex digits, or None.
        unpack: `tar` (compressed or not) or `zip`; None = it is not an archive.
        member: the part of the archive that becomes `gives`; `.` = all of it.
        holds: MD5 by path below `gives`, where published.
    """

    url: str | Sequence[str]
    gives: str
    size: Count | None = None
    md5: str | None = None
    sha256: str | None = None
    unpack: Literal["tar", "zip"] | None = None
    member: str = "."
    holds: Mapping[str, str] = field(default_factory=dict)

    @property
    def urls(self) -> Sequence[str]:
        """The addresses."""
        return [self.url] if isinstance(self.url, str) else self.url

    @property
    def name(self) -> str:
        """Its name while it is downloaded."""
        return self.urls[0].partition("?")[0].rpartition("/")[2]

    def wrong(self, path: Path) -> str:
        """Return how a file differs from the published one in size or hash; empty if it does not."""
        import pooch

        if self.size is not None and (size := path.stat().st_size) != self.size:
            return f"{size} bytes, {self.size} published"
        for name, published in (("sha256", self.sha256), ("md5", self.md5)):
            if published is not None:
                actual = pooch.file_hash(str(path), name)
                return "" if actual == published else f"{name} {actual}, {published} published"
        return ""

    def problem(self, target: Path) -> str:
        """Return how the file or folder at `gives` differs from the published one; empty if it does not."""
        import pooch

        if self.unpack is None:
            return self.wrong(target)
        for name, published in self.holds.items():
            if not (target / name).is_file():
                return f"'{name}' is missing"
            if pooch.file_hash(str(target / name), "md5") != published:
                return f"'{name}' is not the published file"
        return "" if target.is_dir() and any(target.iterdir()) else f"folder '{target.name}' is empty or missing"


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Args:
        name: as in configs/dataset.
        title: its name in full.
        licence: as its authors state it.
        page: address of its description.
        files: the files to download; empty if none may be.
        by_hand: how a person gets it, and its path below the data root.
        note: a remark on the download.
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
        sizes = [file.size for file in self.files]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


S = TypeVar("S", bound=DataSource)


@lru_cache(maxsize=1)
def data_sources() -> Mapping[str, DataSource]:
    """Return the sources in `data_manifests/sources.yaml` by data set."""
    entries: dict[str, dict[str, Any]] = read_yaml(paths.manifest_dir() / "sources.yaml")
    return {name: parse_source(name, entry, DataSource) for name, entry in entries.items()}


def parse_source(name: str, entry: Mapping[str, Any], kind: type[S]) -> S:
    """Return the source, of some kind, that an entry of a yaml file describes."""
    return kind(name, **{**entry, "files": tuple(RemoteFile(**file) for file in entry.get("files", ()))})


@dataclass(frozen=True, kw_only=True)
class Weights(DataSource):
    """Released weights of a backbone: their origin and licence, and the data that the network was trained on.

    Args:
        images: the images.
        labels: their labels; `none` for self-supervised networks.
        classes: names of the class lists of these labels.
        wordnet: whether the labels are ImageNet-21k's, which include every WordNet id.
        unknown: why it is not known whether a class was seen; empty = it is.
    """

    images: str
    labels: str
    classes: Sequence[str] = ()
    wordnet: bool = False
    unknown: str = ""

    def labelled(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the classes that were among the labels, compared as ID and OOD classes are.

        Args:
            classes: names, of which some may be WordNet ids.
        """
        named = {canonical(name) for part in self.classes for name in load_classes(part)}
        return tuple(name for name in classes if canonical(name) in named or (self.wordnet and _is_wordnet_id(name)))

    def seen(self, classes: Sequence[str]) -> str:
        """Return in words whether the classes of a set were among the labels; the set may name none."""
        if not classes:
            return "the set names no classes"
        count = len(self.labelled(classes))
        if self.unknown and not count:
            return f"not known: {self.unknown}"
        if self.wordnet and not all(map(_is_wordnet_id, classes)):
            return f"{count} or more of {len(classes)}: only WordNet ids can be looked up in ImageNet-21k"
        return f"{count} of {len(classes)}" if count else "none"


@lru_cache(maxsize=1)
def released_weights() -> Mapping[str, Weights]:
    """Return the entries of `data_manifests/weights.yaml` by the backbone's name."""
    entries = read_yaml(paths.manifest_dir() / "weights.yaml")
    # Their own name is what users type after `data prepare`.
    return {name: parse_source(f"backbone={name}", entry, Weights) for name, entry in entries.items()}


def are_missing(backbone: Mapping[str, Any]) -> bool:
    """Return whether weights are known by their file and not in a data root, the working folder or torch hub's cache.

    Args:
        backbone: its config node.
    """
    from torch.hub import get_dir

    weights, entry = str(backbone.get("weights") or ""), released_weights().get(str(backbone.get("name")))
    files = [weights] if "/" in weights else [f.gives for f in entry.files] if entry and weights else []
    places = [place for file in files for place in paths.places(file)]
    places += [Path(get_dir()) / "checkpoints" / Path(file).name for file in files]
    return bool(files) and not any(place.is_file() for place in places)


def _is_wordnet_id(name: str) -> bool:
    return len(name) == 9 and name[0] == "n" and name[1:].isdigit()


def fetch(file: RemoteFile, target: Path) -> None:
    """Download a file to `target`, which exists afterwards only if its hash is the published one.

    A partial download is kept in `target` + `.part`, and the next call resumes it.

    Raises:
        DataError: no mirror sent the published file.
    """
    part, failures = _part_of(target), []
    for url in file.urls:
        problem = _from_mirror(url, file, part)
        if not problem:
            part.replace(target)
            return
        failures.append(f"\n  {url}: {problem}")
    raise DataError(f"'{target.name}' could not be downloaded:{''.join(failures)}\ntry again, or put it at {target}")


def _from_mirror(url: str, file: RemoteFile, part: Path) -> str:
    """Download the missing bytes from one mirror; return why that failed, or an empty string."""
    failures, problem = 0, ""
    while failures < _ATTEMPTS:
        time.sleep(min(30.0, 2.0**failures - 1))
        before = _length(part)
        try:
            if before == 0 or before != file.size:
                _append(url, part)
            problem = file.wrong(part)
            if not problem:
                return ""
            part.unlink()
            if not before:  # else the bytes from before may be the wrong ones
                return problem
        except (OSError, ValueError) as error:  # of the connection, of the address
            status = getattr(getattr(error, "response", None), "status_code", 0)
            problem = f"{type(error).__name__}: {error}"
            if status == 416:  # the file has no more bytes
                part.unlink()
            elif status in _GONE or not isinstance(error, OSError):
                return problem
        failures = 0 if _length(part) > before else failures + 1
    return problem


def _append(url: str, part: Path) -> None:
    """Append the missing bytes. A server that sends all bytes makes the file wrong, and it is begun again."""
    from pooch import HTTPDownloader

    headers = {"User-Agent": f"openbench/{__version__}", "Accept-Encoding": "identity"}
    if start := _length(part):
        headers["Range"] = f"bytes={start}-"
    download = HTTPDownloader(sys.stderr.isatty(), _CHUNK, headers=headers, timeout=30)
    with open(part, "ab") as stream:
        download(url, stream, None)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def prepare_file(file: RemoteFile, root: Path) -> str:
    """Download and unpack one file below a data root, unless it is there; return what was done.

    A folder or file gets its name when it is complete. Of two processes, the second waits.

    Raises:
        DataError: another file is in its place, the download fails, or the archive is damaged.
    """
    store = root / DOWNLOADS
    store.mkdir(parents=True, exist_ok=True)
    target, archive = root / file.gives, store / file.name
    with FileLock(store / f"{file.name}.lock"):
        if target.exists():
            if problem := file.problem(target):
                raise DataError(f"'{target}' is there, but {problem} — move it away and run this again")
            done = "is there"
        else:
            if not archive.exists() or file.wrong(archive):
                archive.unlink(missing_ok=True)
                logger.info(f"download {file.urls[0]}")
                fetch(file, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.unpack is None:
                archive.replace(target)
                done = "downloaded"
            else:
                logger.info(f"unpack {archive.name}")
                _unpack(file, archive, target)
                done = "downloaded and unpacked"
        for leftover in (archive, _part_of(archive)):
            leftover.unlink(missing_ok=True)
        return f"{target}: {done}"


def _part_of(target: Path) -> Path:
    """The file of a partial download."""
    return target.with_name(target.name + ".part")


def _unpack(file: RemoteFile, archive: Path, target: Path) -> None:
    """Extract into a temporary folder, check, then rename."""
    folder = archive.with_name(archive.name + ".unpacking")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    try:
        if file.unpack == "zip":
            with zipfile.ZipFile(archive) as pack:
                pack.extractall(folder)  # with shutil, names such as `a..b.png` would be left out in silence
        else:
            shutil.unpack_archive(archive, folder, file.unpack, filter="data")
        member = folder / file.member
        if problem := file.problem(member):
            raise ValueError(problem)
        member.replace(target)
    except Exception as error:  # a damaged archive raises any kind of error
        raise DataError(f"archive '{archive}' cannot be unpacked ({error}) — delete it, or make room") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
