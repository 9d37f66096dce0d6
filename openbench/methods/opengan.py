"""The discriminator of a GAN that is trained on features."""

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Positive, Seed
from openbench.core import FeatureSet, Head
from openbench.errors import MethodError
from openbench.methods._stats import Learning

Rival = tuple[nn.Sequential, torch.optim.Optimizer]
_INITIAL_STD, _SLOPE, _BETAS = 0.02, 0.2, (0.5, 0.999)
_DISCRIMINATOR_RATE = 1 / 1.5  # of the generator's


@dataclass
class OpenGAN(Learning):
    """Minus the discriminator's logit for "real".

    score(x) = −D(f), D trained to tell training features from G(u), u ~ N(0, I), and G to make it fail.

    D and G are perceptrons as published, D: d–512–256–128–64–1, G: latent–512–256–128–256–d. Each step is one of Adam
    for D, then one for G, on the non-saturating loss. The paper chooses among the discriminators of all epochs by their
    AUROC on validation outliers; so does a search over `epoch`, at the price of one training.

    Two networks that play against each other end elsewhere for the smallest difference: on CIFAR-10 with a ResNet-20,
    two runs whose features differed in their last digits had a near AUROC of 65 and 57 %. Judge it by several seeds.

    Args:
        epochs: passes over the training features; 100. One over 1.28 million features of 2,048 takes minutes, 100 take
            hours: fewer suffice there.
        epoch: whose discriminator scores; 100, the last.
        every: epochs between two saved discriminators, the last one is always saved; 5 (the paper: 1).
        lr: of G; 1e-4. D has two thirds of it.
        batch_size: features per step; 128. A single left-over feature is not used for a step.
        latent: dimensions of u; 100.
        seed: of weights, order and u.

    Raises:
        MethodError: an epoch whose discriminator is not saved, fewer than two training features, or features that
            are not finite.

    Reference: Kong & Ramanan, OpenGAN: Open-Set Recognition via Open Data Generation, ICCV 2021, arXiv 2104.02939. The
    form on features and without real outliers in training, as in OpenOOD. The score is the logit, not its sigmoid,
    which rounds to 1 for sure features.
    """

    learns_objects: ClassVar[str] = "networks of its own"
    reference: ClassVar[str] = "Kong & Ramanan, ICCV 2021, arXiv 2104.02939"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"epoch"})

    epochs: Count = 100
    epoch: Count = 100
    every: Count = 5
    lr: Positive = 1e-4
    batch_size: Annotated[int, Ge(2)] = 128
    latent: Count = 100
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        saved = self.epoch <= self.epochs and (self.epoch % self.every == 0 or self.epoch == self.epochs)
        self.require(saved, "epoch", f"multiples of every ({self.every}) up to epochs ({self.epochs}), and that")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Train discriminator and generator on training features (n, d)."""
        if len(train) < 2:
            raise MethodError(f"OpenGAN.fit: batch norm needs two training features, found {len(train)}")
        generator = torch.Generator().manual_seed(self.seed)
        d = train.features.shape[1]
        discriminator = _discriminator(d, generator).to(train.device)
        maker = _generator(self.latent, d, generator).to(train.device)
        rivals = (
            (discriminator, torch.optim.Adam(discriminator.parameters(), self.lr * _DISCRIMINATOR_RATE, _BETAS)),
            (maker, torch.optim.Adam(maker.parameters(), self.lr, _BETAS)),
        )
        discriminators: dict[int, nn.Module] = {}
        for epoch in range(1, self.epochs + 1):
            with torch.enable_grad():
                for rows in torch.split(torch.randperm(len(train), generator=generator), self.batch_size):
                    latent = torch.randn(len(rows), self.latent, generator=generator).to(train.device)
                    if len(rows) > 1:
                        _step(train[rows].features.float(), latent, *rivals)
            if epoch % self.every == 0 or epoch == self.epochs:
                discriminators[epoch] = copy.deepcopy(discriminator).requires_grad_(False).eval()
        if not all(bool(torch.isfinite(p).all()) for p in discriminator.parameters()):
            raise MethodError("OpenGAN.fit: the discriminator holds NaN or inf — a lower lr is needed")
        self.discriminators_ = discriminators

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        discriminators: Any = self.learnt("discriminators_")
        return -discriminators[self.epoch].to(x.features.device)(x.features.float())[:, 0]


def _step(real: Tensor, latent: Tensor, judge: Rival, forger: Rival) -> None:
    """Move the discriminator by its loss on real and made features, then the generator by its own loss."""
    (discriminator, of_discriminator), (maker, of_generator) = judge, forger
    fake = maker(latent)
    of_discriminator.zero_grad()
    # −log σ(u) = softplus(−u), of real and made features in two batches: each has its own batch-norm statistics.
    loss = functional.softplus(-discriminator(real)).mean() + functional.softplus(discriminator(fake.detach())).mean()
    torch.autograd.backward(loss)
    of_discriminator.step()
    of_generator.zero_grad()
    loss = functional.softplus(-discriminator(fake)).mean()
    torch.autograd.backward(loss, inputs=list(maker.parameters()))  # the discriminator's would go unused
    of_generator.step()


def _discriminator(d: int, generator: torch.Generator) -> nn.Sequential:
    """Features (n, d) to logits (n, 1)."""
    layers: list[nn.Module] = [_linear(d, 512, generator), nn.LeakyReLU(_SLOPE)]
    for before, after in pairwise((512, 256, 128, 64)):
        layers += [_linear(before, after, generator), _norm(after, generator), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers, _linear(64, 1, generator))


def _generator(latent: int, d: int, generator: torch.Generator) -> nn.Sequential:
    """Noise (n, latent) to features (n, d)."""
    layers: list[nn.Module] = []
    for before, after in pairwise((latent, 512, 256, 128, 256)):
        layers += [_linear(before, after, generator), _norm(after, generator), nn.ReLU()]
    return nn.Sequential(*layers, _linear(256, d, generator, bias=True))


def _linear(before: int, after: int, generator: torch.Generator, *, bias: bool = False) -> nn.Linear:
    # Made without values first: torch's own would be drawn from the global generator.
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after, bias=bias)  # type: ignore[no-untyped-call]
    nn.init.normal_(layer.weight, 0, _INITIAL_STD, generator)
    if bias:
        nn.init.uniform_(layer.bias, -(before**-0.5), before**-0.5, generator)
    return layer


def _norm(width: int, generator: torch.Generator) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(width)
    nn.init.normal_(layer.weight, 1, _INITIAL_STD, generator)
    return layer
