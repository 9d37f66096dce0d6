"""Energies of features, weights or logits that are reshaped first."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from openbench.config.constraints import Count, NonNegative, Percentage, Percentile, Positive, Seed, Share
from openbench.core import FeatureSet, Field, Head, HeadMethod, Perturb, Request, Role, SoftmaxMethod, by_rows
from openbench.errors import MethodError
from openbench.methods import _stats as stats

Variant = Literal["a", "l"]
_Percentile = Annotated[float, Interval(gt=0, lt=100)]
_Kept = Annotated[float, Interval(gt=0, le=100)]  # per cent
_ENTRIES = 2**24  # of weights handled at a time
_TAIL = 1e-3  # share of training activations beyond each end of the intervals
_LENGTH = 1000.0  # of θ, as in the authors' code; it matters to the energy alone


@dataclass
class ReAct(stats.Learning, HeadMethod):
    """Energy after clipping features from above at a percentile of ID validation activations.

    score(x) = −log Σ_c exp(W min(f, t) + b)_c, t the percentile over all samples and dimensions.

    Args:
        percentile: in [0, 100]; the paper's default is 90.

    Raises:
        MethodError: a percentile outside [0, 100].

    Reference: Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021,
    arXiv 2111.12797.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, head=True)
    reference: ClassVar[str] = "Sun et al., NeurIPS 2021, arXiv 2111.12797"

    percentile: Percentage = 90.0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Find the threshold on ID validation features (n, d)."""
        values = train.features
        self.threshold_ = torch.tensor(stats.percentiles_of_all(values, (self.percentile,))[0])
        self.head_ = head

    def reshape(self, features: Tensor) -> Tensor:
        """Return min(f, t), (n, d)."""
        return torch.minimum(features, self.learnt("threshold_"))


@dataclass
class VRA(stats.Learning, HeadMethod):
    """Energy after clipping features from above and from below at percentiles of ID validation activations.

    score(x) = −log Σ_c exp(W min(max(f, t_low), t_high) + b)_c, both thresholds over all samples and dimensions.

    Args:
        high: percentile of the upper threshold, in [0, 100]; 90 by default.
        low: percentile of the lower threshold, in [0, 100], at most `high`; 10 by default.
        below: `lift` raises smaller values to the lower threshold, which made the published numbers; `zero` sets them
            to 0 as in the paper.

    Raises:
        MethodError: percentiles out of range or in the wrong order, or an unknown treatment.

    Reference: Xu et al., VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023,
    arXiv 2302.11716.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, head=True)
    reference: ClassVar[str] = "Xu et al., NeurIPS 2023, arXiv 2302.11716"

    high: Percentage = 90.0
    low: Percentage = 10.0
    below: Literal["lift", "zero"] = "lift"

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.low <= self.high, "low", f"0 to {self.high}, the upper percentile")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Find both thresholds on ID validation features (n, d)."""
        values = train.features
        self.low_, self.high_ = torch.tensor(stats.percentiles_of_all(values, (self.low, self.high)))
        self.head_ = head

    def reshape(self, features: Tensor) -> Tensor:
        """Return the clipped features (n, d)."""
        high, low = (float(self.learnt(name)) for name in ("high_", "low_"))
        if self.below == "zero":
            return torch.where(features < low, 0.0, features.clamp(max=high))
        return features.clamp(min=low, max=high)


def _kept(method: Any, features: Tensor) -> int:
    """How many of the features (n, d) stay when the method's percentile is removed.

    Raises:
        MethodError: none.
    """
    d = features.shape[1]
    k = stats.largest_kept(d, method.percentile)
    method.require(k >= 1, "percentile", f"a percentile that keeps at least one of {d} activations")
    return k


@dataclass
class ASH(HeadMethod):
    """Energy after keeping only the largest activations of each sample.

    score(x) = −log Σ_c exp(W r(f) + b)_c with k = d − round(d·percentile/100) entries kept; the rest becomes 0.
    B: each kept entry becomes Σf / k. P: kept entries stay. S: kept entries times exp(Σf / Σ kept).

    Args:
        percentile: share of activations removed, in [0, 100); 90 in the published tables, the paper sweeps 65 to 90.
        variant: `b`, `p` or `s`.

    Raises:
        MethodError: a percentile that keeps nothing, or an unknown variant.

    Reference: Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023,
    arXiv 2209.09858. The authors shape the spatial map before pooling; like OpenOOD's tables, this shapes the pooled
    vector.
    """

    reference: ClassVar[str] = "Djurisic et al., ICLR 2023, arXiv 2209.09858"

    percentile: Percentile = 90.0
    variant: Literal["b", "p", "s"] = "b"

    def reshape(self, features: Tensor) -> Tensor:
        """Return the shaped features (n, d)."""
        k = _kept(self, features)
        top, index = features.topk(k, dim=1, sorted=False)
        total = features.sum(dim=1, keepdim=True)
        if self.variant == "b":
            top = (total / k).expand_as(top)
        elif self.variant == "s":
            largest = top.sum(dim=1, keepdim=True)
            top = top * stats.gain(total, largest)
        return torch.zeros_like(features).scatter(1, index, top)


@dataclass
class SCALE(HeadMethod):
    """Energy after scaling each feature vector by how much of its mass lies in the largest activations.

    score(x) = −log Σ_c exp(W (f e^r) + b)_c, r = Σf divided by the sum of the k = d − round(d·percentile/100) largest
    entries of f.

    Args:
        percentile: share of activations outside the k largest, in [0, 100); 85 by default, as in the paper.

    Raises:
        MethodError: a percentile that keeps nothing.

    Reference: Xu et al., Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement, ICLR 2024,
    arXiv 2310.00227. A vector of zeros stays one (OpenOOD: NaN).
    """

    reference: ClassVar[str] = "Xu et al., ICLR 2024, arXiv 2310.00227"

    percentile: Percentile = 85.0

    def reshape(self, features: Tensor) -> Tensor:
        """Return the scaled features (n, d)."""
        largest = features.topk(_kept(self, features), dim=1, sorted=False).values.sum(dim=1, keepdim=True)
        return features * stats.gain(features.sum(dim=1, keepdim=True), largest)


@dataclass
class LTS(SoftmaxMethod):
    """Energy of logits scaled by how much of the feature's mass lies in its largest activations.

    score(x) = −log Σ_c exp(S z_c), S = (Σ_j a_j divided by the sum of the k largest a_j)², a = max(f, 0),
    k = d − round(d·percentile/100).

    Args:
        percentile: share of activations outside the k largest, in [0, 100); 95 by default.

    Raises:
        MethodError: a percentile that keeps nothing.

    Reference: Djurisic et al., Logit Scaling for Out-of-Distribution Detection, Machine Vision and Applications 2025,
    arXiv 2409.01175. The rectification is in the authors' code, not in the paper; it matters for features of either
    sign. A sample without activations keeps its logits (authors' code: NaN).
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    reference: ClassVar[str] = "Djurisic et al., MVA 2025, arXiv 2409.01175"

    percentile: Percentile = 95.0

    def _class_logits(self, x: FeatureSet) -> Tensor:
        active = x.features.clamp(min=0)
        largest = active.topk(_kept(self, active), dim=1, sorted=False).values.sum(dim=1)
        ratio = torch.where(largest > 0, active.sum(dim=1) / torch.where(largest > 0, largest, 1.0), 1.0)
        return x.logits * ratio.square()[:, None]


@dataclass
class AdaSCALE(stats.Learning, SoftmaxMethod):
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

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the head and the sorted Q' of ID validation samples."""
        self.head_ = head
        train = stats.drawn(train, self.samples, self.seed)
        self.shifts_ = torch.cat([self._shift(rows) for rows in train.batches()]).sort().values

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
        sums = stats.sorted_rows(features.relu()).flip(1).double().cumsum(dim=1)
        top = sums.gather(1, count[:, None] - 1)[:, 0]
        return (sums[:, -1] / torch.where(top == 0, 1.0, top)).to(features.dtype)


@dataclass
class RAS(stats.Learning, HeadMethod):
    """Energy after each feature has taken the values of a fixed profile, in the order of its own values.

    score(x) = −log Σ_c exp(W f′ + b)_c, f′_j = m_{rank of f_j in f}, m the mean over training samples of their features
    in ascending order.

    Raises:
        MethodError: no training split or no head.

    Reference: Guglielmo & Masana, Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection, ECCV 2026,
    arXiv 2604.08572. Among equal features, as the zeros of rectified ones, the earlier dimension takes the smaller
    value; the official code leaves it to an unstable sort.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, head=True)
    reference: ClassVar[str] = "Guglielmo & Masana, ECCV 2026, arXiv 2604.08572"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Average sorted training features (n, d), and keep the head."""
        total = torch.zeros(train.features.shape[1], dtype=torch.float64, device=train.device)
        for rows in train.batches():
            for part in torch.split(rows.features, stats.BLOCK):
                total += stats.sorted_rows(part).sum(dim=0, dtype=torch.float64)
        self.profile_ = (total / len(train)).float()
        self.head_ = head

    def reshape(self, features: Tensor) -> Tensor:
        """Return the profile in the order of each row, (n, d)."""
        profile = self.learnt("profile_").to(features.device)
        return torch.empty_like(features).scatter_(1, _order(features), profile.expand_as(features))


def _order(x: Tensor) -> Tensor:
    """Return which entry (n, d) of each row comes first, second, …, ascending; equal ones in the order of the row."""
    if x.device.type == "cpu":  # numpy takes less time than torch on a CPU
        return torch.from_numpy(np.argsort(x.numpy(), axis=1, kind="stable"))
    return x.argsort(dim=1, stable=True)


@dataclass
class DICE(stats.Learning, HeadMethod):
    """Energy of a head that keeps only the weights which contribute most on training features.

    score(x) = −log Σ_c exp((W ⊙ M) f + b)_c, M = [W ⊙ f̄ > its percentile over all classes and dimensions], f̄ the mean
    training feature.

    Args:
        percentile: share of weights removed, in [0, 100]; 90 by default, as in the paper.

    Raises:
        MethodError: a percentile out of range, no training split or no head.

    Reference: Sun & Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022, arXiv 2111.09805.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, head=True)
    reference: ClassVar[str] = "Sun & Li, ECCV 2022, arXiv 2111.09805"

    percentile: Percentage = 90.0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Find the weights that stay, from training features (n, d) and the head."""
        contribution = head.weight * stats.mean_feature(train).to(head.weight)
        keep = contribution > stats.percentiles_of_all(contribution, (self.percentile,))[0]
        self.head_ = Head(torch.where(keep, head.weight, 0.0), head.bias)

    def reshape(self, features: Tensor) -> Tensor:
        """Return the features (n, d) as they are: it is the head that changes."""
        return features


@dataclass
class LINe(stats.Learning, HeadMethod):
    """Energy of clipped features with only the neurons and weights that matter for the predicted class.

    score(x) = −log Σ_c exp(Σ_j W_cj [|I_ŷj| W_cj > s_ŷ] [I_ŷj > t_ŷ] min(f_j, clip) + b_c), I_cj = w_cj μ_cj, μ_c the
    mean training feature of class c, t_ŷ and s_ŷ percentiles of I_ŷ and of |I_ŷ| ⊙ W, ŷ predicted from min(f, clip).

    I is the class' mean of the first-order Taylor (Shapley) contributions f ⊙ ∂z_y/∂f = f ⊙ w_y: no backward pass.

    Args:
        weight_percentile: share of weights removed, in [0, 100); 10 by default.
        activation_percentile: share of neurons removed, in [0, 100); 10 by default.
        clip: largest activation, > 0; 0.8 by default. Networks with larger activations need a larger one.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, no head, NaN, or labels outside the head's.

    Reference: Ahn et al., LINe: Out-of-Distribution Detection by Leveraging Important Neurons, CVPR 2023,
    arXiv 2303.13995. The defaults are the authors' for ImageNet; theirs are 90, 90, 1.0 for CIFAR-10 and 90, 10, 1.0
    for CIFAR-100. A class without training samples takes the mean of all.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS, head=True)
    reference: ClassVar[str] = "Ahn et al., CVPR 2023, arXiv 2303.13995"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"clip"})

    weight_percentile: Percentile = 10.0
    activation_percentile: Percentile = 10.0
    clip: Positive = 0.8

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn each class' important neurons and thresholds, from training features (n, d), labels and the head."""
        weight = head.weight.cpu()
        importance = weight * stats.class_means(train, head.num_classes).cpu().float()
        limit = np.percentile(importance.numpy(), self.activation_percentile, axis=1, keepdims=True)
        self.neurons_ = importance > torch.from_numpy(limit)
        self.importance_ = importance.abs()
        # (classes, classes, d) at once would be 8 GB for ImageNet.
        thresholds = [
            np.percentile((part[:, None] * weight).reshape(len(part), -1).numpy(), self.weight_percentile, axis=1)
            for part in torch.split(self.importance_, max(1, _ENTRIES // weight.numel()))
        ]
        self.thresholds_ = torch.from_numpy(np.concatenate(thresholds))
        self.head_ = head

    def reshape(self, features: Tensor) -> Tensor:
        """Return min(f, clip) with the unimportant neurons of the predicted class at 0, (n, d)."""
        return self._pruned(features)[0]

    def _pruned(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The reshaped features (n, d), and the predicted classes (n,)."""
        clipped = features.clamp(max=self.clip)
        predicted = self.head_(clipped).argmax(dim=1)
        return clipped * self.neurons_.to(features.device)[predicted], predicted

    def _class_logits(self, x: FeatureSet) -> Tensor:
        thresholds = self.learnt("thresholds_").to(x.features.device)
        weight, bias = self.head_.weight.to(x.features.device), self.head_.bias.to(x.features.device)
        features, predicted = self._pruned(x.features)
        logits = features.new_empty(len(features), len(weight))
        # A pruned head (c, d) is made once for all samples of a class, not once for each.
        for c in torch.bincount(predicted).nonzero()[:, 0].tolist():
            important = self.importance_[c].to(weight.device) * weight > thresholds[c]
            rows = (predicted == c).nonzero()[:, 0]
            logits[rows] = by_rows(features[rows], torch.where(important, weight, 0.0))
        return logits + bias


@dataclass
class OptFS(stats.Learning):
    """Largest logit of features that are weighted by how much activations of their size add to it on training samples.

    score(x) = −Σ_j w_ŷj θ(f_j) f_j, θ constant on each of K intervals between the .001 and .999 quantiles of all
    training activations and 0 outside, θ_k ∝ the mean over training samples of Σ_j w_ŷj f_j [f_j in interval k].

    Args:
        intervals: K ≥ 1; 100 by default.
        form: `max_logit` as above; `energy` is −log Σ_c exp(Σ_j w_cj θ(f_j) f_j + b_c) with ‖θ‖ = 1000.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, no head, or quantiles that are equal.

    Reference: Zhao et al., Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection, ICLR 2024,
    arXiv 2402.00865. The closed form that needs no OOD sample, with predictions ŷ of the unshaped logits.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS, head=True)
    reference: ClassVar[str] = "Zhao et al., ICLR 2024, arXiv 2402.00865"

    intervals: Count = 100
    form: Literal["max_logit", "energy"] = "max_logit"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn θ from training features (n, d), logits (n, c) and the head, in two passes."""
        self.head_ = head
        low, high = _quantiles(train)
        if not low < high:
            raise MethodError(f"OptFS.fit: the .001 and .999 quantiles of training activations are both {low:.6g}")
        self.bounds_ = torch.linspace(low, high, self.intervals + 1, dtype=torch.float64)
        total = torch.zeros(self.intervals + 2, dtype=torch.float64)
        for rows in train.batches():
            gain = self._weights(rows.logits) * rows.features
            place = torch.bucketize(rows.features.double(), self.bounds_.to(gain.device), right=True)
            total += torch.bincount(place.reshape(-1), gain.double().reshape(-1), minlength=len(total)).cpu()
        total[0] = total[-1] = 0  # outside
        length = float(torch.linalg.vector_norm(total))
        # A head of zeros gives no gain anywhere: θ is 0 then.
        self.theta_ = (total * (_LENGTH / length if length > 0 else 0.0)).float()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        theta = self.learnt("theta_").to(x.features.device)
        place = torch.bucketize(x.features.double(), self.bounds_.to(x.features.device), right=True)
        shaped = x.features * theta[place]
        if self.form == "energy":
            return -torch.logsumexp(self.head_(shaped), dim=1)
        return -(self._weights(x.logits) * shaped).sum(dim=1)

    def _weights(self, logits: Tensor) -> Tensor:
        """Row of the head (n, d) that belongs to each prediction."""
        return self.head_.weight.to(logits.device)[logits.argmax(dim=1)]


def _quantiles(train: FeatureSet) -> tuple[float, float]:
    """The .001 and .999 quantiles of all training activations, exact and interpolated linearly.

    Only the activations beyond them stay in memory.
    """
    position = (train.features.numel() - 1) * _TAIL
    below = int(position)
    size = min(below + 2, train.features.numel())
    least = most = torch.empty(0)
    for rows in train.batches():
        values = rows.features.reshape(-1).cpu()
        least, most = _smallest(least, values, size), _smallest(most, -values, size)
    least, most = (x.topk(size, largest=False).values.double() for x in (least, most))
    low, high = (x[below] + (position - below) * (x[min(below + 1, size - 1)] - x[below]) for x in (least, most))
    return float(low), -float(high)


def _smallest(former: Tensor, values: Tensor, count: int) -> Tensor:
    """Return at most 2·`count` of former and new values, the `count` smallest among them, in no order."""
    if len(former) >= count:
        # Nearly all new values are larger than the `count`-th: selecting among them would cost the most.
        values = values[values < former[:count].max()]
    both = torch.cat([former, values])
    return both if len(both) <= 2 * count else both.topk(count, largest=False, sorted=False).values
