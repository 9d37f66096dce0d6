"""The files of a detector: a folder or a zip, whole or not there; the manifest states the digest of each part."""

import os
import secrets
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openbench.digest import bytes_sha256
from openbench.errors import CheckpointError, ConfigError
from openbench.results.escape import one_line
from openbench.storage.checksum import KEY, stated
from openbench.storage.files import creating, read_regular, write_whole
from openbench.storage.plain_json import loads

MANIFEST = "detector.json"
PARTS = ("network.safetensors", "method.safetensors", "calibration.safetensors")
ONNX = "network.onnx"  # in place of the network's weights
_NAMES = (MANIFEST, *PARTS, ONNX)
_MANIFEST_MOST = 1 << 24  # bytes
_PART_MOST = 1 << 36


def write_files(path: Path, manifest: Mapping[str, Any], parts: Mapping[str, bytes]) -> str:
    """Write a detector and return the digest of its manifest, which covers every part.

    Args:
        path: of a folder, or of a file that ends in `.zip`; there must be nothing yet.
        manifest: without `parts`.
        parts: file name → content.

    Raises:
        ConfigError: something is there.
        OSError: the folder cannot be written, or the disk is full; nothing is then left behind.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(f"'{path}' exists — a detector is written to a new place — delete it, or give another path")
    listed = {name: {"sha256": bytes_sha256(content), "size": len(content)} for name, content in parts.items()}
    whole = stated({**manifest, "parts": listed})
    files = {**parts, MANIFEST: whole}
    if path.suffix == ".zip":
        with creating(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as pack:
            for name, content in files.items():
                pack.writestr(zipfile.ZipInfo(name), content)
        return bytes_sha256(whole)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        for name, content in files.items():
            write_whole(unfinished / name, content)
        os.rename(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return bytes_sha256(whole)


def read_files(path: Path) -> tuple[dict[str, Any], dict[str, bytes], str]:
    """Return a detector's manifest as JSON has it, its parts as they are, and the manifest's digest.

    Nothing is checked against the manifest yet: `check_part` does that when its schema is known to hold.

    Raises:
        CheckpointError: not a detector, or a manifest that has changed since it was written.
    """
    if path.is_dir():
        return _opened(path, {name: path / name for name in _NAMES})
    if not path.is_file():
        raise CheckpointError(f"'{path}' not found — the folder or the zip of a detector expected")
    return _unpacked(path)


def check_part(name: str, content: bytes | None, size: int, sha256: str, path: Path) -> bytes:
    """Return the content of a part that is what the manifest states.

    Raises:
        CheckpointError: it is missing, or has changed since it was written.
    """
    if content is None:
        raise CheckpointError(f"'{path}': '{name}' is missing — copy the whole detector")
    if len(content) != size or bytes_sha256(content) != sha256:
        raise CheckpointError(
            f"'{path}': '{name}' has changed since the detector was saved — {len(content):,} bytes, {size:,} were "
            "written, or another content — copy the detector again, or make it again"
        )
    return content


def _opened(folder: Path, files: Mapping[str, Path]) -> tuple[dict[str, Any], dict[str, bytes], str]:
    held: dict[str, bytes] = {}
    for name, file in files.items():
        try:
            held[name] = read_regular(file, _MANIFEST_MOST if name == MANIFEST else file.stat().st_size)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(
                f"'{file}' cannot be read — {error.strerror or error} — copy the detector again"
            ) from error
    return _manifest(folder, held)


def _unpacked(path: Path) -> tuple[dict[str, Any], dict[str, bytes], str]:
    held: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as pack:
            for member in pack.infolist():
                most = _MANIFEST_MOST if member.filename == MANIFEST else _PART_MOST
                odd = member.filename not in _NAMES or member.filename in held
                if odd or member.compress_type != zipfile.ZIP_STORED or member.file_size > most:
                    raise CheckpointError(
                        f"'{path}': the member {member.filename[:80]!a} is none that a detector has — allowed, once "
                        f"each and not compressed: {', '.join(_NAMES)}"
                    )
                held[member.filename] = pack.read(member)
    except (OSError, zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError) as error:
        raise CheckpointError(f"'{path}' cannot be read as a zip — {error} — copy the detector again") from error
    return _manifest(path, held)


def _manifest(path: Path, held: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes], str]:
    whole = held.pop(MANIFEST, None)
    if whole is None:
        raise CheckpointError(f"'{path}' holds no {MANIFEST} — the folder or the zip of a detector expected")
    try:
        content = loads(whole.decode("utf-8"), f"'{path}': {MANIFEST}")
    except Exception as error:  # of the text, of JSON, or of what strict JSON refuses
        raise CheckpointError(f"'{path}': {MANIFEST} cannot be read — {error}") from error
    if not isinstance(content, dict) or content.pop(KEY, None) is None or whole != stated(content):
        raise CheckpointError(
            f"'{path}': {MANIFEST} has changed since the detector was saved — make the detector again"
        )
    return content, held, bytes_sha256(whole)


VERSION = 1
_SHOWN = 80
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Level = Annotated[float, Field(gt=0, lt=1)]


class _Strict(BaseModel):
    """No further keys, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Part(_Strict):
    """One file beside the manifest."""

    sha256: Sha256
    size: Count


class Side(_Strict):
    """The preprocessing, in the words of `ob.Preprocess`; `own` names a transform that the user has to bring."""

    resize: int | list[int]
    crop: Annotated[int, Field(ge=1)]
    mean: Annotated[list[float], Field(min_length=1, max_length=4)]
    std: Annotated[list[float], Field(min_length=1, max_length=4)]
    interpolation: Literal["nearest", "bilinear", "bicubic"]
    own: str


class NetworkPart(_Strict):
    """The network: a config of openbench's (`shipped`), a model of the user's own (`module`), or a graph (`onnx`)."""

    kind: Literal["shipped", "module", "onnx"]
    name: str
    config: str
    keys: dict[str, Any]
    architecture: str
    digest: str
    classes: Count
    preprocess: Side
    features: str
    head: str


class MethodPart(_Strict):
    """The method, fitted."""

    name: str
    packed: dict[str, Any]


class CalibrationPart(_Strict):
    """What is promised, and what follows from the calibration scores."""

    images: Annotated[int, Field(ge=1)]
    alpha: Level
    delta: Level
    correction: str
    guarantee: Literal["marginal", "conditional"]
    coverage: Level | None
    groups: list[str]
    quantile: float | None
    never_exceeded: bool
    thresholds: dict[str, float]
    promise: str


class Manifest(_Strict):
    """All of it."""

    schema_version: Literal[1]
    made_by: str
    made_at: str
    classes: list[str]
    batch_size: Annotated[int, Field(ge=1)]
    network: NetworkPart
    method: MethodPart
    calibration: CalibrationPart
    about: dict[str, Any]
    parts: dict[str, Part]


def parsed(content: dict[str, Any], where: str) -> Manifest:
    """Return a manifest, checked.

    Args:
        content: as JSON has it.
        where: the file's name, for messages.

    Raises:
        CheckpointError: another version, or a value that the schema does not allow; the first is named.
    """
    if content.get("schema_version") != VERSION:
        found, made_by = (one_line(repr(content.get(key)))[:_SHOWN] for key in ("schema_version", "made_by"))
        raise CheckpointError(
            f"{where}: schema version {found} — this openbench reads {VERSION} — install the version that made the "
            f"detector ({made_by})"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, found = ".".join(map(str, first["loc"])), one_line(repr(first["input"]))[:_SHOWN]
        raise CheckpointError(
            f"{where}: key '{key}' — found {found} — {first['msg']} — save the detector again"
        ) from None
