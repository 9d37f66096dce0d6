"""Kernel PCA."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import Fraction, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import BLOCK, moments, principal_count, row_normalise, training


@dataclass
class KPCA(Method):
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

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Fang et al., NeurIPS 2024, arXiv 2402.02949"

    kernel: Literal["cosine_gaussian", "cosine"] = "cosine_gaussian"
    variance: Fraction = 0.8
    gamma: Positive = 2.0
    components: Annotated[int, Ge(2)] | Literal["auto"] = "auto"
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Draw the random features; learn mean and principal components over training features (n, d) in one pass."""
        train = training(train, "KPCA")
        generator = torch.Generator().manual_seed(self.seed)
        d = train.features.shape[1]
        size = min(4 * d, 4096) if self.components == "auto" else self.components
        normal = torch.randn(size, d, generator=generator, dtype=torch.float64)
        self.frequencies_ = (math.sqrt(2 * self.gamma) * normal).float()
        phases = 2 * math.pi * torch.rand(size, generator=generator, dtype=torch.float64)
        self.phases_ = phases.float()
        m = moments(train, "KPCA", lambda rows: self._mapped(rows.features), by_class=False)
        values, vectors = torch.linalg.eigh(m.total_covariance())  # ascending
        self.mean_ = m.mean().float()
        self.principal_ = vectors[:, len(values) - principal_count(values, self.variance) :].float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        principal, mean = (self.learnt(name).to(x.features.device) for name in ("principal_", "mean_"))
        errors = []
        for features in torch.split(x.features, BLOCK):  # random features are several times as long
            centred = self._mapped(features) - mean
            errors.append(torch.linalg.vector_norm(centred - by_rows(by_rows(centred, principal.T), principal), dim=1))
        return torch.cat(errors)

    def _mapped(self, features: Tensor) -> Tensor:
        unit = row_normalise(features)
        if self.kernel == "cosine":
            return unit
        angles = by_rows(unit, self.frequencies_.to(unit.device), self.phases_.to(unit.device))
        return angles.cos_().mul_(math.sqrt(2 / len(self.phases_)))
