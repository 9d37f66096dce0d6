"""Maximum concept matching."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.config.constraints import Positive
from openbench.core import FeatureSet, Field, Head, Method, Request
from openbench.methods._stats import softmax_shortfall
from openbench.methods._words import cosines, directions


@dataclass
class MCM(Method):
    """Negative maximum softmax probability of the cosines between the feature and the class prototypes.

    score(x) = 1/C − max_c softmax(cos(f, w_c)/τ)_c, w_c the rows of the head: text embeddings for zero-shot CLIP. The
    constant 1/C moves scores to where float32 resolves them.

    Args:
        temperature: τ > 0; the paper's default is 1.

    Raises:
        MethodError: a temperature that is not positive, or no head.

    Reference: Ming et al., Delving into Out-of-Distribution Detection with Vision-Language Representations,
    NeurIPS 2022, arXiv 2211.13445. Cosines are computed from feature and head, so that no logit scale (CLIP's 100)
    enters; the softmax is taken in float64, where half precision would tie.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)
    reference: ClassVar[str] = "Ming et al., NeurIPS 2022, arXiv 2211.13445"

    temperature: Positive = 1.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the directions of the head's rows."""
        self.prototypes_ = directions(head, "MCM")
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        prototypes = self.learnt("prototypes_").to(x.features.device)
        return softmax_shortfall(cosines(x.features, prototypes), self.temperature)
