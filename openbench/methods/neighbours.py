"""Nearest neighbours, besides KNN itself."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative, Seed, Share
from openbench.core import FeatureSet, Field, Head, Request, StreamingMethod, by_rows
from openbench.methods import _stats as stats
from openbench.methods._bank import Bank

_OPENOOD_BATCH = 200
_BANK_CHUNK = 2048
_QUERY_CHUNK = 512  # whose relations to a chunk of the bank, 4 MiB, stay near the processor
_ENTRIES = 2**24  # of distances handled at a time
_CLOSEST = 1e-12  # squared distances below it are rounding, and the logarithm of 0 is not a number
# Bounds between which the likelihood is searched; far outside [−2, 4] a feature has one value but for a few samples.
_GRID = (-16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 18.0)
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 26
_LARGEST = 1e12  # of a transformed value: its square summed over features stays a float32
_CELLS = 2048  # on each side of 0
_BLOCK = 256  # images of a stream whose turns are taken at once


@dataclass
class NNGuide(stats.Learning):
    """Negative energy confidence, weighted by how near and how confident the closest training samples are.

    score(x) = −E(z) · mean of the k largest ⟨f̂, f̂_i⟩ E(z_i), E(z) = log Σ_c exp z_c, f̂ = f/‖f‖, i over a bank of
    training samples.

    Args:
        k: neighbours, cut to the size of the bank; 100 by default.
        alpha: share of the training samples in the bank, in (0, 1]; .01 by default, at least k samples.
        bank: `balanced` draws equally many samples of each class, by `seed`; `first` takes them in the order of the
            manifest up to a whole batch of 200, as OpenOOD did for CIFAR-10, where they are all cats.
        seed: of the balanced draw.

    Raises:
        MethodError: a hyper-parameter out of range, or no training split.

    Reference: Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023, arXiv 2309.14888.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS, Field.LABELS)
    reference: ClassVar[str] = "Park et al., ICCV 2023, arXiv 2309.14888"

    k: Count = 100
    alpha: Share = 0.01
    bank: Literal["balanced", "first"] = "balanced"
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Choose the bank and keep its guidance f̂_i E(z_i), (m, d)."""
        rows = train[self._chosen(train)]
        energy: Tensor = torch.logsumexp(rows.logits, dim=1, keepdim=True)
        self.guides_ = stats.row_normalise(rows.features) * energy

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        guides = self.learnt("guides_").to(x.features.device)
        similarity = by_rows(stats.row_normalise(x.features), guides)
        guidance = similarity.topk(min(self.k, len(guides)), dim=1, sorted=False).values.mean(dim=1)
        return -torch.logsumexp(x.logits, dim=1) * guidance

    def _chosen(self, train: FeatureSet) -> Tensor:
        n = len(train)
        if self.bank == "first":
            whole = (int(self.alpha * n / _OPENOOD_BATCH) + 1) * _OPENOOD_BATCH
            return torch.arange(min(whole, n))
        size = min(n, max(round(self.alpha * n), self.k))
        return stats.balanced_draw(train.labels, size, self.seed)


@dataclass
class Relation(stats.Learning):
    """Negative sum of a sample's relations to all training samples.

    score(x) = −Σ_i [r_i > threshold] r_i^power, r_i = max(cos(f, f_i), 0) · ⟨p, p_i⟩, p = softmax(z), i over training
    samples.

    Args:
        power: ≥ 0; 1 by default.
        threshold: relations up to it count as none; .03 by default.

    Raises:
        MethodError: a hyper-parameter out of range, or no training split.

    Reference: Kim et al., Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data,
    NeurIPS 2023, arXiv 2301.12321.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS)
    reference: ClassVar[str] = "Kim et al., NeurIPS 2023, arXiv 2301.12321"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"power"})

    power: NonNegative = 1.0
    threshold: NonNegative = 0.03

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep training features (n, d) and logits (n, c) where they are."""
        self.features_, self.logits_ = train.features, train.logits

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features, logits = self.learnt("features_"), self.learnt("logits_")
        unit, p = _unit(x.features), torch.softmax(x.logits, dim=1)
        total = torch.zeros(len(unit), dtype=torch.float64, device=unit.device)
        for start in range(0, len(features), _BANK_CHUNK):
            bank = _unit(features[start : start + _BANK_CHUNK].to(unit.device))
            bank_p = torch.softmax(logits[start : start + _BANK_CHUNK].to(unit.device), dim=1)
            for low in range(0, len(unit), _QUERY_CHUNK):
                part = slice(low, low + _QUERY_CHUNK)
                relation = by_rows(unit[part], bank).mul_(by_rows(p[part], bank_p))
                # Small relations, and negative ones, become exact zeros.
                relation = functional.threshold(relation, self.threshold, 0.0, inplace=True)
                raised = relation.sign_() if self.power == 0 else relation.pow_(self.power)
                total[part] += raised.sum(dim=1)
        return -total.float()


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(dim=1, keepdim=True) + 1e-10).sqrt()


@dataclass
class CFOOD(stats.Learning):
    """Share of neighbours that references must take in before enough of them count the sample as a neighbour.

    score(x) = the smallest κ of a grid at which at least a share `share` of references i has ‖f̂ − f̂_i‖ ≤ the distance
    of i to its κm-th nearest of the other references, f̂ = f/‖f‖; 1 if there is none. m references are drawn from
    training samples.

    Args:
        alpha: share of training samples drawn, in (0, 1]; .1 by default. The fit costs the square of the number of
            references: of 1.28 million features of 2,048, an hour of one processor at .1, under a minute at .01.
        share: share of references, in (0, 1]; .01 by default.
        seed: of the draw.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, or fewer than two references.

    Reference: Angiulli et al., CF-OOD: Concentration-Free Density Estimation for Reliable Out-of-Distribution
    Detection, 2026; the measure is Angiulli, CFOF, ACM TKDD 2020, arXiv 1901.04992. Grid of 230 values as in OpenOOD's
    `cfood`: steps of .001 to .1, of .004938 to .5, of .01 to .99; so scores tie. OpenOOD's draw is not seeded.
    """

    reference: ClassVar[str] = "Angiulli et al., 2026; CFOF: Angiulli, TKDD 2020, arXiv 1901.04992"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"share"})

    alpha: Share = 0.1
    share: Share = 0.01
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Draw references from training features (n, d); learn the distances to their own neighbours."""
        m = int(self.alpha * len(train))
        self.require(m >= 2, "alpha", f"at least {2 / len(train):.3g} for {len(train)} samples: two references")
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))[:m].sort().values
        self.references_ = stats.row_normalise(train.features[drawn].double())
        self.squares_ = self.references_.square().sum(dim=1)
        values = np.concatenate(
            [np.linspace(0.001, 0.1, 100), np.linspace(0.105, 0.5, 81), np.linspace(0.51, 0.99, 49)]
        )
        # Of values that ask for the same neighbour the first stays.
        places, first = np.unique((values * m - 1).astype(np.int64), return_index=True)
        self.grid_ = torch.from_numpy(np.append(values[first], 1.0)).float()
        size, radii = max(1, _ENTRIES // m), []
        for part, squares in zip(torch.split(self.references_, size), torch.split(self.squares_, size), strict=True):
            distances = stats.sorted_rows(_squared_distances(part, self.references_, squares, self.squares_))
            radii.append(distances[:, places + 1])  # the first is to itself
        self.radii_ = torch.cat(radii)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        radii, grid = self.learnt("radii_").to(x.features.device), self.grid_.to(x.features.device)
        references, squares = (t.to(x.features.device) for t in (self.references_, self.squares_))
        # Rounding must not ask for one reference more than the share names.
        enough = max(1, int(np.ceil(self.share * len(references) - 1e-9)))
        scores = []
        for part in torch.split(stats.row_normalise(x.features.double()), max(1, _ENTRIES // len(references))):
            # For each reference the first grid value whose ball holds the sample; the `enough`-th smallest decides.
            first = torch.searchsorted(radii, _squared_distances(references, part, squares, part.square().sum(dim=1)))
            scores.append(grid[first.kthvalue(enough, dim=0).values])
        return torch.cat(scores)


def _squared_distances(a: Tensor, b: Tensor, a_squares: Tensor, b_squares: Tensor) -> Tensor:
    """(n, m) between rows of a (n, d) and of b (m, d), whose squared lengths are (n,) and (m,)."""
    return torch.addmm(b_squares, a, b.T, alpha=-2).add_(a_squares[:, None]).clamp_(min=0)


@dataclass
class CombOOD(stats.Learning):
    """Logarithm of the distance to the k-th neighbour plus the squared Mahalanobis distance of normalised features.

    score(x) = √d log ‖f̂ − f̂₍k₎‖² + gᵀ (Σ + I)⁻¹ g, f̂ = f/‖f‖, f̂₍k₎ the k-th nearest training sample, g the entries of f̂
    brought to normal shape by Yeo and Johnson's transform and then to mean 0 and standard deviation 1, Σ their
    covariance.

    Args:
        k: which neighbour; 50 by default.

    Raises:
        MethodError: k < 1, fewer than k training samples, NaN, or training features that are all equal.

    Reference: Rajasekaran et al., COMBOOD: A Semiparametric Approach for Detecting Out-of-distribution Data for Image
    Classification, SDM 2024, arXiv 2602.07042. Both distances see the penultimate feature, one of the combinations in
    the authors' code; their tables take the Mahalanobis distance of the least and largest activation of every layer
    instead. Exponents are kept within −16 to 18.
    """

    reference: ClassVar[str] = "Rajasekaran et al., SDM 2024, arXiv 2602.07042"

    k: Count = 50

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn the transform and the covariance of training features (n, d), and keep them where they are."""
        self.require(self.k <= len(train), "k", f"1 to {len(train)}, the number of training samples")
        self.bank_ = Bank(train.features, unit=True)
        plain = stats.moments(train, "CombOOD", stats.unit_features, by_class=False)
        self.center_, self.scale_ = plain.mean(), stats.inverse_spread(plain.mean(), plain.total_covariance())

        standard = (self._standard(rows.features) for rows in train.batches(stats.FIT_BATCH))
        exponents = best_exponents(standard, len(train))
        # A feature that does not vary has no shape.
        self.exponents_ = torch.where(self.scale_.cpu() > 0, exponents, 1.0).to(self.scale_.device)
        shaped = stats.moments(train, "CombOOD", lambda rows: self._shaped(rows.features), by_class=False)
        covariance = shaped.total_covariance()
        inverse = stats.inverse_spread(shaped.mean(), covariance)
        correlation = covariance * inverse * inverse[:, None] * (len(train) / max(1, len(train) - 1))
        identity = torch.eye(len(inverse), dtype=torch.float64, device=inverse.device)
        factor = torch.linalg.cholesky(correlation + identity)
        self.mean_ = shaped.mean()
        self.whiten_ = inverse[:, None] * torch.linalg.solve_triangular(factor, identity, upper=False).T

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        whiten = self.learnt("whiten_").to(x.features.device)
        far = (
            self.bank_.kth_squared_distance(stats.row_normalise(x.features), self.k).double().clamp(min=_CLOSEST).log()
        )
        white = by_rows(self._shaped(x.features) - self.mean_.to(whiten.device), whiten.T)
        return (math.sqrt(len(whiten)) * far + white.square().sum(dim=1)).float()

    def _standard(self, features: Tensor) -> Tensor:
        """(n, d) float64, unit length, then mean 0 and standard deviation 1 over training samples."""
        unit = stats.row_normalise(features.double())
        return (unit - self.center_.to(unit.device)) * self.scale_.to(unit.device)

    def _shaped(self, features: Tensor) -> Tensor:
        return yeo_johnson(self._standard(features), self.exponents_.to(features.device))


def yeo_johnson(x: Tensor, exponents: Tensor) -> Tensor:
    """Return ((1 + x)^λ − 1)/λ for x ≥ 0 and −((1 − x)^(2−λ) − 1)/(2 − λ) for x < 0, logarithms at 0 and 2, (n, d)."""
    power, logs = torch.where(x >= 0, exponents, 2 - exponents), torch.log1p(x.abs())
    return _value(x, logs, power, torch.expm1(power * logs)).clamp(-_LARGEST, _LARGEST)


def best_exponents(batches: Iterable[Tensor], n: int) -> Tensor:
    """Return the λ (d,) in [−16, 18] under which each transformed feature is most likely normal.

    The likelihood is −n/2 log var ψ + (λ − 1) Σ sign(x) log(1 + |x|), searched on a grid, then by golden sections. It
    is read off a histogram of sign(x) log(1 + |x|), in whose cells values count by their number, mean and variance: ψ
    is expanded to second order around each mean, which moves λ by less than the search leaves open.

    Args:
        batches: (k, d) float64 parts of n samples whose features have mean 0 and standard deviation 1, or are all 0.
        n: number of samples.

    Reference: Yeo & Johnson, A new family of power transformations to improve normality or symmetry, Biometrika 2000.
    """
    table = _Histograms.of(batches, n)
    d = table.mean.shape[1]
    like = torch.stack([table.likelihood(torch.full((d,), g).double()) for g in _GRID])
    best = like.argmax(dim=0)
    grid = torch.tensor(_GRID, dtype=torch.float64)
    low, high = grid[(best - 1).clamp(min=0)], grid[(best + 1).clamp(max=len(grid) - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = table.likelihood(left), table.likelihood(right)
    for _ in range(_STEPS):
        lower = at_left > at_right  # the maximum lies left of `right`
        low, high = torch.where(lower, low, left), torch.where(lower, right, high)
        probe = torch.where(lower, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_probe = table.likelihood(probe)
        left, right = torch.where(lower, probe, right), torch.where(lower, left, probe)
        at_left, at_right = torch.where(lower, at_probe, at_right), torch.where(lower, at_left, at_probe)
    return (low + high) / 2


@dataclass(frozen=True)
class _Histograms:
    """Histograms of u = sign(x) log(1 + |x|), float64 on the CPU.

    Args:
        share: (cells, d) share of the samples in each cell.
        mean: (cells, d) of u in the cell.
        variance: (cells, d) of u in the cell.
    """

    share: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, batches: Iterable[Tensor], n: int) -> "_Histograms":
        """Fill the cells in one pass; no cell holds values of both signs, at whose border ψ has no third derivative."""
        # A value of n with standard deviation 1 cannot exceed √n.
        width = math.log1p(math.sqrt(n)) / (_CELLS - 1)
        sums = torch.zeros(3, 0)
        for x in batches:
            d = x.shape[1]
            u = x.sign() * torch.log1p(x.abs()) / width
            cell = u.floor().clamp_(-_CELLS, _CELLS - 1)
            place = ((cell.long() + _CELLS) * d + torch.arange(d, device=x.device)).reshape(-1)
            offset = (u - cell - 0.5).reshape(-1)  # from the middle: sums of small numbers keep their digits
            size = 2 * _CELLS * d
            parts = [torch.bincount(place, weight, size) for weight in (None, offset, offset.square())]
            sums = torch.stack([p.double() for p in parts]).cpu() + (sums if sums.numel() else 0.0)
        count, first, second = sums.reshape(3, 2 * _CELLS, -1)
        middle = (torch.arange(-_CELLS, _CELLS, dtype=torch.float64) + 0.5)[:, None]
        used = count.sum(dim=1) > 0
        count, first, second, middle = count[used], first[used], second[used], middle[used]
        mean = first / count.clamp(min=1)
        variance = second / count.clamp(min=1) - mean.square()
        return cls(count / n, (middle + mean) * width, variance.clamp(min=0) * width**2)

    def likelihood(self, exponents: Tensor) -> Tensor:
        """Log-likelihood per sample (d,) of exponents (d,); meaningless where a feature does not vary."""
        u, power = self.mean, torch.where(self.mean >= 0, exponents, 2 - exponents)
        grown = torch.expm1(power * u.abs())
        value = _value(u, u.abs(), power, grown)
        # The derivatives of ψ by u are e^(power·|u|) and ±power e^(power·|u|), and 0 where ψ is cut.
        slope = torch.where(value.abs() <= _LARGEST, grown + 1, 0.0)
        value = value.clamp(-_LARGEST, _LARGEST) + u.sign() * power * slope * self.variance / 2
        center = (self.share * value).sum(dim=0)
        spread = (self.share * ((value - center).square() + slope.square() * self.variance)).sum(dim=0)
        tilt = (self.share * u).sum(dim=0)
        return (exponents - 1) * tilt - spread.log() / 2


def _value(x: Tensor, logs: Tensor, power: Tensor, grown: Tensor) -> Tensor:
    """The transform of x with log(1 + |x|) and (1 + |x|)^power − 1, which keeps its digits for small powers."""
    return x.sign() * torch.where(power == 0, logs, grown / torch.where(power == 0, 1.0, power))


@dataclass
class Dictionary:
    """The entries of OODD's dictionary, in the order in which they came.

    Args:
        features: (q, d) unit features.
        similarity: (q,) to the ID bank: the lower, the longer it stays.
    """

    features: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class _Rows:
    """Some rows of a tensor that may be memory-mapped, read when they are asked for."""

    whole: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        return self.whole[self.rows[index]]


@dataclass
class OODD(stats.Learning, StreamingMethod[Dictionary]):
    """Similarity to the test images that looked most OOD so far, less the one to confident training images.

    score(x_i) = cos_{(k₂)}(f̂_i, D_i) − cos_{(k₁)}(f̂_i, B), cos_{(k)}(f̂, S) the k-th largest cosine to the features in
    S; B the most confident training samples, the same number of each class; D_i those `queue` of x_1 … x_i whose
    cos_{(k₁)} to B is lowest.

    Args:
        k1: which neighbour in the bank; 5 (CIFAR-10), 10 (CIFAR-100), 100 (ImageNet).
        k2: which neighbour in the dictionary, where an image that is in it is its own first; 5.
        share: of the training samples that are in the bank; ½.
        queue: entries of the dictionary; 128 (CIFAR-10), 512 (CIFAR-100), 2048 (ImageNet).

    Raises:
        MethodError: no training split, or fewer than k1 samples in the bank.

    Reference: Yang et al., OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary, CVPR 2025,
    arXiv 2503.10468. The official code puts 512 images into the dictionary before it scores any of them, so that a
    score depends on later images; here each image is put in and scored before the next. While the dictionary has fewer
    than k2 entries, the last of them counts. Training images are seen once, not in several augmentations of which the
    most confident is kept, and there are no generated outliers to begin with (the released scripts use none either).
    The bank is read from the cached training features, so it may be larger than memory.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS, Field.LABELS)
    reference: ClassVar[str] = "Yang et al., CVPR 2025, arXiv 2503.10468"

    k1: Count = 5
    k2: Count = 5
    share: Share = 0.5
    queue: Count = 128

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Choose the bank among training features (n, d), by logits (n, c) and labels (n,)."""
        confidence = torch.cat([stats.max_softmax(rows.logits.double()) for rows in train.batches()]).cpu()
        chosen = _most_confident(confidence, train.labels.cpu(), int(self.share * len(train)))
        self.require(self.k1 <= len(chosen), "k1", f"1 to {len(chosen)}, the number of samples in the bank")
        self.bank_ = Bank(_Rows(train.features, chosen), unit=True)
        self.dim_ = train.features.shape[1]

    def memory(self) -> Dictionary:
        """Return an empty dictionary."""
        self.learnt("bank_")
        return Dictionary(torch.empty(0, self.dim_), torch.empty(0))

    def score_next(self, x: FeatureSet, memory: Dictionary) -> Tensor:
        """Return the scores (n,) float32 of the next n images, each after it has had its turn in the dictionary."""
        bank: Bank = self.learnt("bank_")  # type: ignore[assignment]
        unit = stats.row_normalise(x.features)
        # For all images at once, since the bank is read once for them. Unit vectors at squared distance s have cosine
        # 1 − s/2.
        similarity = 1 - bank.kth_squared_distance(unit, self.k1) / 2
        blocks = zip(torch.split(unit, _BLOCK), torch.split(similarity, _BLOCK), strict=True)
        return torch.cat([self._in_turn(u, s, memory) for u, s in blocks]) - similarity

    def _in_turn(self, unit: Tensor, similarity: Tensor, memory: Dictionary) -> Tensor:
        """cos_{(k₂)}(f̂_i, D_i) (n,) for each image of a block, all turns at once; the memory becomes D_n."""
        former = memory.features.to(unit.device)
        entries = torch.cat([former, unit])
        key = torch.cat([memory.similarity.to(unit.device), similarity])
        came = torch.arange(len(entries), device=unit.device)
        turn = came[len(former) :]  # the position of each image of the block among all entries
        # Whether entry k goes before entry j: it is less similar to ID, or as similar and came first.
        before = (key[:, None] < key) | ((key[:, None] == key) & (came[:, None] < came))
        ahead = before[: len(former)].sum(dim=0) + before[len(former) :].cumsum(dim=0)
        inside = (came <= turn[:, None]) & (ahead < self.queue)
        cosines = by_rows(unit, entries).masked_fill(~inside, -torch.inf)
        ranked = cosines.topk(min(self.k2, len(entries)), dim=1).values
        last = inside.sum(dim=1).clamp(max=self.k2) - 1
        memory.features, memory.similarity = entries[inside[-1]], key[inside[-1]]
        return ranked.gather(1, last[:, None])[:, 0]


def _most_confident(confidence: Tensor, labels: Tensor, count: int) -> Tensor:
    """The ascending rows (count,) that a turn of all classes after the other chooses, each its most confident left."""
    order = confidence.argsort(descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = stats.ranks_in_class(labels[order])
    # One number that orders by place in the class, then by class.
    return (place * (int(labels.max()) + 1) + labels).argsort()[:count].sort().values
