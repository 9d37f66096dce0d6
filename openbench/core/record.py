"""The one JSON document in which a run ends: its class, and what each of its keys may hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictStr,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from openbench.config.overrides import AUGMENT
from openbench.core.names import PART, WORDS, is_page, is_part, is_words
from openbench.digest import digest
from openbench.errors import RecordError

SCHEMA = 2
# Optional keys of the provenance: changed or foreign code that made a record, and results that it reused.
SOURCES, UNCOMMITTED, REUSED = "sources", "uncommitted", "reused"
# What a method of one's own scored a few rows; in the sources, what tells it from one that scored otherwise.
METHOD_PROBE, VARIANT = "method_probe", "scores otherwise"
PROBE = "probe"  # also of the provenance: what a network of the user's made of a few images
_OPTIONAL = ("overrides", "config_digest")  # records lack these where nothing gives them
Value = float | int | str
DEEPEST = 32  # levels of a value; those of records have eight
LARGEST = 1e100  # the square of a number is a float, too
_MOST = 2**63 - 1
_ROUNDING = 1e-6
_SHOWN = 60  # characters of a value in a message
_KEYS = 20  # unknown keys, and characters of each, in a message


def _message(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(part for part in map(str, first["loc"]) if part != "[key]")  # a key that is refused stands before it
    shown = key.encode("unicode_escape").decode()[:_SHOWN]
    found = "missing" if first["type"] == "missing" else short(first["input"])
    return f"{where}: key '{shown}' of the record is {found} — {first['msg']}"


def short(value: Any) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refusal(allowed: str) -> PydanticCustomError:
    return PydanticCustomError("openbench", "allowed: {allowed}", {"allowed": allowed})


def _only(fits: Callable[[object], bool], allowed: str) -> BeforeValidator:
    def check_value(value: Any) -> Any:
        if not fits(value):
            raise _refusal(allowed)
        return value

    return BeforeValidator(check_value)


def is_number(value: object) -> bool:
    """Whether a value is a finite number that a record may hold."""
    return type(value) in (float, int) and -LARGEST <= value <= LARGEST  # type: ignore[operator]


def _checked_tree(value: Any) -> Any:
    _check_tree(value, DEEPEST, "the value")
    return value


_CHECKED = (int, dict, list)  # any other value may stand in a tree


def _check_tree(value: Any, left: int, at: str) -> None:
    if type(value) is int:
        if not -_MOST <= value <= _MOST:
            raise _refusal(f"whole numbers of at most 63 bits; {at} has more")
    elif isinstance(value, dict | list) and not left:
        raise _refusal(f"values of at most {DEEPEST} levels")
    elif isinstance(value, dict):
        for key, child in value.items():
            if not is_words(key):
                raise _refusal(f"as a key {WORDS}; found {short(key)}")
            if isinstance(child, _CHECKED):
                _check_tree(child, left - 1, short(key))
    elif isinstance(value, list):
        for child in value:
            if isinstance(child, _CHECKED):
                _check_tree(child, left - 1, at)


@dataclass(frozen=True)
class _As:
    """Says that a mapping has the keys of a model; the mapping stays what it is."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, validate: Callable[[Any], Any]) -> Any:
            validate(value)
            return _checked_tree(value)

        return no_info_wrap_validator_function(check, handler(self.model))


Part = Annotated[str, _only(is_part, f"a name: {PART}")]
Page = Annotated[str, _only(is_page, f"a name other than README: {PART}")]
Words = Annotated[str, _only(is_words, WORDS)]
Number = Annotated[Any, _only(is_number, f"a finite number up to {LARGEST:g}")]
Rate = Annotated[float, Field(strict=True, ge=-_ROUNDING, le=1 + _ROUNDING)]
Level = Annotated[float, Field(strict=True, gt=0, lt=1)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Several = Annotated[int, Field(ge=1, le=_MOST)]
Tree = Annotated[dict[str, Any], BeforeValidator(_checked_tree)]


Names = dict[Words, Words]


def _keys(*optional: tuple[Any, Sequence[str]], extra: Literal["allow", "forbid"] = "allow", **needed: Any) -> Any:
    """Return a model of a mapping.

    Args:
        *optional: what some keys hold if they are there, and these keys.
        extra: whether other keys are allowed; openbench reads none of them.
        **needed: what the keys hold that must be there.
    """
    found = [(kind, Field(alias=key)) for key, kind in needed.items()]
    found += [(kind, Field(None, alias=key)) for kind, keys in optional for key in keys]
    fields: dict[str, Any] = {f"key_{at}": pair for at, pair in enumerate(found)}  # a key may begin with an underscore
    return create_model("keys", __config__=ConfigDict(strict=True, extra=extra), **fields)


_BENCHMARK = _keys(
    (Words | None, ["digest"]),
    (bool, ["pristine"]),
    (list[str] | None, ["deviations"]),
    (Names | None, ["images"]),
    name=Page,
)
_BACKBONE = _keys(
    (Words | None, ["digest", "training", "augment", "outliers"]),
    (Count | None, ["num_classes", "feature_dim"]),
    name=Part,
)
_METHOD = _keys((Count, ["version"]), (str, ["reference"]), (Tree, ["params"]), name=Part)
# The nodes of a config, of which a record may lack some; the name of a chosen file becomes part of file names, too.
_FILE = [(Part | None, ["_name_"]), (Words | None, ["_target_"])]
_CONFIG = _keys(
    (dict[str, Any] | None, ["benchmark"]),
    (_keys(*_FILE) | None, ["backbone", "outliers", "method"]),
    (_keys(*_FILE, (Part | None, ["_augment_"])) | None, ["training"]),
    (_keys(*_FILE, (Words, ["strategy"])) | None, ["tune"]),
    (_keys(*_FILE, (Level, ["confidence"]), (Count, ["replicates"])) | None, ["metrics"]),
    (Count | None, ["seed"]),
)
# A setting that was tried: its AUROC where settings are compared, and on each of several OOD sets there.
_TRIAL = _keys(
    (Tree, ["params"]),
    (Words, ["set"]),
    (dict[Words, Rate], ["sets"]),
    (Rate, ["auroc", "risk"]),
    (Number, ["threshold"]),
    (str, ["infeasible"]),
)
_COUNT = _keys(extra="forbid", n=Several, expected=Count)
_OUTPUTS = dict[Words, list[list[Number]]]
_PROVENANCE = _keys(
    (Words | None, ["openbench", "git_sha", "utc", "device", "processor", "instructions"]),
    (bool | None, ["git_dirty"]),
    (Count | None, ["threads", "passes"]),
    (Names | None, ["libraries", SOURCES, UNCOMMITTED, REUSED, "prediction_sets"]),
    (list[str] | None, ["warnings"]),
    (dict[Words, Number] | None, ["seconds", "peak_mib"]),
    (_keys((Part | None, ["variant"]), network=Part, images=Words, outputs=_OUTPUTS) | None, [PROBE]),
)


@dataclass(frozen=True)
class ResultRecord:
    """What was run, what came out, and what made it: enough to trust, compare and repeat a number.

    Args:
        run_id: digest of the scientific config, method version, benchmark digest and backbone digest.
        config: the scientific config, resolved: benchmark, backbone, training, method, tune, metrics, seed. Classes of
            openbench stand there by their public names, others by the path to them.
        benchmark: name, digest, pristine, deviations; `images`, the digest of sets that only some runs read, if any.
        backbone: name, digest, weights' sha256, training; where there is one, the `augment` that was typed; where the
            training learnt from `outliers`, their name and digest.
        method: name, version, reference, final hyper-parameters; `texts`, the corpora of text that it reads, at any
            setting that was searched, if any: their words, count, templates, tower and digest.
        tuned: the hyper-parameters chosen on validation; empty if nothing was tuned.
        trials: every trial: hyper-parameters and validation AUROC.
        metrics: {set or group: {key: value}}; fractions in [0, 1]; `unable` where infeasible.
        header: one line that states conventions, δ, correction, prior, scaling.
        counts: {"<role>/<set>": {"n": found, "expected": listed}}.
        provenance: package version, git sha, dirty flag, library versions, device, UTC time, seconds, passes per stage;
            only where they apply: `sources`, the code that openbench does not ship, {module: SHA-256}; `uncommitted`,
            the changed files of openbench, {file: SHA-256}; `reused`, which version made the `weights` and `features`
            that the run reused; `probe`, what a network that openbench does not
            ship made of a few images; `prediction_sets`, which version computed these again from the kept scores.
        overrides: what was typed after `run`, in one spelling: what composes to the config. Empty where a network or
            method was given as an object.
        config_digest: digest of the config.
    """

    run_id: Part
    config: Annotated[dict[str, Any], _As(_CONFIG)]
    benchmark: Annotated[dict[str, Any], _As(_BENCHMARK)]
    backbone: Annotated[dict[str, Any], _As(_BACKBONE)]
    method: Annotated[dict[str, Any], _As(_METHOD)]
    tuned: Tree
    trials: list[Annotated[dict[str, Any], _As(_TRIAL)]]
    metrics: dict[Words, dict[str, Any]]
    header: StrictStr
    counts: dict[Words, Annotated[dict[str, int], _As(_COUNT)]]
    provenance: Annotated[dict[str, Any], _As(_PROVENANCE)] = field(default_factory=dict)
    schema: int = SCHEMA
    overrides: Sequence[str] = ()
    config_digest: Words = ""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return {key: value for key, value in asdict(self).items() if value or key not in _OPTIONAL}

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "record") -> "ResultRecord":
        """Build a record from parsed JSON; what its numbers may be is checked where records are stored.

        Args:
            data: plain mappings, lists, texts and numbers.
            where: the file's name, for messages.

        Raises:
            RecordError: a key is missing or unknown, the schema is not this one, or a value is not what it must be;
                the first error is named.
        """
        names = {f.name for f in fields(cls)}
        missing, unknown = sorted(names - data.keys() - set(_OPTIONAL)), sorted(data.keys() - names)
        if missing or unknown:
            shown = [key[:_KEYS] for key in unknown[:_KEYS]]
            raise RecordError(f"{where}: not a result record — missing keys {missing}, unknown keys {shown}")
        if type(data["schema"]) is not int or data["schema"] != SCHEMA:
            raise RecordError(f"{where}: schema {repr(data['schema'])[:_KEYS]} — this version reads schema {SCHEMA}")
        try:
            record = _adapter().validate_python(data)
        except ValidationError as error:
            raise RecordError(_message(error, where)) from None
        if "config_digest" in data and record.config_digest != (expected := digest(record.config)):
            raise RecordError(
                f"{where}: key 'config_digest' of the record is {record.config_digest} — allowed: {expected}"
            )
        return record


@cache
def _adapter() -> TypeAdapter[ResultRecord]:
    return TypeAdapter(ResultRecord)


@dataclass(frozen=True)
class RunIdentity:
    """What distinguishes one run from another; its digest names the record.

    Args:
        config: the scientific config, plain and resolved, with public names.
        method: as a record has it, of which these are read: `name`, `version`, and the digests of its `texts`.
        benchmark: likewise: its `digest`, and that of `images` that enter it as a list only.
        backbone: likewise: its `digest`, `training` (None for released weights) and `outliers_digest`.
        provenance: likewise: `sources` and `uncommitted`.
    """

    config: Mapping[str, Any]
    method: Mapping[str, Any]
    benchmark: Mapping[str, Any]
    backbone: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: ResultRecord) -> "RunIdentity":
        """Return the identity of the run that made a record."""
        return cls(record.config, record.method, record.benchmark, record.backbone, record.provenance)

    @property
    def committed(self) -> "RunIdentity":
        """The same run with openbench's files as they were committed."""
        return replace(self, provenance={**self.provenance, UNCOMMITTED: {}})

    @property
    def run_id(self) -> str:
        """Digest of the scientific config, method version, benchmark digest, backbone digest and others' sources.

        The config nodes of benchmark, backbone and outliers are left out: their digests cover what was found, and
        neither the place of the files nor an `incomplete=allow` that dropped nothing changes a number. The training
        node of released weights is left out too.
        """
        by_content = {"benchmark", "backbone", "outliers"} | (set() if self.backbone.get("training") else {"training"})
        config = {name: node for name, node in self.config.items() if name not in by_content}
        if isinstance(config.get("training"), Mapping):
            # The recipe says what the augmentation is; its name adds nothing.
            config["training"] = {key: node for key, node in config["training"].items() if key != AUGMENT}
        method = [str(self.method.get("name")), int(self.method.get("version", 0))]
        digests = {"benchmark": str(self.benchmark.get("digest")), "backbone": str(self.backbone.get("digest"))}
        some = {
            "images": self.benchmark.get("images"),
            "outliers": self.backbone.get("outliers_digest"),
            "texts": [str(corpus.get("digest")) for corpus in self.method.get("texts") or ()],
            **{key: self.provenance.get(key) for key in (SOURCES, UNCOMMITTED)},
        }
        return digest(
            {"config": config, "method": method, **digests} | {k: value for k, value in some.items() if value}
        )
