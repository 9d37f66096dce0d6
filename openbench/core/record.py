"""The one JSON document in which a run ends."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from openbench.errors import RecordError

SCHEMA = 1
Value = float | int | str


@dataclass(frozen=True)
class ResultRecord:
    """What was run, what came out, and what made it: enough to trust, compare and repeat a number.

    Args:
        run_id: digest of the scientific config, method version, benchmark digest and backbone digest.
        config: the scientific config, resolved: benchmark, backbone, training, method, tune, metrics, seed.
        benchmark: name, digest, pristine, deviations.
        backbone: name, digest, weights' sha256, training.
        method: name, version, reference, final hyper-parameters.
        tuned: the hyper-parameters chosen on validation; empty if nothing was tuned.
        trials: every trial: hyper-parameters and validation AUROC.
        metrics: {set or group: {key: value}}; fractions in [0, 1]; `unable` where infeasible.
        header: one line that states conventions, δ, correction, prior, scaling.
        counts: {"<role>/<set>": {"n": found, "expected": listed}}.
        provenance: package version, git sha, dirty flag, library versions, device, UTC time, seconds, passes per stage.
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

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "record") -> "ResultRecord":
        """Build a record from parsed JSON.

        Raises:
            RecordError: a key is missing or unknown, or the schema is not this one.
        """
        names = {f.name for f in fields(cls)}
        missing, unknown = sorted(names - data.keys()), sorted(data.keys() - names)
        if missing or unknown:
            raise RecordError(f"{where}: not a result record — missing keys {missing}, unknown keys {unknown}")
        if data["schema"] != SCHEMA:
            raise RecordError(f"{where}: schema {data['schema']} — this version reads schema {SCHEMA}")
        return cls(**data)
