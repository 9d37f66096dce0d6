"""What the manifest of a detector must be, key by key."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openbench.errors import CheckpointError
from openbench.results.escape import one_line

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
