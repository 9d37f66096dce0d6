"""ODIN with a step of one input element."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.request import Perturb, Request
from openbench.methods._stats import softmax_shortfall


@dataclass
class IODIN(Method):
    """Negative maximum softmax probability at high temperature after moving the most sensitive input element.

    score(x) = 1/C − max_c softmax(z(x̃)/T)_c; x̃ differs from x in the one element with the largest |gradient|, by
    −ε sign(∇ₓ CE(z/T, ŷ))/σ.

    Args:
        temperature: T > 0; 1000 by default.
        epsilon: ε ≥ 0 in pixel units of [0, 1]; .0014 by default.

    Raises:
        MethodError: a temperature that is not positive or a negative step.

    Reference: as in OpenOOD, where it came with ASCOOD (2025); temperature and step as ODIN: Liang et al.,
    ICLR 2018, arXiv 1706.02690.
    """

    needs: ClassVar[Request] = Request(perturb=Perturb(kind="peak"))
    reference: ClassVar[str] = "i-ODIN of ASCOOD (2025), after Liang et al., ICLR 2018, arXiv 1706.02690"

    temperature: float = 1000.0
    epsilon: float = 0.0014

    def __post_init__(self) -> None:
        """Check temperature and step."""
        self.require(self.temperature > 0, "temperature", "> 0")
        self.require(self.epsilon >= 0, "epsilon", "≥ 0")

    @property
    def request(self) -> Request:
        """The logits at the input moved with this T and ε."""
        return replace(self.needs, perturb=Perturb(float(self.temperature), float(self.epsilon), "peak"))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return softmax_shortfall(x.logits, self.temperature)
