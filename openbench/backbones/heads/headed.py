"""A network without a classifier, with one that was fitted on its features."""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.base import Backbone, HeadKind, Outputs, PromptKind
from openbench.backbones.network import NetworkBackbone
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Request
from openbench.digest import array_sha256, digest
from openbench.errors import NotApplicableError

HEADS_VERSION = 1  # raised when a fit or the logits change
NEIGHBOURS, TEMPERATURE = 20, 0.07
_BANK = 32768  # training features compared at a time
_QUERIES = 1024


class Headed(Backbone):
    """A network's features and maps, and the logits of a head that was fitted on its features.

    The features are cached as those of the network alone, so another head costs no pass. With a linear head, methods
    that run the network or take gradients see it with the head in its place.
    """

    def __init__(
        self,
        network: Backbone,
        kind: HeadKind | PromptKind,
        classify: Callable[[Tensor], Tensor],
        *,
        classes: int,
        fitted_on: Any,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Join a network and a head.

        Args:
            network: without a classifier, with weights; or features without a network.
            kind: of the head, e.g. `linear_probe`; the name ends in it.
            classify: features (n, d) → logits (n, c); a Head where they are linear.
            classes: c.
            fitted_on: the identity of the samples that the head was fitted and chosen on; enters the digest.
            about: further entries of a record on the head.
        """
        self.features_from, self._classify = network, classify
        self.name = f"{network.name}_{kind}"
        self.architecture = f"{network.architecture}, {kind} of {classes} classes"
        self.num_classes, self.feature_dim = classes, network.feature_dim
        self.layers, self.preprocess, self.device = network.layers, network.preprocess, network.device
        self.has_head, self.has_network = isinstance(classify, Head), network.has_network
        self.text_towers, self.has_patches = network.text_towers, network.has_patches
        identity = {"kind": kind, "version": HEADS_VERSION, "classes": classes, "fitted_on": fitted_on}
        self.digest = digest({"backbone": network.digest, "head": identity})
        self.weights_sha256 = network.weights_sha256
        self.fitted_head = {"kind": kind}
        if isinstance(classify, Head):
            parts = [array_sha256(part.numpy()) for part in (classify.weight, classify.bias)]
            self.fitted_head |= {"sha256": digest(parts, length=64), **about}
        self._network = network

    @property
    def made_of(self) -> tuple[object, ...]:
        """The network and the class of the head; their source may enter an identity."""
        return (self._network, type(self._classify))

    @property
    def passes(self) -> int:
        """Images pushed through the network so far."""
        return self._network.passes + (self._whole.passes if "_whole" in vars(self) else 0)

    @passes.setter
    def passes(self, count: int) -> None:
        """Start counting again, e.g. without the images of a pass that failed."""
        self._network.passes += count - self.passes

    @property
    def head(self) -> Head:
        """The linear head on the CPU; with zero classes where it is not linear."""
        if isinstance(self._classify, Head):
            return self._classify
        return Head(torch.zeros(0, self.feature_dim), torch.zeros(0))

    def to(self, device: torch.device) -> Self:
        """Move the network; return self."""
        self._network.to(device)
        self.device = self._network.device
        if "_whole" in vars(self):
            self._whole.to(device)
        return self

    def classify(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d), on their device."""
        with torch.no_grad():
            return self._classify(features)

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), after its input-gradient step if any.

        Raises:
            NotApplicableError: an input step where the head is not linear.
        """
        if request.perturb is not None:
            return self._whole.outputs(images, request)
        outputs = self._network.outputs(images, request)
        return replace(outputs, logits=self.classify(outputs.features))

    def frozen(self) -> AbstractContextManager[nn.Module]:
        """The network with the head, in eval mode without parameter gradients.

        Raises:
            NotApplicableError: the head is not linear.
        """
        return self._whole.frozen()

    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it."""
        return self._whole.changing(layer, change)

    def module(self) -> nn.Module:
        """The network with the head."""
        return self._whole.module()

    @cached_property
    def _whole(self) -> NetworkBackbone:
        """One network with the head where it has none; made when a method runs it itself."""
        network = self._network
        if not isinstance(self._classify, Head) or not isinstance(network, NetworkBackbone):
            lacks = "its head is not linear, so it has no gradients" if network.has_network else "there is no network"
            raise NotApplicableError(
                f"backbone '{self.name}': {lacks} — choose a method that reads features or logits"
                + ", or backbone.head=linear_probe" * network.has_network
            )
        module, head, anatomy = copy.deepcopy(network.module()), self._classify, network.anatomy
        linear = nn.Linear(self.feature_dim, self.num_classes)
        linear.weight.data, linear.bias.data = head.weight.clone(), head.bias.clone()
        module.set_submodule(anatomy.head, linear.to(self.device))
        return network.replaced(module, anatomy, self.architecture)


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """A weighted vote of the 20 training features of the largest cosine.

    Neighbour j votes for its class with exp(cos_j/0.07). Its logits are z_c = log((k·p_c + 1/C)/(k + 1)) with the share
    p_c of the votes: one further neighbour, spread evenly over the C classes, keeps them finite.

    Args:
        train: features (n, d), memory-mapped or not, and labels (n,).
        classes: C.

    Reference: Wu et al., CVPR 2018, arXiv 1805.01978; k and temperature of DINO and DINOv2's evaluation (Oquab et al.,
        TMLR 2024, arXiv 2304.07193).
    """

    train: FeatureSet
    classes: int

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d)."""
        return torch.cat([self._logits(rows) for rows in torch.split(features, _QUERIES)])

    def _logits(self, features: Tensor) -> Tensor:
        queries, labels = functional.normalize(features, dim=1), self.train.labels.to(features.device)
        k = min(NEIGHBOURS, len(self.train))
        near = features.new_empty(len(features), 0)
        voters = torch.empty(len(features), 0, dtype=torch.int64, device=features.device)
        for start in range(0, len(self.train), _BANK):
            bank = functional.normalize(self.train.features[start : start + _BANK].to(features.device), dim=1)
            cosines, place = (queries @ bank.T).topk(min(k, len(bank)), dim=1)
            near, voters = torch.cat([near, cosines], dim=1), torch.cat([voters, labels[place + start]], dim=1)
            near, nearest = near.topk(min(k, near.shape[1]), dim=1)
            voters = voters.gather(1, nearest)
        votes = torch.softmax(near / TEMPERATURE, dim=1)
        shares = torch.zeros(len(features), self.classes, device=features.device).scatter_add_(1, voters, votes)
        return torch.log((k * shares + 1 / self.classes) / (k + 1))
