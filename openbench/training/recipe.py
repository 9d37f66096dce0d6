"""The recipe of a training: schedule, optimiser, augmentation and precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from openbench.config.constraints import Checked, Count, Decay, Fraction, NonNegative, Positive
from openbench.digest import OMIT_IF_DEFAULT
from openbench.training.augment.augmentations import Augmentation, JensenShannon, Mixing
from openbench.training.augment.reading import Reading

TrainPrecision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Recipe(Checked):
    """SGD with momentum, linear warm-up, then cosine decay per step.

    Args:
        epochs: passes over the training split; 100 for CIFAR.
        batch_size: images per step; 128 for CIFAR. The last batch of an epoch may be smaller.
        lr: highest learning rate; 0.1.
        momentum: in [0, 1); 0.9.
        weight_decay: L2 penalty on every parameter, biases and batch norm included; 5e-4.
        nesterov: whether the momentum looks ahead.
        warmup_epochs: epochs during which the rate rises linearly from lr / steps to lr; 0.
        final_lr: the rate, absolute, that the cosine would reach one step after the last; 1e-6.
        clip: largest L2 norm of the gradient over all parameters; None = any.
        augment: applied to every training batch, in this order. A reading, which gives stored images the network's
            size, can only come first; a mixing of images or a `JensenShannon` only last.
        precision: of the forward and backward pass: `fp32`; `tf32` (CUDA may round products to 10 bits); `bf16` or
            `fp16` autocast, weights staying float32.
        channels_last: memory layout of the network; faster convolutions, other rounding.
        ema: decay d in (0, 1) of a running average of the weights over the steps, e.g. 0.999, which is then what is
            validated, kept and evaluated; None = the weights themselves.

    Raises:
        ConfigError: a value out of range.
    """

    epochs: Count = 100
    batch_size: Annotated[int, Ge(2)] = 128
    lr: Positive = 0.1
    momentum: Decay = 0.9
    weight_decay: NonNegative = 5e-4
    nesterov: bool = True
    warmup_epochs: Annotated[int, Ge(0)] = 0
    final_lr: NonNegative = 1e-6
    clip: Positive | None = None
    augment: Sequence[Reading | Augmentation | Mixing | JensenShannon] = ()
    precision: TrainPrecision = "fp32"
    channels_last: bool = True
    ema: Fraction | None = field(default=None, metadata={OMIT_IF_DEFAULT: True})

    def __post_init__(self) -> None:
        """Check what depends on another field, and the order of augmentations; a list from yaml becomes a tuple."""
        object.__setattr__(self, "augment", tuple(self.augment))
        self.require(not self.nesterov or self.momentum > 0, "nesterov", "false where momentum is 0")
        self.require(self.warmup_epochs < self.epochs, "warmup_epochs", f"less than epochs ({self.epochs})")
        self.require(self.final_lr <= self.lr, "final_lr", f"0 to lr ({self.lr})")
        first = int(isinstance(next(iter(self.augment), None), Reading))
        last = int(isinstance(next(reversed(self.augment), None), Mixing | JensenShannon))
        between = self.augment[first : len(self.augment) - last]
        allowed = "a list of Augmentation nodes; the first may be a Reading, the last a Mixing or a JensenShannon"
        self.require(all(isinstance(a, Augmentation) for a in between), "augment", allowed)

    @property
    def augmentations(self) -> tuple[Augmentation, ...]:
        """The augmentations of single images, in order."""
        return tuple(a for a in self.augment if isinstance(a, Augmentation))

    @property
    def reading(self) -> Reading | None:
        """The random geometry of stored images; None: that of evaluation."""
        return next((a for a in self.augment if isinstance(a, Reading)), None)

    @property
    def mixing(self) -> Mixing | None:
        """The mixing of images and labels after that, if any."""
        return next((a for a in self.augment if isinstance(a, Mixing)), None)

    @property
    def consistency(self) -> JensenShannon | None:
        """The loss between several versions of an image, if any."""
        return next((a for a in self.augment if isinstance(a, JensenShannon)), None)

    def steps_per_epoch(self, images: int) -> int:
        """Return the number of batches in an epoch; a single left-over image makes none: batch norm needs two."""
        return images // self.batch_size + (images % self.batch_size > 1)

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the rate of a step: lr·(t+1)/W while t < W, then final + (lr − final)·(1 + cos(π(t−W)/(T−W)))/2.

        Args:
            step: t, counted from 0 over the whole training.
            steps_per_epoch: T and W are `epochs` and `warmup_epochs` times this.

        Reference:
            Loshchilov, Hutter: SGDR, ICLR 2017, arXiv:1608.03983, without restarts; OpenOOD steps it per batch too.
        """
        warm, total = self.warmup_epochs * steps_per_epoch, self.epochs * steps_per_epoch
        if step < warm:
            return self.lr * (step + 1) / warm
        cosine = (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
        return self.final_lr + (self.lr - self.final_lr) * cosine
