"""Backbones without a network: features that were computed elsewhere, and the columns of a table."""

from typing import Self

import torch
from torch import Tensor, nn

from openbench.backbones.base import Backbone, Outputs
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request
from openbench.digest import digest
from openbench.errors import ConfigError, DataError, NotApplicableError

AS_THEY_ARE = Preprocess(resize=1, crop=1, mean=(0.0,), std=(1.0,), interpolation="nearest")


class Rows(Backbone):
    """Passes rows on as features, with the logits that the rows bring or that a linear head makes of them.

    There are no images, so there are neither maps nor gradients. The first `feature_dim` numbers of a row are its
    features, `logits` further ones its logits.
    """

    layers = ()
    has_network = False

    def __init__(self, name: str, feature_dim: int, *, logits: int = 0, head: Head | None = None) -> None:
        """Say what a row holds.

        Args:
            name: how it is called in records.
            feature_dim: d.
            logits: c, if rows bring logits; 0 = they are computed with `head`, or there are none.
            head: the linear classifier, if it is known.
        """
        self.name, self.feature_dim = name, feature_dim
        self.num_classes = logits or (0 if head is None else head.num_classes)
        self.classifies = self.num_classes > 0
        self.has_head = head is not None
        self.preprocess = AS_THEY_ARE
        self.columns, self._logits = feature_dim + logits, logits
        self._head = head or Head(torch.zeros(0, feature_dim), torch.zeros(0))
        self._device = torch.device("cpu")
        self.architecture = f"rows of {feature_dim} features and {logits} logits"
        weights = [part.numpy() for part in (self._head.weight, self._head.bias)] if self.has_head else []
        self.weights_sha256 = digest(weights, length=64) if weights else ""
        self.digest = digest({"architecture": self.architecture, "head": weights})

    @property
    def head(self) -> Head:
        """The classifier; with zero classes where it is not known."""
        return self._head

    @property
    def device(self) -> torch.device:
        """Where outputs are made."""
        return self._device

    def to(self, device: torch.device) -> Self:
        """Make outputs on another device; return self."""
        self._device = device
        return self

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what rows (n, d + c) hold.

        Raises:
            DataError: rows of another length.
            NotApplicableError: the method wants maps or an input step, which need a network.
        """
        if request.layers or request.perturb is not None:
            raise NotApplicableError(
                f"backbone '{self.name}' has neither maps nor gradients — choose a method that reads features or logits"
            )
        if images.shape[1] != self.columns:
            raise DataError(f"backbone '{self.name}' takes rows of {self.columns} numbers, found {images.shape[1]}")
        rows = images.to(self._device)
        features = rows[:, : self.feature_dim]
        if self._logits:
            return Outputs(rows[:, self.feature_dim :], features, {})
        return Outputs(self._head(features) if self.has_head else features[:, :0], features, {})


class Identity(Rows):
    """Features are the columns of a table; there is one class and no classifier, so its only logit is 0."""

    has_network = True

    def __init__(self, name: str, preprocess: Preprocess, columns: int | None) -> None:
        """Take the number of columns from the benchmark.

        Args:
            name: what users type after `backbone=`.
            preprocess: the benchmark's; rows of a table are passed as they are.
            columns: numbers in an item, None if items are images.

        Raises:
            ConfigError: items are images.
        """
        if columns is None:
            raise ConfigError(
                f"backbone '{name}' passes vectors on as features, the benchmark has images — choose a network (python "
                "-m openbench list backbone)"
            )
        super().__init__(name, columns, head=Head(torch.zeros(1, columns), torch.zeros(1)))
        self.preprocess, self.classifies = preprocess, False
        self.architecture, self.weights_sha256 = f"identity of {columns} columns", ""
        self.digest = digest({"architecture": self.architecture})

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return the vectors (n, d) as features, and count them."""
        self.passes += len(images)
        return super().outputs(images, request)

    def module(self) -> nn.Module:
        """Nothing to train."""
        return nn.Identity()
