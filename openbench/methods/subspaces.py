"""Parts of features in or outside a principal subspace."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import Count, Fraction, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Request, Role, by_rows
from openbench.errors import MethodError
from openbench.methods import _stats as stats


class OutsideSubspace(stats.Learning):
    """Reads the part of features outside a principal subspace."""

    dim: int | Literal["auto"]

    def _learn_subspace(self, train: FeatureSet, head: Head, automatic: int) -> None:
        """Learn the origin u = −W⁺b, and the eigenvectors of Σ (f − u)(f − u)ᵀ after the `dim` largest."""
        d = head.weight.shape[1]
        dim = automatic if self.dim == "auto" else self.dim
        self.require(dim < d, "dim", f"1 to {d - 1} for features of dimension {d}")
        # Rows of W that sum to zero lower its rank: the inverse of what rounding leaves there would be noise.
        inverse: Tensor = torch.linalg.pinv(head.weight.double(), rtol=1e-5)
        origin = -inverse @ head.bias.double()
        covariance = stats.moments(train, type(self).__name__, by_class=False).covariance_around(origin)
        _, vectors = torch.linalg.eigh(covariance)  # ascending
        self.origin_ = origin.float()
        self.residual_ = vectors[:, : d - dim].float()

    def _residual(self, features: Tensor) -> Tensor:
        origin, basis = self.learnt("origin_").to(features.device), self.learnt("residual_").to(features.device)
        return torch.linalg.vector_norm(by_rows(features - origin, basis.T), dim=1)


@dataclass
class ViM(OutsideSubspace):
    """Norm of the feature's part outside the principal subspace, scaled to logits, less the energy.

    score(x) = α‖(f − u) N‖ − log Σ_c exp z_c, with u = −W⁺ b, N the eigenvectors of Σ (f − u)(f − u)ᵀ after the `dim`
    largest, and α = mean max_c z_c / mean ‖(f − u) N‖ over training samples.

    Args:
        dim: size of the principal subspace, below d; `auto` is 256, as in the published tables, and d/2 for networks
            with d ≤ 256. (The paper: 1000 for d = 2048, 512 for smaller networks.)

    Raises:
        MethodError: `dim` outside 1 to d − 1, or features of rank `dim` or less: no residual would be left.

    Reference: Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022, arXiv 2203.10807. W⁺ has a
    relative cut-off of 1e-5; OpenOOD's 1e-15 inverts noise where the rows of W sum to zero.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS, head=True)
    reference: ClassVar[str] = "Wang et al., CVPR 2022, arXiv 2203.10807"

    dim: Count | Literal["auto"] = "auto"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn origin, residual subspace and α from training features (n, d) and logits (n, c)."""
        d = head.weight.shape[1]
        self._learn_subspace(train, head, 256 if d > 256 else d // 2)
        top = residual = whole = 0.0
        for rows in train.batches():
            top += float(rows.logits.amax(dim=1).double().sum())
            residual += float(self._residual(rows.features).double().sum())
            whole += float(torch.linalg.vector_norm(rows.features - self.origin_, dim=1).double().sum())
        # Float32 products leave about 1e-7 of the feature in directions that it does not use: α would be their inverse.
        if residual <= 1e-5 * whole:
            raise MethodError(f"ViM: the residual of {len(train)} training samples is rounding noise — lower dim")
        self.alpha_ = torch.tensor(top / residual)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        alpha = self.learnt("alpha_").to(x.features.device)
        return alpha * self._residual(x.features) - torch.logsumexp(x.logits, dim=1)


@dataclass
class Residual(OutsideSubspace):
    """Norm of the feature's part outside the principal subspace.

    score(x) = ‖(f − u) N‖, u = −W⁺ b, N the eigenvectors of Σ (f − u)(f − u)ᵀ after the `dim` largest, the sum over ID
    validation samples.

    Args:
        dim: size of the principal subspace, below d; `auto` is OpenOOD's 512 for networks with d ≥ 1024 and d/2 for
            smaller ones, where 512 would leave nothing.

    Raises:
        MethodError: `dim` outside 1 to d − 1: no direction would be left; features that are all equal or not finite.

    Reference: Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022, arXiv 2203.10807. Fitted on
    ID validation as in OpenOOD; the paper uses training features.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, head=True)
    reference: ClassVar[str] = "Wang et al., CVPR 2022, arXiv 2203.10807"

    dim: Count | Literal["auto"] = "auto"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn origin and residual directions from ID validation features (n, d) and the head."""
        self._learn_subspace(train, head, min(512, head.weight.shape[1] // 2))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return self._residual(x.features)


@dataclass
class NECO(stats.Learning):
    """Negative share of the feature's length that lies in the principal subspace of training features.

    score(x) = −‖P(h − h̄)‖ / ‖h‖ · max_c z_c, h = (f − f̄)/σ with mean and standard deviation of each training feature, P
    the `dim` eigenvectors of the covariance of h with the largest eigenvalues.

    Args:
        dim: size of the subspace, 1 to d − 1; `auto` takes the fewest eigenvectors with 90 % of the variance, but
            leaves one out at least.
        standardise: False leaves features as they are, h = f, which the authors advise where classes are well
            separated; then h̄ is the mean feature.
        max_logit: whether the share is multiplied by the largest logit: the authors do for every architecture but
            ResNets.

    Raises:
        MethodError: `dim` out of range, no training split, or training features that are all equal.

    Reference: Ben Ammar et al., NECO: NEural Collapse Based Out-of-distribution detection, ICLR 2024, arXiv 2310.06823.
    The mean is subtracted above but not below the line, as in the authors' code; it matters without standardising only.
    Constant features are left out. A negative largest logit turns the order of the share, as in the paper's formula.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS)
    reference: ClassVar[str] = "Ben Ammar et al., ICLR 2024, arXiv 2310.06823"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"max_logit"})

    dim: Count | Literal["auto"] = "auto"
    standardise: bool = True
    max_logit: bool = True

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn mean, spread and principal subspace of training features (n, d) in one pass."""
        m = stats.moments(train, "NECO", by_class=False)
        mean, covariance = m.mean(), m.total_covariance()
        # Constant features stay zero, also where a test sample differs by rounding.
        scale = stats.inverse_spread(mean, covariance)
        if not self.standardise:
            scale = torch.ones_like(scale)
        values, vectors = torch.linalg.eigh(covariance * scale * scale[:, None])  # ascending
        d = len(values)
        dim = principal_count(values, 0.9) if self.dim == "auto" else self.dim
        self.require(1 <= dim < d, "dim", f"1 to {d - 1} for features of dimension {d}")
        self.mean_, self.scale_ = mean.float(), scale.float()
        self.principal_ = vectors[:, d - dim :].float()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        principal = self.learnt("principal_").to(x.features.device)
        centred = (x.features - self.mean_.to(x.features.device)) * self.scale_.to(x.features.device)
        inside: Tensor = torch.linalg.vector_norm(by_rows(centred, principal.T), dim=1)
        whole: Tensor = torch.linalg.vector_norm(centred if self.standardise else x.features, dim=1)
        share = inside / whole.clamp(min=torch.finfo(whole.dtype).eps)
        return -share * x.logits.amax(dim=1) if self.max_logit else -share


@dataclass
class KPCA(stats.Learning):
    """Reconstruction error of the mapped feature by the principal components of mapped training features.

    score(x) = ‖(I − U Uᵀ)(Φ(f) − Φ̄)‖, Φ̄ and U mean and first principal components over training samples, with
    Φ(f) = √(2/M) cos(√(2γ) Ω f/‖f‖ + u) for entries of Ω standard normal and of u uniform in [0, 2π): Φ(f)·Φ(g)
    approximates exp(−γ‖f/‖f‖ − g/‖g‖‖²).

    Args:
        kernel: `cosine_gaussian` as above (CoRP); `cosine` is Φ(f) = f/‖f‖ (CoP).
        variance: share of the variance that U holds at least, in (0, 1); .8 by default.
        gamma: γ > 0, of the Gaussian; 2 by default.
        components: M ≥ 2, random features; `auto` takes 4 d, at most 4096: the authors' 2048 for d = 512 and 4096 for
            d = 2048.
        seed: of Ω and u.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, NaN, or training features that are all equal.

    Reference: Fang et al., Kernel PCA for Out-of-Distribution Detection, NeurIPS 2024, arXiv 2402.02949. Defaults are
    the authors' for CIFAR-10. One direction is left out of U at least.
    """

    reference: ClassVar[str] = "Fang et al., NeurIPS 2024, arXiv 2402.02949"

    kernel: Literal["cosine_gaussian", "cosine"] = "cosine_gaussian"
    variance: Fraction = 0.8
    gamma: Positive = 2.0
    components: Annotated[int, Ge(2)] | Literal["auto"] = "auto"
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Draw the random features; learn mean and principal components over training features (n, d) in one pass."""
        generator = torch.Generator().manual_seed(self.seed)
        d = train.features.shape[1]
        size = min(4 * d, 4096) if self.components == "auto" else self.components
        normal = torch.randn(size, d, generator=generator, dtype=torch.float64)
        self.frequencies_ = (math.sqrt(2 * self.gamma) * normal).float()
        phases = 2 * math.pi * torch.rand(size, generator=generator, dtype=torch.float64)
        self.phases_ = phases.float()
        m = stats.moments(train, "KPCA", lambda rows: self._mapped(rows.features), by_class=False)
        values, vectors = torch.linalg.eigh(m.total_covariance())  # ascending
        self.mean_ = m.mean().float()
        self.principal_ = vectors[:, len(values) - principal_count(values, self.variance) :].float()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        principal, mean = (self.learnt(name).to(x.features.device) for name in ("principal_", "mean_"))
        errors = []
        for features in torch.split(x.features, stats.BLOCK):  # random features are several times as long
            centred = self._mapped(features) - mean
            errors.append(torch.linalg.vector_norm(centred - by_rows(by_rows(centred, principal.T), principal), dim=1))
        return torch.cat(errors)

    def _mapped(self, features: Tensor) -> Tensor:
        unit = stats.row_normalise(features)
        if self.kernel == "cosine":
            return unit
        angles = by_rows(unit, self.frequencies_.to(unit.device), self.phases_.to(unit.device))
        return angles.cos_().mul_(math.sqrt(2 / len(self.phases_)))


@dataclass
class PNML(stats.Learning):
    """How much better a last layer could do that knew the label, summed over all labels: the log of a normaliser.

    score(x) = log Σ_c p_c / (p_c + (1 − p_c) p_c^κ) / log C, p = softmax(W f̂ + b), f̂ = f/‖f‖, κ = g/(1 + g),
    g = f̂ᵀ (Σ f̂ f̂ᵀ)⁺ f̂ with the sum over training samples.

    Raises:
        MethodError: no training split or no head.

    Reference: Bibas et al., Single Layer Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection,
    NeurIPS 2021, arXiv 2110.09246; `PNML` of pytorch-ood. Probabilities are not clamped: in float64, with 1 − p_c
    summed from the other classes, sure predictions keep their order.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, head=True)
    reference: ClassVar[str] = "Bibas et al., NeurIPS 2021, arXiv 2110.09246"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn the second moments of unit training features (n, d), and keep the head."""
        self.head_ = head
        m = stats.moments(train, "PNML", stats.unit_features, by_class=False)
        second = m.n * m.covariance_around(torch.zeros_like(m.shift))
        self.root_ = stats.whitening(second)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        root = self.learnt("root_").to(x.features.device)
        return torch.cat([self._regret(f, root) for f in torch.split(x.features, stats.BLOCK)])

    def _regret(self, features: Tensor, root: Tensor) -> Tensor:
        unit = stats.row_normalise(features)
        g = by_rows(unit.double(), root.T).square().sum(dim=1, keepdim=True)
        log_p = torch.log_softmax(self.head_(unit).double(), dim=1)
        top = log_p.argmax(dim=1, keepdim=True)
        others = torch.logsumexp(log_p.scatter(1, top, -torch.inf), dim=1, keepdim=True)
        log_rest = torch.log1p(-log_p.exp()).scatter(1, top, others)
        odds = log_p / (1 + g) - log_rest  # of each term, p / (p + (1 − p) p^κ): 1 − κ = 1/(1 + g)
        # The top term is near 1: its complement and the other terms keep their digits.
        missing = torch.sigmoid(-odds.gather(1, top))[:, 0]
        rest = torch.sigmoid(odds).scatter(1, top, 0.0).sum(dim=1)
        regret: Tensor = torch.log1p(rest - missing) / math.log(max(2, log_p.shape[1]))
        return regret.float()


def principal_count(ascending: Tensor, share: float) -> int:
    """Return how many of the largest eigenvalues hold at least a share of the variance, at most all but one."""
    variance = ascending.flip(0).clamp(min=0).cumsum(dim=0)
    return min(int((variance < share * variance[-1]).sum()) + 1, len(variance) - 1)
