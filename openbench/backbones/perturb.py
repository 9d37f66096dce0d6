"""The input-gradient step of ODIN and related methods, whose sign survives high temperatures and confident logits."""

from collections.abc import Callable

import torch
from torch import Tensor

from openbench.core.request import Perturb
from openbench.errors import MethodError


def perturbed(forward: Callable[[Tensor], Tensor], images: Tensor, std: tuple[float, ...], step: Perturb) -> Tensor:
    """Return x̃ = x − ε·sign(∇ₓ CE(z/T, ŷ))/σ with ŷ = argmax z and sign(0) = +1, or what `step.kind` says instead.

    Args:
        forward: images (n, ch, h, w) to logits (n, c); samples must not influence one another (eval mode).
        images: normalised; not changed.
        std: σ, the per-channel standard deviation by which images were divided.
        step: T > 0, ε in pixel units of [0, 1], and which elements move: all (`sign`) or, in each image, the one with
            the largest |gradient| (`peak`, the first of equals); `logit` moves all towards a larger maximum of z, and
            `flat` moves the `share` of them with the smallest |gradient|, by ε itself.

    Raises:
        MethodError: T ≤ 0, ε not finite, or a share outside 0 to 1.

    Reference:
        Liang, Li, Srikant: Enhancing the reliability of out-of-distribution image detection in neural networks
        (ODIN), ICLR 2018, arXiv:1706.02690.
    """
    if not step.temperature > 0 or not abs(step.epsilon) < float("inf") or not 0 <= step.share <= 1:
        raise MethodError(
            f"input-gradient step: temperature {step.temperature}, epsilon {step.epsilon}, share {step.share} — "
            "allowed: temperature > 0, finite epsilon, share in [0, 1]"
        )
    gradient = _gradient(forward, images, step)
    if step.kind == "flat":
        flat = gradient.flatten(1)
        least = flat.abs().topk(int(step.share * flat.shape[1]), dim=1, largest=False, sorted=False).indices
        chosen = torch.zeros_like(flat).scatter_(1, least, 1.0)
        return (images - step.epsilon * (flat.sign() * chosen).view_as(images)).detach()
    direction = torch.where(gradient >= 0, 1.0, -1.0).to(images.dtype)
    if step.kind == "peak":
        flat = gradient.abs().flatten(1)
        peak = torch.zeros_like(flat).scatter_(1, flat.argmax(dim=1, keepdim=True), 1.0)
        direction = direction * peak.view_as(images)
    sigma = torch.tensor(std, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return (images - step.epsilon * direction / sigma).detach()


def _gradient(forward: Callable[[Tensor], Tensor], images: Tensor, step: Perturb) -> Tensor:
    """Return ∇ₓ CE(z/T, ŷ) up to a positive factor per image, which changes neither sign nor peak; or −∇ₓ max z.

    The gradient by z is (p − onehot(ŷ))/T. Divided by (1 − p_ŷ)/T it is −1 at ŷ and, elsewhere, the softmax over the
    other classes: nothing cancels when p_ŷ rounds to 1, nothing gets small when T is large.
    """
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_(True)
        logits = forward(x)
        top = logits.detach().argmax(dim=1, keepdim=True)
        others = (logits.detach() / step.temperature).scatter(1, top, float("-inf"))
        others = torch.zeros_like(others) if step.kind in ("logit", "flat") else torch.softmax(others, dim=1)
        cotangent = others.scatter(1, top, -1.0)
        (gradient,) = torch.autograd.grad(logits, x, cotangent)
    return gradient
