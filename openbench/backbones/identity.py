"""No network at all: the features are the items themselves, for benchmarks whose items are vectors."""

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from openbench.backbones.base import Backbone, Outputs
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request
from openbench.digest import digest
from openbench.errors import CheckpointError, ConfigError


class Identity(Backbone):
    """Features are the columns of a table; there is one class and no classifier, so its only logit is 0."""

    classifies = False
    layers = ()
    num_classes = 1

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
                f"backbone '{name}' passes vectors on as features — the benchmark's items are images — choose a "
                "network (python -m openbench list backbone)"
            )
        self.name, self.preprocess, self.feature_dim = name, preprocess, columns
        self.architecture = f"identity of {columns} columns"
        self.digest = digest({"architecture": self.architecture})
        self.weights_sha256 = ""
        self._device = torch.device("cpu")

    @property
    def head(self) -> Head:
        """Zeros: there is no classifier."""
        return Head(torch.zeros(1, self.feature_dim), torch.zeros(1))

    @property
    def device(self) -> torch.device:
        """Where outputs are made."""
        return self._device

    def to(self, device: torch.device) -> Self:
        """Make outputs on another device; return self."""
        self._device = device
        return self

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return the vectors (n, d) as features.

        Raises:
            ConfigError: the method wants maps or an input step, which need a network.
        """
        if request.layers or request.perturb is not None:
            raise ConfigError(
                f"backbone '{self.name}' has neither maps nor gradients — choose a method that reads features"
            )
        self.passes += len(images)
        features = images.to(self._device)
        return Outputs(features.new_zeros(len(features), 1), features, {})

    def module(self) -> nn.Module:
        """Nothing to train."""
        return nn.Identity()

    def initialise(self, seed: int) -> Self:
        """Do nothing: there are no weights to draw."""
        return self

    def load(self, path: Path, sha256: str | None = None) -> Self:
        """Refuse: there are no weights to load.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError(f"backbone '{self.name}' has no weights — '{path}' cannot be loaded — leave the file out")
