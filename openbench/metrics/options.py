"""Options of metrics: families and operating points, the values of configs/metrics/default.yaml."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval, MinLen, Unit

from openbench.config.constraints import Checked, NonNegative, OneOf, Seed
from openbench.digest import OMIT_IF_DEFAULT
from openbench.errors import MetricError, OpenbenchError, did_you_mean
from openbench.metrics.conformal.corrections import CORRECTIONS
from openbench.metrics.conformal.prediction_sets import KINDS, OWN
from openbench.metrics.curve import CURVE_METRICS
from openbench.metrics.threshold import SCALINGS

PER_SET = "_per_set"
_FRACTION = Unit("a fraction, not %")
Rate = Annotated[float, Interval(ge=0, le=1), _FRACTION]
Level = Annotated[float, Interval(gt=0, lt=1), _FRACTION]
Name = Annotated[str, MinLen(1)]
Rates = Rate | Annotated[Mapping[Name, Rate], MinLen(1)] | Annotated[tuple[tuple[Name, Rate], ...], MinLen(1)]
Draws = Literal[0] | Annotated[int, Ge(2)]
FAMILIES: tuple[str, ...] = ("ranking", "threshold", "selective", "conformal", "intervals", "prediction_sets")


@dataclass(frozen=True)
class MetricOptions(Checked):
    """Families and operating points; rates are fractions. Lists (from yaml) become tuples.

    Args:
        families: any of `ranking`, `threshold`, `selective`, `conformal`, `intervals`, `prediction_sets`.
        autc_scaling: which scores fix the map to [0, 1] for AUTC: `benchmark`, `pair`, `validation`, `none`.
        autc_weight: w of w·AUFPR + (1−w)·AUFNR.
        tpr: φ_min of `risk@tpr,fpr`, the least share of ID accepted.
        fpr: ρ_max of `risk@tpr,fpr`, the largest share of OOD accepted; or one by OOD set.
        precision: κ_min of `risk@prec,rec`.
        recall: φ_min of `risk@prec,rec`.
        prior: π, the share of OOD among all inputs, for precision and cost.
        cost_reject_id: ε1, relative to a wrong class (1).
        cost_accept_ood: ε2.
        cost_reject_ood: ε3.
        ccr_fprs: shares of OOD accepted at which the correct classification rate is read.
        delta: δ, the probability that the conformal guarantee may fail.
        correction: none, simes, dkwm, asymptotic, monte_carlo, monte_carlo_published, equal_local_level.
        fdr: q of the Benjamini–Hochberg selection; null = none, for ID validation that is not a fresh sample.
        confidence: level of the intervals.
        replicates: bootstrap resamples per pair; 0 leaves DeLong's intervals only.
        bootstrap_metrics: ranking keys that get a bootstrap interval (AUROC has DeLong's).
        seed: of the bootstrap and of the uniforms in APS and RAPS.
        set_kinds: prediction sets: `lac`, `aps`, `raps` of class probabilities; `score` of the method's class scores.
        alphas: their miscoverage levels.
        raps_penalty: λ of RAPS.
        raps_k_reg: rank from which RAPS penalises.
        set_splits: random splits of ID validation and test over which set size and coverage are averaged; 0 = none.
    """

    error: ClassVar[type[OpenbenchError]] = MetricError
    named: ClassVar[str] = "metrics"

    families: Sequence[Annotated[str, OneOf(FAMILIES)]] = FAMILIES
    autc_scaling: Annotated[str, OneOf(SCALINGS)] = "benchmark"
    autc_weight: Rate = 0.5
    tpr: Rate = 0.8
    fpr: Rates = 0.2
    precision: Rate = 0.9
    recall: Rate = 0.8
    prior: Rate = 0.25
    cost_reject_id: NonNegative = 0.5
    cost_accept_ood: NonNegative = 1.0
    cost_reject_ood: NonNegative = 0.0
    ccr_fprs: Sequence[Level] = (1e-4, 1e-3, 1e-2, 1e-1)
    delta: Level = 0.05
    correction: Annotated[str, OneOf(CORRECTIONS)] = "monte_carlo"
    fdr: Level | None = 0.1
    confidence: Level = 0.95
    replicates: Draws = 1000
    bootstrap_metrics: Sequence[Annotated[str, OneOf(tuple(CURVE_METRICS))]] = ("fpr95", "fpr95_id_positive")
    seed: Seed = 0
    set_kinds: Sequence[Annotated[str, OneOf((*KINDS, OWN))]] = (*KINDS, OWN)
    alphas: Sequence[Level] = (0.005, 0.01, 0.05, 0.1)
    raps_penalty: NonNegative = 0.01
    raps_k_reg: Annotated[int, Ge(0)] = 1
    set_splits: Draws = field(default=10, metadata={OMIT_IF_DEFAULT: True})

    def __post_init__(self) -> None:
        """Turn lists into tuples and mappings into pairs."""
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, list):
                object.__setattr__(self, option.name, tuple(value))
            elif isinstance(value, Mapping):  # pairs, so that options hash
                object.__setattr__(self, option.name, tuple(value.items()))

    def fpr_of(self, name: str) -> float | None:
        """Return ρ_max for an OOD set; None where rates are given by set and this set has none.

        Args:
            name: the set's name; empty for pooled sets.
        """
        rates = self._fprs()
        return rates.get("", rates.get(name))

    def check_sets(self, names: Iterable[str]) -> None:
        """Check that every set has a rate.

        Raises:
            MetricError: one has none.
        """
        rates = self._fprs()
        for name in names:
            if "" not in rates and name not in rates:
                hint, found = did_you_mean(name, rates), ", ".join(rates)
                raise MetricError(f"metrics.fpr has no rate for the set '{name}'{hint}, found {found}")

    @property
    def fpr_label(self) -> str:
        """Return ρ_max as keys spell it: the rate, or `_per_set`."""
        return f"{self.fpr:g}" if isinstance(self.fpr, float | int) else PER_SET

    def _fprs(self) -> dict[str, float]:
        """Return the rates by set; a single one for all has the empty name."""
        return {"": self.fpr} if isinstance(self.fpr, float | int) else dict(self.fpr)


def describe(options: MetricOptions) -> str:
    """Return the line above every table: each convention that a number depends on.

    Args:
        options: of the metrics.
    """
    o, parts = options, []
    if "ranking" in o.families:
        parts.append("FPR@95: OOD positive (fpr95_id_positive: ID positive); AUPR by trapezoid, AP step-wise")
    if "threshold" in o.families:
        parts.append(f"AUTC: scaling {o.autc_scaling}, w = {o.autc_weight:g}")
    if "selective" in o.families:
        by_set = dict(o.fpr).items() if not isinstance(o.fpr, float | int) else ()
        fpr = f"({', '.join(f'{name} {rate:g}' for name, rate in by_set)})" if by_set else o.fpr_label
        parts.append(
            f"risk: TPR ≥ {o.tpr:g}, FPR ≤ {fpr}; precision ≥ {o.precision:g}, recall ≥ {o.recall:g}, "
            f"prior π = {o.prior:g}; costs {o.cost_reject_id:g}/{o.cost_accept_ood:g}/{o.cost_reject_ood:g}"
        )
    if "conformal" in o.families:
        parts.append(f"conformal: {o.correction}, δ = {o.delta:g}, n = n_id scores of the ID side")
    if "intervals" in o.families:
        keys = ", ".join(o.bootstrap_metrics) if o.replicates else ""
        drawn = f", stratified bootstrap × {o.replicates}, seed {o.seed} ({keys})" if keys else ""
        parts.append(f"{100 * o.confidence:g} % intervals: DeLong (AUROC){drawn}")
    if "prediction_sets" in o.families:
        parts.append(f"prediction sets: {', '.join(o.set_kinds)} at α = {', '.join(f'{a:g}' for a in o.alphas)}")
    return " · ".join(parts)
