"""The one JSON document in which a run ends."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from openbench.config.overrides import AUGMENT
from openbench.digest import digest
from openbench.errors import RecordError

SCHEMA = 2
# Optional keys of the provenance: changed or foreign code that made a record, and results that it reused.
SOURCES, UNCOMMITTED, REUSED = "sources", "uncommitted", "reused"
# What a method of one's own scored a few rows; in the sources, what tells it from one that scored otherwise.
METHOD_PROBE, VARIANT = "method_probe", "scores otherwise"
PROBE = "probe"  # also of the provenance: what a network of the user's made of a few images
_OPTIONAL = ("overrides", "config_digest")  # records lack these where nothing gives them
_SHOWN = 20  # keys, and characters of each, in a message
Value = float | int | str


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

    run_id: str
    config: dict[str, Any]
    benchmark: dict[str, Any]
    backbone: dict[str, Any]
    method: dict[str, Any]
    tuned: dict[str, Any]
    trials: list[dict[str, Any]]
    metrics: dict[str, dict[str, Value]]
    header: str
    counts: dict[str, dict[str, int]]
    provenance: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    overrides: Sequence[str] = ()
    config_digest: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return {key: value for key, value in asdict(self).items() if value or key not in _OPTIONAL}

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "record") -> "ResultRecord":
        """Build a record from parsed JSON.

        Raises:
            RecordError: a key is missing or unknown, or the schema is not this one.
        """
        names = {f.name for f in fields(cls)}
        missing, unknown = sorted(names - data.keys() - set(_OPTIONAL)), sorted(data.keys() - names)
        if missing or unknown:
            told = f"missing keys {missing}, unknown keys {[key[:_SHOWN] for key in unknown[:_SHOWN]]}"
            raise RecordError(f"{where}: not a result record — {told}")
        if type(data["schema"]) is not int or data["schema"] != SCHEMA:
            raise RecordError(f"{where}: schema {repr(data['schema'])[:_SHOWN]} — this version reads schema {SCHEMA}")
        return cls(**data)


@dataclass(frozen=True)
class RunIdentity:
    """What distinguishes one run from another; its digest names the record.

    Args:
        config: the scientific config, plain and resolved, with public names.
        method: what users type after `method=`.
        version: of the method.
        benchmark: digest of the benchmark.
        backbone: digest of the backbone.
        training: how the weights were trained; None for released weights.
        images: role → digest of the images, for sets that were read and that enter the benchmark's digest only as a
            list.
        outliers: digest of the outliers that the training learnt from; None if it used none.
        sources: {module: SHA-256} of the code of method and training that openbench does not ship.
        uncommitted: {file: SHA-256} of openbench's own files that differ from the commit and were used.
        texts: digests of the corpora of text that the method reads, in its order.
    """

    config: Mapping[str, Any]
    method: str
    version: int
    benchmark: str
    backbone: str
    training: str | None
    images: Mapping[str, str] = field(default_factory=dict)
    outliers: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    uncommitted: Mapping[str, str] = field(default_factory=dict)
    texts: Sequence[str] = ()

    @classmethod
    def of(cls, record: ResultRecord) -> "RunIdentity":
        """Return the identity of the run that made a record."""
        return cls(
            record.config,
            str(record.method.get("name")),
            int(record.method.get("version", 0)),
            str(record.benchmark.get("digest")),
            str(record.backbone.get("digest")),
            record.backbone.get("training"),
            record.benchmark.get("images") or {},
            record.backbone.get("outliers_digest"),
            record.provenance.get(SOURCES) or {},
            record.provenance.get(UNCOMMITTED) or {},
            texts_of(record.method),
        )

    @property
    def committed(self) -> "RunIdentity":
        """The same run with openbench's files as they were committed."""
        return replace(self, uncommitted={})

    @property
    def run_id(self) -> str:
        """Digest of the scientific config, method version, benchmark digest, backbone digest and others' sources.

        The config nodes of benchmark, backbone and outliers are left out: their digests cover what was found, and
        neither the place of the files nor an `incomplete=allow` that dropped nothing changes a number. The training
        node of released weights is left out too.
        """
        by_content = {"benchmark", "backbone", "outliers"} | (set() if self.training else {"training"})
        config = {name: node for name, node in self.config.items() if name not in by_content}
        if isinstance(config.get("training"), Mapping):
            # The recipe says what the augmentation is; its name adds nothing.
            config["training"] = {key: node for key, node in config["training"].items() if key != AUGMENT}
        content: dict[str, Any] = {
            "config": config,
            "method": [self.method, self.version],
            "benchmark": self.benchmark,
            "backbone": self.backbone,
        }
        some = {
            "images": self.images,
            "outliers": self.outliers,
            SOURCES: self.sources,
            UNCOMMITTED: self.uncommitted,
            "texts": list(self.texts),
        }
        return digest(content | {key: value for key, value in some.items() if value})


def texts_of(method: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests of the corpora of text that a record's `method` names; empty if it reads none."""
    return tuple(str(corpus.get("digest")) for corpus in method.get("texts") or ())
