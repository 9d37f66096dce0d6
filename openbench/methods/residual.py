"""The residual of virtual-logit matching alone."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import classifier, logit_origin, minor_directions, training


@dataclass
class Residual(Method):
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

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn origin and residual directions from ID validation features (n, d) and the head."""
        train, head = training(train, "Residual"), classifier(head, "Residual")
        d = head.weight.shape[1]
        dim = min(512, d // 2) if self.dim == "auto" else self.dim
        self.require(dim < d, "dim", f"1 to {d - 1} for features of dimension {d}")
        origin = logit_origin(head)
        self.origin_ = origin.float()
        self.residual_ = minor_directions(train, "Residual", origin, dim).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        basis = self.learnt("residual_").to(x.features.device)
        shifted = x.features - self.learnt("origin_").to(x.features.device)
        return torch.linalg.vector_norm(by_rows(shifted, basis.T), dim=1)
