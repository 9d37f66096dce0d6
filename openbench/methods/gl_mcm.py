"""Global and local maximum concept matching."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative, Positive
from openbench.core import FeatureSet, Field, Head, Method, Request
from openbench.methods._stats import softmax_shortfall
from openbench.methods._words import cosines, directions

_IMAGES = 64  # whose patches are compared at a time


@dataclass
class GLMCM(Method):
    """MCM of the image, and of the patch that fits a class best.

    score(x) = 1/C − max_c softmax(cos(f, w_c)/T)_c + λ (1/C − max_{p,c} softmax(cos(z_p, w_c)/T)_c), f the features of
    the image, z_p those of its patches, w_c the rows of the head. The constants move scores to where float32 resolves
    them.

    Args:
        temperature: T > 0; the paper's default is 1.
        weight: λ ≥ 0 of the patches; the paper's default is 1, and 0 gives MCM.

    Reference: Miyai et al., GL-MCM: Global and Local Maximum Concept Matching for Zero-Shot Out-of-Distribution
    Detection, IJCV 2025, arXiv 2304.04521; AtsuMiyai/GL-MCM. Patches are read in float16.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.PATCHES}), head=True)
    reference: ClassVar[str] = "Miyai et al., IJCV 2025, arXiv 2304.04521"
    read_by_score: ClassVar[frozenset[str]] = frozenset({"temperature", "weight"})

    temperature: Positive = 1.0
    weight: NonNegative = 1.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the directions of the head's rows."""
        self.prototypes_ = directions(head, "GLMCM")
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        prototypes = self.learnt("prototypes_").to(x.features.device)
        whole = self._shortfall(x.features, prototypes)
        local = [
            self._shortfall(part.flatten(0, 1).float(), prototypes).view(part.shape[:2]).amin(dim=1)
            for part in torch.split(x.patches, _IMAGES)
        ]
        return whole + self.weight * torch.cat(local)

    def _shortfall(self, vectors: Tensor, prototypes: Tensor) -> Tensor:
        """1/C − max_c softmax(cos/T) (m,) of vectors (m, d)."""
        return softmax_shortfall(cosines(vectors, prototypes), self.temperature)
