"""The files of a detector: one JSON, one file of tensors, perhaps a graph; whole or not there, each with its digest."""

import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from openbench.digest import bytes_sha256
from openbench.errors import CheckpointError, ConfigError
from openbench.results.escape import one_line
from openbench.storage.checksum import KEY, stated
from openbench.storage.files import creating, read_regular, write_whole
from openbench.storage.plain_json import loads

MANIFEST, TENSORS, ONNX = "detector.json", "tensors.safetensors", "network.onnx"
VERSION = 2
_MOST = {MANIFEST: 1 << 24, TENSORS: 1 << 36, ONNX: 1 << 36}  # bytes that are read
_SHOWN = 80
_UNREADABLE = (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError, EOFError)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    """No further keys, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NetworkPart(_Strict):
    """The network: a config of openbench's (`shipped`), a model of the user's own (`module`), or a graph (`onnx`).

    `preprocess` holds the fields of `ob.Preprocess`; `own_preprocess` names a transform that the user has to bring.
    """

    kind: Literal["shipped", "module", "onnx"]
    name: str
    config: str
    keys: dict[str, Any]
    architecture: str
    digest: str
    classes: Annotated[int, Field(ge=0)]
    preprocess: dict[str, Any]
    own_preprocess: str
    features: str
    head: str


class CalibrationPart(_Strict):
    """What is promised; thresholds and promise are for people."""

    terms: dict[str, Any]
    groups: list[str]
    thresholds: dict[str, float]
    promise: str


class Manifest(_Strict):
    """All that is not a tensor; `parts` are the SHA-256 digests of the other files."""

    schema_version: Literal[2]
    made_by: str
    made_at: str
    classes: list[str]
    batch_size: Annotated[int, Field(ge=1)]
    network: NetworkPart
    method: dict[str, Any]
    calibration: CalibrationPart
    about: dict[str, Any]
    parts: dict[str, Sha256]


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
    whole = stated({**manifest, "parts": {name: bytes_sha256(content) for name, content in parts.items()}})
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


def read_files(path: Path, digest: str | None) -> tuple[Manifest, dict[str, Tensor], bytes]:
    """Return the manifest of a detector, its tensors by name, and its graph, empty where it has none.

    Args:
        path: the folder or the `.zip`.
        digest: of the manifest; None = not compared.

    Raises:
        CheckpointError: not a detector, another one, of another version, or changed since it was written.
    """
    if path.is_dir():
        return _read(
            path, lambda name: read_regular(path / name, min(_MOST[name], os.stat(path / name).st_size)), digest
        )
    if not path.is_file():
        raise CheckpointError(f"'{path}' not found — the folder or the zip of a detector expected")
    try:
        pack = zipfile.ZipFile(path)
    except _UNREADABLE as error:
        raise CheckpointError(f"'{path}' cannot be read as a zip — {error} — copy the detector again") from error
    with pack:
        return _read(path, lambda name: _member(pack, name), digest)


def _member(pack: zipfile.ZipFile, name: str) -> bytes:
    """A file of a zip; one that is compressed may be a bomb."""
    found = pack.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED or found.file_size > _MOST[name]:
        raise ValueError(f"it is compressed, or larger than {_MOST[name]:,} bytes")
    return pack.read(found)


def _read(path: Path, read: Callable[[str], bytes], digest: str | None) -> tuple[Manifest, dict[str, Tensor], bytes]:
    whole = _content(path, read, MANIFEST)
    if digest is not None and digest != bytes_sha256(whole):
        raise CheckpointError(f"'{path}' is another detector — digest {bytes_sha256(whole)}, {digest} expected")
    manifest = _manifest(whole, f"'{path}': {MANIFEST}")
    expected = {TENSORS, *[ONNX] * (manifest.network.kind == "onnx")}
    if set(manifest.parts) != expected:
        raise CheckpointError(f"'{path}': {MANIFEST} lists other parts than {', '.join(sorted(expected))}")
    parts = {name: _content(path, read, name) for name in expected}
    for name, content in parts.items():
        if bytes_sha256(content) != manifest.parts[name]:
            raise CheckpointError(
                f"'{path}': '{name}' has changed since the detector was saved — copy the detector again, or make it "
                "again"
            )
    try:
        return manifest, load_tensors(parts[TENSORS]), parts.get(ONNX, b"")
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"'{path}': '{TENSORS}' is not what safetensors writes — {error}") from error


def _content(path: Path, read: Callable[[str], bytes], name: str) -> bytes:
    try:
        return read(name)
    except _UNREADABLE as error:
        told = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"'{path}': '{name}' is missing or cannot be read — {told} — copy the detector"
        ) from error


def _manifest(whole: bytes, where: str) -> Manifest:
    try:
        content = loads(whole.decode("utf-8"), where)
    except Exception as error:  # of the text, of JSON, or of what strict JSON refuses
        raise CheckpointError(f"{where} cannot be read — {error}") from error
    if not isinstance(content, dict) or content.pop(KEY, None) is None or whole != stated(content):
        raise CheckpointError(f"{where} has changed since the detector was saved — make the detector again")
    if content.get("schema_version") != VERSION:
        found, made_by = (one_line(repr(content.get(key)))[:_SHOWN] for key in ("schema_version", "made_by"))
        raise CheckpointError(
            f"{where} has the format {found} of {made_by} — this openbench reads the format {VERSION} — fit and "
            "calibrate the detector again"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, found = ".".join(map(str, first["loc"])), one_line(repr(first["input"]))[:_SHOWN]
        raise CheckpointError(
            f"{where}: key '{key}' — found {found} — {first['msg']} — save the detector again"
        ) from None
