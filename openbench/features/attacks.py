"""Attacked images: pixels that are moved within a small ball, up the gradient of a loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from openbench.backbones.base import Backbone
from openbench.config.constraints import Checked, Count, Positive, Seed
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.method import Composite, LiveMethod, Method
from openbench.core.preprocess import OwnPreprocess
from openbench.core.request import Field, Request, Role
from openbench.data.sources.base import ArrayItems
from openbench.digest import digest, generator_of
from openbench.errors import MethodError, NotApplicableError
from openbench.features._arrays import NamedRows
from openbench.features.extract import is_out_of_memory
from openbench.features.store import FeatureStore

Loss = Callable[[Tensor, Tensor], Tensor]  # normalised images (n, ch, h, w) and labels (n,) to losses (n,)
ADVERSARIAL = "adversarial_id"  # the set of attacked ID images
_ROLES = {Role.NEAR: Role.NEAR_ATTACKED, Role.FAR: Role.FAR_ATTACKED, Role.ID_TEST: Role.NEAR_ATTACKED}


@dataclass(frozen=True)
class Attack(Checked):
    """An attack by signed or normalised gradient steps, projected on the ball of the clean image.

    With steps=1, step_size=epsilon and no random start it is FGSM. Images stay in 8 bits: the result is rounded,
    by half a level at most, which may end just outside an L2 ball.

    Args:
        of: `ood` moves OOD images towards acceptance, down the detector's own score; `id` moves ID test images towards
            another class, up the network's cross-entropy, and they count as OOD.
        norm: of the ball: `linf`, the largest change of a pixel's channel, or `l2`.
        epsilon: radius of the ball, in grey levels of 255.
        steps: number of gradient steps.
        step_size: length of a step in the same norm and unit.
        random_start: whether the first step starts from a random point of the ball, which depends on the image's key.
        seed: of the random starts.

    Reference: Goodfellow et al., ICLR 2015, arXiv 1412.6572 (FGSM); Madry et al., ICLR 2018, arXiv 1706.06083 (PGD);
    attacked ID images as OOD: Lorenz et al., arXiv 2406.15104.
    """

    named: ClassVar[str] = "attack"

    of: Literal["ood", "id"] = "ood"
    norm: Literal["linf", "l2"] = "linf"
    epsilon: Positive = 8.0
    steps: Count = 10
    step_size: Positive = 2.0
    random_start: bool = True
    seed: Seed = 0

    def __str__(self) -> str:
        what = "OOD images moved towards acceptance" if self.of == "ood" else "ID images moved to other classes as OOD"
        start = ", random start" if self.random_start else ""
        steps = f"{self.steps} step{'s' * (self.steps > 1)} of {self.step_size:g}"
        return f"{what}: {steps}, {self.norm} ≤ {self.epsilon:g} of 255{start}"

    def moved(self, pixels: Tensor, gradient: Callable[[Tensor], Tensor], start: Tensor | None = None) -> Tensor:
        """Return attacked pixels (n, ch, h, w) float32, whole numbers from 0 to 255.

        Args:
            pixels: (n, ch, h, w) float32 from 0 to 255.
            gradient: pixels to the gradient of the loss by them, of the same shape.
            start: (n, ch, h, w) the perturbation to start from, in the ball; None = none.
        """
        x = pixels if start is None else (pixels + start).clamp(0, 255)
        for _ in range(self.steps):
            g = gradient(x)
            direction = g.sign() if self.norm == "linf" else g / _norms(g).clamp_min(1e-12)
            x = (pixels + self._projected(x + self.step_size * direction - pixels)).clamp(0, 255)
        return x.round()

    def starts(self, keys: list[str], shape: tuple[int, ...]) -> Tensor | None:
        """Return random perturbations (n, *shape) in the ball, one for each key; None without random start."""
        if not self.random_start:
            return None
        draws = [generator_of(self.seed, key).uniform(-1, 1, shape) for key in keys]
        return self._projected(torch.from_numpy(np.stack(draws).astype(np.float32)) * self.epsilon)

    def _projected(self, change: Tensor) -> Tensor:
        if self.norm == "linf":
            return change.clamp(-self.epsilon, self.epsilon)
        return change * (self.epsilon / _norms(change).clamp_min(1e-12)).clamp_max(1.0)


def _norms(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def attacked(
    store: FeatureStore, backbone: Backbone, split: Split, attack: Attack, *, loss: Loss, target: str
) -> Split:
    """Return a split whose images are attacked; they are cached beside the features of the clean ones.

    Args:
        store: the cache.
        backbone: the network under attack.
        split: near or far OOD, or ID test.
        attack: how the images are moved.
        loss: to be raised.
        target: names what the loss depends on besides the network; enters the split's digest.

    Raises:
        NotApplicableError: images cannot be had from the network's input.
        MethodError: a gradient is not finite.
    """
    p = backbone.preprocess
    if isinstance(p, OwnPreprocess) or not backbone.differentiable or split.items[0].ndim == 1:
        raise NotApplicableError(
            f"attack: network '{backbone.name}' has no gradient by the pixels of its images — choose one of torch"
        )
    name = f"attacked.{digest({'attack': attack, 'target': target})}"
    mean, std = (torch.tensor(v).view(1, -1, 1, 1).to(backbone.device) for v in (p.mean, p.std))

    def gradient(pixels: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            x = ((pixels / 255 - mean) / std).requires_grad_(True)
            (by_input,) = torch.autograd.grad(loss(x, labels).sum(), x)
        if not bool(by_input.isfinite().all()):
            raise MethodError(f"attack on {split.name} ({split.role}): a gradient is NaN or infinite")
        return by_input / std

    def rows(images: Split, _: tuple[str, ...]) -> Iterator[NamedRows]:
        def act(batch: Tensor, part: slice) -> NamedRows:
            labels = torch.from_numpy(images.labels[part]).to(backbone.device)
            clean = ((batch.to(backbone.device, torch.float32) * std + mean) * 255).round()
            start = attack.starts(list(images.keys[part]), tuple(clean.shape[1:]))
            moved = attack.moved(clean, lambda x: gradient(x, labels), None if start is None else start.to(clean))
            return {name: moved.permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()}

        return store.halving.of(images, backbone, act)

    pixels = store.rows(backbone, split, name, rows).numpy()
    return replace(
        split,
        name=ADVERSARIAL if split.role == Role.ID_TEST else split.name,
        role=_ROLES[split.role],
        items=ArrayItems(pixels if pixels.shape[-1] == 3 else pixels[..., 0], np.arange(len(split))),
        digest=digest({"of": split.digest, "attack": attack, "target": target, "network": backbone.digest}),
        as_stored=True,
    )


def cross_entropy(backbone: Backbone, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropies (n,) of normalised images, of the predicted class where the label is not known."""
    logits = backbone.traced(images, Request(fields=frozenset({Field.LOGITS}))).logits
    return functional.cross_entropy(logits, torch.where(labels < 0, logits.argmax(dim=1), labels), reduction="none")


def acceptance(method: Method, backbone: Backbone, images: Tensor, _: Tensor) -> Tensor:
    """Return −score (n,) of normalised images by a fitted method, with gradients by the images.

    Raises:
        NotApplicableError: the score has no gradient by the images.
    """
    request, name = method.request, type(method).__name__
    beyond = request.perturb or request.second_pass or request.corruption or Field.PATCHES in request.fields
    if beyond or isinstance(method, LiveMethod | Composite):
        raise _no_gradient(name, "it reads more than the outputs of one pass")
    outputs = backbone.traced(images, request)
    columns = {Field.LOGITS: outputs.logits, Field.FEATURES: outputs.features}
    x = FeatureSet({f: column for f, column in columns.items() if f in request.fields}, dict(outputs.maps))
    try:
        score = method.score(x)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise _no_gradient(name, str(error).splitlines()[0]) from error
    if not score.requires_grad:
        raise _no_gradient(name, "it is computed outside torch's graph")
    return -score


def _no_gradient(method: str, reason: str) -> NotApplicableError:
    return NotApplicableError(
        f"attack: the score of {method} has no gradient by the images ({reason}) — write attack.of=id"
    )
