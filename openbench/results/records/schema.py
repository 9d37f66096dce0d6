"""What a record must be, key by key. Imported where a record is read or written: pydantic takes its time to load."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from openbench.core.record import Value
from openbench.digest import digest
from openbench.errors import RecordError
from openbench.metrics.keys import bounds
from openbench.results.escape import one_line
from openbench.results.names import PART, WORDS, is_page, is_part, is_words

DEEPEST = 32  # levels of a value; those of records have eight
_MOST = 2**63 - 1
_LARGEST = 1e100  # their squares are floats, too
_SHOWN = 60  # characters of a value in a message
_UNABLE = "unable"

_ALLOWED = {
    "missing": "a value",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "greater_than_equal": "a whole number ≥ {ge}",
    "less_than_equal": "a whole number of at most 63 bits",
    "string_type": "text",
}


def check(content: dict[str, Any], where: str) -> None:
    """Check the content of a record.

    Args:
        content: as JSON has it: plain mappings, lists, texts and numbers.
        where: the file's name, for messages.

    Raises:
        RecordError: a value is not what this schema allows, or an interval cannot belong to its number; the first
            error is named.
    """
    try:
        found = Content.model_validate(content)
    except ValidationError as error:
        raise RecordError(_said(error, where)) from None
    if found.config_digest not in (None, digest(content["config"])):
        raise RecordError(
            f"{where}: key 'config_digest' of the record — found {found.config_digest} — allowed: "
            f"{digest(content['config'])}, the digest of its config"
        )
    options = found.config.metrics
    check_intervals(found.metrics, Drawn(options.confidence, options.replicates) if options else Drawn(), where)


def _said(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    told = first.get("ctx", {}) if first["type"] == "openbench" else {}
    # A key that is refused stands in the location as `[key]`, and so do the members of a union.
    key = ".".join(part for part in (*map(str, first["loc"]), told.get("at", "")) if part and part != "[key]")
    found = told["found"] if told else _short(None if first["type"] == "missing" else first["input"])
    allowed = told["allowed"] if told else _allowed(first["type"], first["msg"], first.get("ctx", {}))
    return f"{where}: key '{one_line(key)[:_SHOWN]}' of the record — found {found} — allowed: {allowed}"


def _allowed(kind: str, message: str, limits: dict[str, Any]) -> str:
    return _ALLOWED[kind].format(**limits) if kind in _ALLOWED else message


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    try:
        text = one_line(repr(value))
    except ValueError:  # Python writes no number of thousands of digits
        return "a huge number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refusal(allowed: str, found: Any, at: str = "") -> PydanticCustomError:
    return PydanticCustomError("openbench", "refused", {"allowed": allowed, "found": _short(found), "at": at})


def _only(fits: Callable[[object], bool], allowed: str) -> BeforeValidator:
    def check_value(value: Any) -> Any:
        if not fits(value):
            raise _refusal(allowed, value)
        return value

    return BeforeValidator(check_value)


def _is_number(value: object) -> bool:
    return type(value) in (float, int) and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]


def _is_level(value: object) -> bool:
    return _is_number(value) and 0 < float(str(value)) < 1


def _is_rate(value: object) -> bool:
    return _is_number(value) and bounds("auroc").hold(float(str(value)))


def _is_within(key: str, number: float) -> bool:
    """Whether a result is surely as it should be, with one look-up: records have thousands of them."""
    low, high = _ends(key)
    return low <= number <= high


@lru_cache(maxsize=1 << 14)
def _ends(key: str) -> tuple[float, float]:
    """The smallest and largest number that the key can have; none for an unknown key, and for counts."""
    found = bounds(key)
    if not is_words(key) or found.whole:
        return math.inf, -math.inf
    return max(found.low, -_LARGEST), min(found.high, _LARGEST)


def _checked_results(value: Any) -> Any:
    for key, number in value.items() if isinstance(value, dict) else ():
        if type(number) is float and _is_within(key, number):
            continue
        if not is_words(key):
            raise _refusal(WORDS, key)
        if _is_number(number):
            if not bounds(key).hold(number):
                raise _refusal(f"{bounds(key)}, or '{_UNABLE}'", number, key)
        elif number != _UNABLE:
            raise _refusal(f"a finite number up to {_LARGEST:g}, or '{_UNABLE}'", number, key)
    return value


def _checked_tree(value: Any) -> Any:
    _check_tree(value, DEEPEST, "")
    return value


_CHECKED = (int, dict, list)  # any other value may stand in a tree


def _check_tree(value: Any, left: int, at: str) -> None:
    if type(value) is int:
        if not -_MOST <= value <= _MOST:
            raise _refusal("whole numbers of at most 63 bits", value, at)
    elif isinstance(value, dict | list) and not left:
        raise _refusal(f"values of at most {DEEPEST} levels", value, at)
    elif isinstance(value, dict):
        for key, child in value.items():
            if not is_words(key):
                raise _refusal(f"as a key {WORDS}", key, at)
            if isinstance(child, _CHECKED):
                _check_tree(child, left - 1, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for child in value:
            if isinstance(child, _CHECKED):
                _check_tree(child, left - 1, at)


Part = Annotated[str, _only(is_part, f"a name: {PART}")]
Page = Annotated[str, _only(is_page, f"a name other than README: {PART}")]
Words = Annotated[str, _only(is_words, WORDS)]
Number = Annotated[Any, _only(_is_number, f"a finite number up to {_LARGEST:g}")]
Rate = Annotated[Any, _only(_is_rate, "a number from 0 to 1")]
Level = Annotated[Any, _only(_is_level, "a number between 0 and 1")]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Several = Annotated[int, Field(ge=1, le=_MOST)]
Tree = Annotated[dict[str, Any], BeforeValidator(_checked_tree)]
Results = Annotated[dict[str, Any], BeforeValidator(_checked_results)]


class _Node(BaseModel):
    """Keys that openbench reads, and any others."""

    model_config = ConfigDict(strict=True, extra="allow")


class Benchmark(_Node):
    """Of a record, not of a config."""

    name: Page
    digest: Words | None = None
    pristine: bool = False
    deviations: list[str] | None = None
    images: dict[Words, Words] | None = None


class Backbone(_Node):
    """Of a record, not of a config."""

    name: Part
    digest: Words | None = None
    training: Words | None = None
    augment: Words | None = None
    outliers: Words | None = None


class Method(_Node):
    """Of a record, not of a config."""

    name: Part
    version: Count = 0
    reference: str = ""
    params: Tree = Field(default_factory=dict)


class Group(_Node):
    """The node of a config group; the name of the chosen file becomes part of file names, too."""

    name: Part | None = Field(None, alias="_name_")
    target: Words | None = Field(None, alias="_target_")


class Training(Group):
    """How a network is trained."""

    augment: Part | None = Field(None, alias="_augment_")


class Metrics(Group):
    """How numbers were computed."""

    confidence: Level = 0.95
    replicates: Count = 1000


class Tune(Group):
    """How hyper-parameters were chosen."""

    strategy: Words = "none"


class Config(_Node):
    """What was run; nodes that a record lacks have no part in its tables."""

    benchmark: dict[str, Any] | None = None
    backbone: Group | None = None
    training: Training | None = None
    outliers: Group | None = None
    method: Group | None = None
    tune: Tune | None = None
    metrics: Metrics | None = None
    seed: Count | None = None


class Trial(_Node):
    """A setting that was tried on validation."""

    params: Tree = Field(default_factory=dict)
    set: Words = ""
    auroc: Rate = 0.0
    risk: Rate = 0.0
    threshold: Number = 0.0
    infeasible: str = ""


class Images(BaseModel):
    """How many images a set has."""

    model_config = ConfigDict(strict=True, extra="forbid")

    n: Several
    expected: Count


class Probe(_Node):
    """What a network made of a few images."""

    network: Part
    images: Words
    variant: Part | None = None
    outputs: dict[Words, list[list[Number]]]


class Provenance(_Node):
    """What made the record."""

    openbench: Words | None = None
    git_sha: Words | None = None
    git_dirty: bool | None = None
    utc: Words | None = None
    device: Words | None = None
    processor: Words | None = None
    instructions: Words | None = None
    threads: Count | None = None
    libraries: dict[Words, Words] | None = None
    sources: dict[Words, Words] | None = None
    uncommitted: dict[Words, Words] | None = None
    reused: dict[Words, Words] | None = None
    prediction_sets: dict[Words, Words] | None = None
    warnings: list[str] | None = None
    probe: Probe | None = None


class Content(BaseModel):
    """A record."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run_id: Part
    config: Annotated[Config, BeforeValidator(_checked_tree)]
    benchmark: Annotated[Benchmark, BeforeValidator(_checked_tree)]
    backbone: Annotated[Backbone, BeforeValidator(_checked_tree)]
    method: Annotated[Method, BeforeValidator(_checked_tree)]
    tuned: Tree
    trials: list[Annotated[Trial, BeforeValidator(_checked_tree)]]
    metrics: dict[Words, Results]
    header: str
    counts: dict[Words, Images]
    provenance: Annotated[Provenance, BeforeValidator(_checked_tree)]
    schema_: int = Field(alias="schema")
    overrides: list[str] | None = None
    config_digest: Words | None = None


_FEWEST = 100  # draws; of fewer, the percentiles lie anywhere
_USUAL = 0.9  # intervals of a lower level are so narrow that what is drawn may lie beside the number
_ROUNDING = 1e-6
_NORMAL = "auroc"


@dataclass(frozen=True)
class Drawn:
    """How intervals were made.

    Args:
        level: the confidence level; None if the record does not say.
        replicates: how many times was drawn.
    """

    level: float | None = None
    replicates: int = 1000

    @property
    def usual(self) -> bool:
        """Whether so much was drawn, and so little left out, that a number cannot lie far beside its interval."""
        return self.level is not None and self.level >= _USUAL and self.replicates >= _FEWEST


def check_intervals(metrics: Mapping[str, Mapping[str, Value]], drawn: Drawn, where: str) -> None:
    """Check every `KEY_low` and `KEY_high` against each other and against `KEY`.

    An interval of AUROC is built around its number. Others are percentiles of what was drawn, which may be biased: of
    those, a number may lie as far outside as the interval is wide.

    Args:
        metrics: {set or group: {key: value}}.
        drawn: how they were made.
        where: the file's name, for messages.

    Raises:
        RecordError: an interval that cannot belong to its number; the first one is named.
    """
    for name, values in metrics.items():
        for key in values:
            if key.endswith("_low"):
                _check(name, key.removesuffix("_low"), values, drawn, where)


def _check(name: str, key: str, values: Mapping[str, Value], drawn: Drawn, where: str) -> None:
    low, value, high = (values.get(known) for known in (f"{key}_low", key, f"{key}_high"))
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return
    room = _ROUNDING + (0.0 if key == _NORMAL else high - low)
    known = isinstance(value, float | int) and (key == _NORMAL or drawn.usual)
    if low > high:
        found, allowed = f"{low:.6g} above {high:.6g}", "the lower end first"
    elif known and not low - room <= float(value) <= high + room:  # type: ignore[arg-type]
        found, allowed = f"[{low:.6g}, {high:.6g}] for {value:.6g}", "an interval that holds its number"
    else:
        return
    raise RecordError(f"{where}: the interval of '{name}.{key}' in the record — found {found} — allowed: {allowed}")
