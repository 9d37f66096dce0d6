"""Temperature and an input step towards confidence."""

from dataclasses import dataclass, replace
from typing import ClassVar

from openbench.config.constraints import NonNegative, Positive
from openbench.core import Perturb, Request
from openbench.methods._bases import OddsMethod
from openbench.methods._stats import Scale


@dataclass
class ODIN(OddsMethod):
    """Odds against the top class at high temperature after a gradient step on the input.

    score(x) = log Σ_{c≠ŷ} exp((z_c − z_ŷ)/T) − log(C − 1) with z = z(x̃), x̃ = x − ε sign(∇ₓ CE(z/T, ŷ))/σ. It is
    log((1 − p)/p), p = max softmax(z(x̃)/T), up to a constant.

    Args:
        temperature: T > 0; the paper's default is 1000.
        epsilon: ε ≥ 0 in pixel units of [0, 1]; the paper's default is .0014.
        scale: `log_odds` keeps every digit, at p ≈ 1 (T = 1) as at p ≈ 1/C (T = 1000), and ranks as the probability
            does, so AUROC, AUPR and FPR are those of exact probabilities; `probability` is 1/C − max p, the published
            scale up to a constant, for metrics along a threshold axis (AUTC), and ties where p rounds to 1.

    Raises:
        MethodError: a temperature that is not positive, a negative step, an unknown scale; one class only.

    Reference: Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks,
    ICLR 2018, arXiv 1706.02690.
    """

    needs: ClassVar[Request] = Request(perturb=Perturb())
    reference: ClassVar[str] = "Liang et al., ICLR 2018, arXiv 1706.02690"

    version: ClassVar[int] = 2  # log odds instead of probabilities

    temperature: Positive = 1000.0
    epsilon: NonNegative = 0.0014
    scale: Scale = "log_odds"

    @property
    def request(self) -> Request:
        """The logits at the input perturbed with this T and ε."""
        return replace(self.needs, perturb=Perturb(float(self.temperature), float(self.epsilon)))
