"""Neural-collapse subspace."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import inverse_spread, moments, principal_count, training


@dataclass
class NECO(Method):
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

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Ben Ammar et al., ICLR 2024, arXiv 2310.06823"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"max_logit"})

    dim: Count | Literal["auto"] = "auto"
    standardise: bool = True
    max_logit: bool = True

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn mean, spread and principal subspace of training features (n, d) in one pass."""
        m = moments(training(train, "NECO"), "NECO", by_class=False)
        mean, covariance = m.mean(), m.total_covariance()
        # Constant features stay zero, also where a test sample differs by rounding.
        scale = inverse_spread(mean, covariance)
        if not self.standardise:
            scale = torch.ones_like(scale)
        values, vectors = torch.linalg.eigh(covariance * scale * scale[:, None])  # ascending
        d = len(values)
        dim = principal_count(values, 0.9) if self.dim == "auto" else self.dim
        self.require(1 <= dim < d, "dim", f"1 to {d - 1} for features of dimension {d}")
        self.mean_, self.scale_ = mean.float(), scale.float()
        self.principal_ = vectors[:, d - dim :].float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        principal = self.learnt("principal_").to(x.features.device)
        centred = (x.features - self.mean_.to(x.features.device)) * self.scale_.to(x.features.device)
        inside: Tensor = torch.linalg.vector_norm(by_rows(centred, principal.T), dim=1)
        whole: Tensor = torch.linalg.vector_norm(centred if self.standardise else x.features, dim=1)
        share = inside / whole.clamp(min=torch.finfo(whole.dtype).eps)
        return -share * x.logits.amax(dim=1) if self.max_logit else -share
