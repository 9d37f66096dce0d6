"""Activation scaling with a percentile chosen for each sample."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Interval
from torch import Tensor

from openbench.config.constraints import Count, NonNegative, Seed, Share
from openbench.core import FeatureSet, Field, Head, Perturb, Request, Role
from openbench.methods._bases import SoftmaxMethod
from openbench.methods._stats import classifier, drawn, sorted_rows, training

Variant = Literal["a", "l"]
_Percentile = Annotated[float, Interval(gt=0, lt=100)]
_Kept = Annotated[float, Interval(gt=0, le=100)]  # per cent


@dataclass
class AdaSCALE(SoftmaxMethod):
    """Energy after scaling as in SCALE; the less features move when unimportant pixels do, the stronger the scaling.

    score(x) = −log Σ_c exp(z'_c), z' = W (f e^r) + b for variant `a`, r² (W f + b) for `l`;
    r = Σ relu(f) / sum of the k = d − round(d·p/100) largest relu(f), p = p_min + (1 − F(Q')) (p_max − p_min),
    Q' = Σ_{K₁} relu(f̃) + λ Σ_{K₂} |f − f̃|, K₁ and K₂ the indices of the largest `k1` and `k2` percent of f, and F the
    share of ID validation samples with a Q' at most as large. f̃ are the features of the image whose elements with the
    smallest |∇ₓ max_c z_c| took a step towards a larger maximum.

    Args:
        variant: `a` scales activations, `l` logits.
        percentiles: p_min and p_max, 0 < p_min ≤ p_max < 100; tuning searches the 36 pairs of the official search.
        k1: percent of features in the correction Σ relu(f̃); 5.
        k2: percent of features in the shift; 1.
        weight: λ ≥ 0; 10.
        share: of the image's elements (pixel and channel) that move; .05.
        epsilon: length of their step in units of the normalised input; .5 in the official code.
        samples: of ID validation that make F, drawn with `seed` if there are more; 5000.
        seed: of the draw.

    Raises:
        MethodError: a hyper-parameter out of range, or a percentile that keeps nothing of so few features.

    Reference: Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025, arXiv 2503.08023. One further pass per image
    serves all percentiles. At least one feature is in K₁ and K₂ (the official code rounds to none below d = 100, and
    then measures no shift); a vector of zeros stays one (there: NaN); the draw is seeded.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.PERTURBED}),
        fit_on=Role.ID_VAL,
        head=True,
        second_pass=Perturb(1.0, 0.5, "flat", 0.05),
    )
    reference: ClassVar[str] = "Regmi, 2025, arXiv 2503.08023"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"percentiles"})

    variant: Variant = "a"
    percentiles: tuple[_Percentile, _Percentile] = (75.0, 85.0)
    k1: _Kept = 5.0
    k2: _Kept = 1.0
    weight: NonNegative = 10.0
    share: Share = 0.05
    epsilon: NonNegative = 0.5
    samples: Count = 5000
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.percentiles[0] <= self.percentiles[1], "percentiles", "two numbers, p_min ≤ p_max")

    @property
    def request(self) -> Request:
        """Features of the input as it is, and of the input perturbed with this share and ε."""
        return replace(self.needs, second_pass=Perturb(1.0, float(self.epsilon), "flat", float(self.share)))

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the head and the sorted Q' of ID validation samples."""
        self.head_ = classifier(head, "AdaSCALE")
        train = drawn(training(train, "AdaSCALE"), self.samples, self.seed)
        self.shifts_ = torch.cat([self._shift(rows) for rows in train.batches()]).sort().values
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -torch.logsumexp(self._class_logits(x), dim=1)

    def _class_logits(self, x: FeatureSet) -> Tensor:
        self.learnt("head_")
        ratio = self._ratio(x.features, self._percentile(x))[:, None]
        if self.variant == "a":
            return self.head_(x.features * ratio.exp())
        return self.head_(x.features) * ratio.square()

    def _shift(self, x: FeatureSet) -> Tensor:
        """Return Q' (n,) float64; the order of summation changes it by no more than float64 rounding."""
        features, perturbed = x.features, x.perturbed
        most, top = (self._largest(features, percent) for percent in (self.k1, self.k2))
        correction = perturbed.gather(1, most).double().relu().sum(dim=1)
        shift = (features.gather(1, top).double() - perturbed.gather(1, top).double()).abs().sum(dim=1)
        return correction + self.weight * shift

    @staticmethod
    def _largest(features: Tensor, percent: float) -> Tensor:
        k = max(1, int(features.shape[1] * percent / 100))
        return features.topk(k, dim=1).indices

    def _percentile(self, x: FeatureSet) -> Tensor:
        """Return p (n,) float64."""
        seen = self.learnt("shifts_").to(x.features.device)
        below = torch.searchsorted(seen, self._shift(x), right=True).double() / len(seen)
        low, high = self.percentiles
        return low + (1 - below) * (high - low)

    def _ratio(self, features: Tensor, percentile: Tensor) -> Tensor:
        """Return r (n,) float32."""
        d = features.shape[1]
        count = d - torch.round(d * percentile / 100).long()
        least = d - round(d * self.percentiles[1] / 100)
        self.require(least >= 1, "percentiles", f"percentiles that keep at least one of {d} activations")
        sums = sorted_rows(features.relu()).flip(1).double().cumsum(dim=1)
        top = sums.gather(1, count[:, None] - 1)[:, 0]
        return (sums[:, -1] / torch.where(top == 0, 1.0, top)).to(features.dtype)
