"""Streaming methods, which learn from the test images that they have scored, and the streams of images."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Checked, Count, Positive, Seed
from openbench.config.overrides import STREAM
from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.errors import ConfigError, MethodError

M = TypeVar("M")


@dataclass(frozen=True)
class StreamPlan(Checked):
    """What a stream holds and in which orders.

    Args:
        sets: `each`: a stream of ID test and one OOD set, for each of these; `all`: one stream of ID test and all.
        ood_per_id: OOD images per ID image; as many images as this allows are drawn from both, anew for each order.
            None takes all images of both.
        orders: of each stream; its images in a random order, with an empty memory at the beginning.
        seed: order i is drawn from seed and i.
    """

    named: ClassVar[str] = f"method.{STREAM}"

    sets: Literal["each", "all"] = "each"
    ood_per_id: Positive | None = None
    orders: Count = 5
    seed: Seed = 0

    def order(self, id_images: int, ood_images: int, number: int) -> NDArray[np.int64]:
        """Return the images of order `number`, ID ones as 0 to id_images − 1, OOD ones from there on.

        Raises:
            ConfigError: the ratio leaves no image of a side.
        """
        rng = np.random.default_rng([self.seed, number])
        inside, outside = np.arange(id_images), np.arange(id_images, id_images + ood_images)
        if self.ood_per_id is not None:
            n = min(id_images, int(ood_images / self.ood_per_id))
            m = min(ood_images, round(n * self.ood_per_id))
            if not n or not m:
                raise ConfigError(
                    f"{self.named}.ood_per_id — found {self.ood_per_id:g}, which leaves no image of one side"
                )
            inside, outside = rng.choice(inside, n, replace=False), rng.choice(outside, m, replace=False)
        return rng.permutation(np.concatenate([inside, outside]))


class StreamingMethod(Method, Generic[M]):
    """An OOD score of the images of a stream, in their order: larger = more out-of-distribution.

    The score of an image may depend on the images before it and on itself, never on a later one; how the stream is cut
    into batches changes nothing. All that is learnt from the stream is in a memory that `memory` makes and `score_next`
    changes, so that a fitted method is the same after a stream as before, and each stream begins with an empty memory.

    The engine scores streams as `_stream_` in the method's config says (`StreamPlan`); nothing is tuned, and such
    scores are not ranked with others.
    """

    @abstractmethod
    def memory(self) -> M:
        """Return an empty memory, with which a stream begins.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
        """

    @abstractmethod
    def score_next(self, x: FeatureSet, memory: M) -> Tensor:
        """Return the scores (n,) float32 of the next n images of a stream, and put into the memory what they teach.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            MethodError: no rows, or a row that is NaN or infinite.
        """

    def score(self, x: FeatureSet) -> Tensor:
        """Refuse: the score of an image depends on those before it.

        Raises:
            MethodError: always.
        """
        raise MethodError(
            f"{type(self).__name__}.score: its scores depend on the images before — call score_next(images, memory)"
        )
