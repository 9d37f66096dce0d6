"""Temperature and an input step towards confidence."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.request import Perturb, Request
from openbench.methods._stats import softmax_shortfall


@dataclass
class ODIN(Method):
    """Negative maximum softmax probability at high temperature after a gradient step on the input.

    score(x) = 1/C − max_c softmax(z(x̃)/T)_c with x̃ = x − ε sign(∇ₓ CE(z/T, ŷ))/σ. The constant 1/C moves scores to
    where float32 resolves them: at T = 1000 the probabilities themselves differ in their last digits only.

    Args:
        temperature: T > 0; the paper's default is 1000.
        epsilon: ε ≥ 0 in pixel units of [0, 1]; the paper's default is .0014.

    Raises:
        MethodError: a temperature that is not positive or a negative step.

    Reference: Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks,
    ICLR 2018, arXiv 1706.02690.
    """

    needs: ClassVar[Request] = Request(perturb=Perturb())
    reference: ClassVar[str] = "Liang et al., ICLR 2018, arXiv 1706.02690"

    temperature: float = 1000.0
    epsilon: float = 0.0014

    def __post_init__(self) -> None:
        """Check temperature and step."""
        self.require(self.temperature > 0, "temperature", "> 0")
        self.require(self.epsilon >= 0, "epsilon", "≥ 0")

    @property
    def request(self) -> Request:
        """The logits at the input moved with this T and ε."""
        return replace(self.needs, perturb=Perturb(float(self.temperature), float(self.epsilon)))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return softmax_shortfall(x.logits, self.temperature)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1/C − softmax(z(x̃)/T), (n, c) float32, computed in float64 like the score."""
        p = torch.softmax(x.logits.double() / self.temperature, dim=1)
        return (1 / p.shape[1] - p).float()
