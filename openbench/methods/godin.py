"""Largest class similarity after a step towards it."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Method, Perturb, Request

Form = Literal["logit", "softmax"]


@dataclass
class GODIN(Method):
    """Negative largest logit of an input perturbed to increase it.

    score(x) = −max_c h_c(x̃), x̃ = x + ε sign(∇ₓ max_c h_c)/σ.

    Args:
        epsilon: ε ≥ 0 in pixel units of [0, 1]; .0025 by default, searched on ID data in the paper.
        form: `logit` as in the paper, or `softmax`, −max_c softmax(h(x̃))_c, as published numbers were made.

    Raises:
        MethodError: a negative step or an unknown form.

    Reference: Hsu et al., Generalized ODIN: Detecting Out-of-Distribution Image Without Learning From
    Out-of-Distribution Data, CVPR 2020, arXiv 2002.11297. Meant for a backbone trained with `training=godin`, whose
    logits are h.
    """

    needs: ClassVar[Request] = Request(perturb=Perturb(1.0, 0.0025, "logit"))
    reference: ClassVar[str] = "Hsu et al., CVPR 2020, arXiv 2002.11297"

    epsilon: NonNegative = 0.0025
    form: Form = "logit"

    @property
    def request(self) -> Request:
        """The logits at the input perturbed by this ε."""
        return replace(self.needs, perturb=Perturb(1.0, float(self.epsilon), "logit"))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        values = x.logits if self.form == "logit" else torch.softmax(x.logits, dim=1)
        return -values.amax(dim=1)
