"""Virtual-logit matching."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.errors import MethodError
from openbench.methods._stats import classifier, logit_origin, minor_directions, training


@dataclass
class ViM(Method):
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

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Wang et al., CVPR 2022, arXiv 2203.10807"

    dim: Count | Literal["auto"] = "auto"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn origin, residual subspace and α from training features (n, d) and logits (n, c)."""
        train, head = training(train, "ViM"), classifier(head, "ViM")
        d = head.weight.shape[1]
        dim = (256 if d > 256 else d // 2) if self.dim == "auto" else self.dim
        self.require(dim < d, "dim", f"1 to {d - 1} for features of dimension {d}")
        origin = logit_origin(head)
        self.origin_ = origin.float()
        self.residual_ = minor_directions(train, "ViM", origin, dim).float()
        self.alpha_ = torch.tensor(self._alpha(train))
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        alpha = self.learnt("alpha_").to(x.features.device)
        return alpha * self._residual(x.features) - torch.logsumexp(x.logits, dim=1)

    def _residual(self, features: Tensor) -> Tensor:
        origin, basis = self.learnt("origin_").to(features.device), self.learnt("residual_").to(features.device)
        return torch.linalg.vector_norm(by_rows(features - origin, basis.T), dim=1)

    def _alpha(self, train: FeatureSet) -> float:
        top = residual = whole = 0.0
        for rows in train.batches():
            top += float(rows.logits.amax(dim=1).double().sum())
            residual += float(self._residual(rows.features).double().sum())
            whole += float(torch.linalg.vector_norm(rows.features - self.origin_, dim=1).double().sum())
        # Float32 products leave about 1e-7 of the feature in directions that it does not use: α would be their inverse.
        if residual <= 1e-5 * whole:
            raise MethodError(f"ViM: the residual of {len(train)} training samples is rounding noise — lower dim")
        return top / residual
