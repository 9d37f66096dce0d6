"""The least confidence near an image, found by a few steps of gradient descent on the input."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import NonNegative, Positive
from openbench.core import LiveBackbone, LiveMethod
from openbench.methods._stats import log_odds_against_top

Confidence = Literal["msp", "entropy"]


@dataclass
class PRO(LiveMethod):
    """Largest uncertainty met on a short walk over the input that raises it; OOD inputs lose confidence sooner.

    score(x) = max_{t=0…K} u(x_t), x_0 = x, x_{t+1} = x_t + ε sign(∇ₓ u(x_t)), with u = log((1 − p)/p) of
    p = max softmax(z/T), which ranks and rises as 1 − p does, or u = entropy of softmax(z/T).

    Args:
        confidence: `msp` (PRO-MSP; with T tuned, PRO-MSP-T) or `entropy` (PRO-ENT).
        epsilon: ε ≥ 0, length of a step in units of the normalised input, as published; ε·σ in pixel units.
        steps: K ≥ 0; each costs a forward and a backward pass. 1 to 7 in the paper's search.
        temperature: T > 0; 1 in PRO-MSP and PRO-ENT.

    Raises:
        MethodError: a hyper-parameter out of range; one class only.
        NotApplicableError: the backbone has no network.

    Reference: Chen, Yeh, Mou, Gu, Leveraging Perturbation Robustness to Enhance Out-of-Distribution Detection, CVPR
    2025, arXiv 2503.18784. ε and K are searched in the paper, over the grid of `pro.yaml`; the defaults are what the
    authors found for PRO-MSP on CIFAR-10, and .003 and 1 what their code starts from. Their code descends on max p
    itself: once p rounds to 1, its float32 gradient is 0 and the walk stands still. The log odds have the same
    direction of descent and a gradient that never vanishes. Gradients with respect to the logits are taken in float64,
    up to a positive factor per image, which does not change their sign.
    """

    reference: ClassVar[str] = "Chen et al., CVPR 2025, arXiv 2503.18784"

    confidence: Confidence = "msp"
    epsilon: NonNegative = 0.001
    steps: Annotated[int, Ge(0)] = 3
    temperature: Positive = 1.0

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        x = images.detach()
        with backbone.frozen() as network:
            worst = torch.full((len(x),), -torch.inf, device=x.device)
            for _ in range(self.steps):
                uncertainty, gradient = self._climb(network, x)
                worst = torch.maximum(worst, uncertainty)
                x = x + self.epsilon * gradient.sign()
            with torch.no_grad():
                return torch.maximum(worst, self._uncertainty(network(x)))

    def _climb(self, network: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u(x) (n,) and ∇ₓ u up to a positive factor per image."""
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            logits: Tensor = network(x)
            z = logits.detach().double().requires_grad_(True)
            uncertainty = self._uncertainty(z)
            (by_logits,) = torch.autograd.grad(uncertainty.sum(), z)
            largest = by_logits.abs().amax(dim=1, keepdim=True)
            by_logits = by_logits / torch.where(largest > 0, largest, 1)
            (gradient,) = torch.autograd.grad(logits, x, by_logits.to(logits.dtype))
        return uncertainty.detach(), gradient

    def _uncertainty(self, logits: Tensor) -> Tensor:
        """Return u (n,) float32."""
        if self.confidence == "msp":
            return log_odds_against_top(logits, self.temperature)
        log_p = torch.log_softmax(logits.double() / self.temperature, dim=1)
        return -(log_p.exp() * log_p).sum(dim=1).float()
