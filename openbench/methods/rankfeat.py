"""Energy of the network once the largest rank-1 part of a map is gone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import MinLen
from torch import Tensor

from openbench.config.constraints import Count, Positive
from openbench.core import STAGES, LiveBackbone, LiveMethod
from openbench.errors import NotApplicableError

Solver = Literal["exact", "power"]


@dataclass
class RankFeat(LiveMethod):
    """Energy of the logits without the maps' largest singular component, which carries most of an OOD image.

    score(x) = −T log Σ_c exp(z̄_c/T), z̄ the mean over layers of the logits that follow from X − σ₁u₁v₁ᵀ in place of the
    layer's map X (c, h·w), one layer changed at a time.

    Args:
        layers: neutral names of the layers changed; None is the last two stages of the network, the paper's blocks 3
            and 4. Each costs a pass. After the last stage of a transformer with a class token nothing reads the map.
        temperature: T > 0; 1 in the paper.
        solver: `exact` takes v₁ from the eigenvectors of the smaller of XᵀX and XXᵀ; `power` iterates towards it, the
            paper's acceleration for large maps.
        iterations: of `power`, ≥ 1; 20 in the official code.

    Raises:
        MethodError: a hyper-parameter out of range.
        NotApplicableError: the backbone has no such layer, or no stages.

    Reference: Song, Sebe, Wang, RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection, NeurIPS 2022,
    arXiv 2209.08590. σ₁u₁v₁ᵀ = Xv₁v₁ᵀ, so no full decomposition is made; in float64. Power iterations start from one
    fixed draw instead of a new one for every batch, so scores repeat and do not depend on other samples.
    """

    reference: ClassVar[str] = "Song et al., NeurIPS 2022, arXiv 2209.08590"

    layers: Annotated[Sequence[str], MinLen(1)] | None = None
    temperature: Positive = 1.0
    solver: Solver = "exact"
    iterations: Count = 20

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        layers = self.layers or [name for name in backbone.layers if name in STAGES][-2:]
        if not layers:
            raise NotApplicableError(
                f"RankFeat: backbone '{backbone.name}' has no stages — choose a convolutional or patch network"
            )
        direction: Callable[[Tensor], Tensor] = self._iterated if self.solver == "power" else top_direction
        logits = []
        with backbone.frozen() as network, torch.no_grad():
            for layer in layers:
                with backbone.changing(layer, lambda maps: without_top(maps, direction)):
                    logits.append(network(images).double())
        mean = torch.stack(logits).mean(dim=0)
        return (-self.temperature * torch.logsumexp(mean / self.temperature, dim=1)).float()

    def _iterated(self, gram: Tensor) -> Tensor:
        """Return the direction (n, k, 1) that power iterations on XᵀX (n, k, k) reach."""
        start = torch.randn(gram.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        v = start.to(gram).expand(len(gram), -1, -1)
        for _ in range(self.iterations):
            moved = gram @ v
            norm = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
            # A map of zeros has no direction, and none is removed from it.
            v = moved / norm.clamp(min=torch.finfo(norm.dtype).tiny)
        return v


def without_top(maps: Tensor, direction: Callable[[Tensor], Tensor]) -> Tensor:
    """Return maps (n, c, h, w) less their largest rank-1 part σ₁u₁v₁ᵀ, each map seen as a matrix (c, h·w).

    Args:
        maps: not changed.
        direction: returns v₁ (n, k, 1) of Gram matrices (n, k, k).
    """
    x = maps.flatten(2).to(maps.dtype if maps.device.type == "mps" else torch.float64)
    # The smaller side holds the same σ₁: X v vᵀ = u uᵀ X.
    if x.shape[2] <= x.shape[1]:
        v = direction(x.transpose(1, 2) @ x)
        rest = x - (x @ v) @ v.transpose(1, 2)
    else:
        u = direction(x @ x.transpose(1, 2))
        rest = x - u @ (u.transpose(1, 2) @ x)
    return rest.view(maps.shape).to(maps.dtype)


def top_direction(gram: Tensor) -> Tensor:
    """Return the eigenvectors (n, k, 1) of the largest eigenvalues of symmetric matrices (n, k, k)."""
    return torch.linalg.eigh(gram).eigenvectors[:, :, -1:]
