"""Live methods, which run the network themselves where cached columns are not enough."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request
from openbench.errors import MethodError, NotFittedError
from openbench.public import name_of
from openbench.source import foreign_sources, uncommitted


@dataclass(frozen=True)
class Outputs:
    """The outputs of one batch, on the backbone's device.

    Args:
        logits: (n, c) float32.
        features: (n, d) float32, penultimate, after pooling; head(features) = logits.
        maps: layer → reduced map, only the layers requested.
        patches: (n, p, d) float16, unit features of image patches; None unless they were requested.
    """

    logits: Tensor
    features: Tensor
    maps: Mapping[str, Tensor]
    patches: Tensor | None = None


class LiveBackbone(Protocol):
    """The part of a backbone that a live method may use; every backbone has it."""

    name: str
    num_classes: int
    layers: tuple[str, ...]
    preprocess: Preprocess

    @property
    def head(self) -> Head:
        """The classifier as a linear head on CPU."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """What `request` names for normalised images (n, 3, h, w), without gradients."""

    def frozen(self) -> AbstractContextManager[torch.nn.Module]:
        """The network in eval mode, without parameter gradients; the caller may take gradients by images and set hooks.

        Raises:
            NotApplicableError: there is no network.
        """

    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it.

        Raises:
            NotApplicableError: there is no such layer.
        """


class LiveMethod(Method):
    """A score of images, made by running the network; larger = more out-of-distribution.

    For scores that neither cached columns nor a declared input step can express: several steps, a gradient that depends
    on what was fitted, a change inside the network. It costs passes in every run with new hyper-parameters, so a score
    of features or maps should be a Method. Only its scores are cached: per network, images, class, version,
    hyper-parameters, the split that `fit` saw, and the source of a class that openbench does not ship. `fit` reads
    cached columns as in any method; `needs` says which.
    """

    needs: ClassVar[Request] = Request(fields=frozenset())
    fitted_on_: str = ""  # digest of the split that `fit` saw, noted by the engine

    @abstractmethod
    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch, independent of batch size and order; larger = more OOD.

        Args:
            images: (n, 3, h, w) normalised, on the backbone's device; not to be changed.
            backbone: the network; left as it was found.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            NotApplicableError: the backbone lacks what the score needs.
        """

    def score(self, x: FeatureSet) -> Tensor:
        """Refuse: a live method scores images, not cached columns.

        Raises:
            MethodError: always.
        """
        raise MethodError(f"{type(self).__name__}.score: it scores images — call score_images(images, backbone)")

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return None: a live method has scores only."""
        return None

    def identity(self) -> dict[str, object]:
        """Everything besides network and images that the scores depend on; it names the cached scores.

        Raises:
            NotFittedError: there is something to fit, and the engine has not.
        """
        kind = type(self)
        if self.request.fit_on is not None and not self.fitted_on_:
            raise NotFittedError(f"{kind.__name__}: scored before it was fitted — call engine.evaluate.fit first")
        # The version identifies code that is shipped and committed; other code is identified by its source.
        made_from = {"sources": foreign_sources(self), "uncommitted": uncommitted(__name__, parts=(self,))}
        named = {"method": name_of(kind), "version": kind.version, "params": self.params()}
        return {**named, "fitted_on": self.fitted_on_, **{key: files for key, files in made_from.items() if files}}
