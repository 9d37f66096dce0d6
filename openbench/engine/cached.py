"""Cached features of one backbone, and how much of a run's extraction is still to come."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.request import Field, Mixing, Request, Texts
from openbench.engine.outcomes.clock import Clock
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.features.store import FeatureStore
from openbench.say import Say, silent

_BASE = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))


@dataclass
class CachedFeatures:
    """A feature store bound to one backbone; its time is the clock's `features` stage.

    Args:
        store: where columns lie.
        backbone: with weights.
        clock: of the run.
        say: receives a line after each set that had to be extracted while others are to come.
        reused: version, commit and time of the features that were in the cache; the latest if they differ.
    """

    store: FeatureStore
    backbone: Backbone
    clock: Clock
    say: Say = silent
    reused: str = ""
    _waiting: dict[str, int] = field(default_factory=dict)
    _expected: int = 0
    _images: int = 0
    _seconds: float = 0.0

    def expect(self, splits: Iterable[Split]) -> None:
        """Find which splits of a run have no features yet, and say how many images they have.

        Args:
            splits: all that will be asked for.
        """
        every = list(splits)
        missing = [s for s in every if self.store.missing(self.backbone, s, _BASE)]
        kept = [self.store.made(self.backbone, split) for split in every if split not in missing]
        if kept:
            some = f" ({len(kept)} of {len(every)} sets)" if missing else ""
            # Each line ends in its time: take the latest.
            self.reused = max(kept, key=lambda made: made.rpartition(", ")[2]) + some
        self._waiting = {_name(split): len(split) for split in missing}
        self._expected = len(missing)
        if len(missing) > 1:
            self.say(f"features: {sum(self._waiting.values()):,} images of {len(missing)} sets to extract")

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """The columns of a split, extracted now if they are not cached."""
        before, start = self.backbone.passes, monotonic()
        with self.clock.stage("features"):
            found = self.store.get(self.backbone, split, request)
        if self.backbone.passes > before and self._waiting.pop(_name(split), 0):
            self._images += len(split)
            self._seconds += monotonic() - start
            if self._waiting:
                self.say(self._outlook())
        return found

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        """The scores of a split by a live method, made now if they are not cached."""
        with self.clock.stage("features"):
            return self.store.scores(self.backbone, split, method).numpy()

    def texts(self, texts: Texts) -> Tensor:
        """The unit embeddings (m, d) of a corpus, made now if they are not cached."""
        with self.clock.stage("features"):
            return self.store.texts(self.backbone, texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        """The features (n, d) of a split's images, each mixed with one of `others`, extracted now if not cached."""
        with self.clock.stage("features"):
            copies = mixed(split, others, mixing, self.backbone.preprocess)
            return self.store.get(self.backbone, copies, MIXED_READ).features

    def _outlook(self) -> str:
        images = sum(self._waiting.values())
        seconds = images * self._seconds / self._images
        left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        return (
            f"features: {self._expected - len(self._waiting)} of {self._expected} sets done, {images:,} images to go, "
            f"about {left} left"
        )


def _name(split: Split) -> str:
    return f"{split.role}/{split.name}"
