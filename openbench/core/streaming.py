"""The contract of methods that learn from the test images they have scored."""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from openbench.config.constraints import Checked
from openbench.core.features import FeatureSet, Head
from openbench.core.inputs import held_to_finite, held_to_training, hold
from openbench.core.request import Request
from openbench.errors import MethodError, NotFittedError, OpenbenchError

M = TypeVar("M")


class StreamingMethod(Checked, ABC, Generic[M]):
    """An OOD score of the images of a stream, in their order: larger = more out-of-distribution.

    The score of an image may depend on the images before it and on itself, never on a later one; how the stream is cut
    into batches changes nothing. All that is learnt from the stream is in a memory that `memory` makes and `score_next`
    changes, so that a fitted method is the same after a stream as before, and each stream begins with an empty memory.
    What is learnt from ID images, by `fit`, lives in attributes whose names end in `_`, as in a `Method`.

    Such scores are not scores of a `Method`: they depend on which images came before. They have a protocol of their own
    (`openbench.engine.streams`), and are not ranked with others.
    """

    error: ClassVar[type[OpenbenchError]] = MethodError
    needs: ClassVar[Request] = Request()
    reference: ClassVar[str]
    version: ClassVar[int] = 1  # raised by every change that moves scores: it enters the id of a record

    def __init_subclass__(cls, **rest: Any) -> None:
        """Make the methods of a subclass refuse input that they cannot work with."""
        super().__init_subclass__(**rest)
        hold(cls, fit=held_to_training, score_next=held_to_finite)

    @property
    def request(self) -> Request:
        """What this instance needs."""
        return self.needs

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn from the split named by `request.fit_on`; return self. The default has nothing to learn.

        Args:
            train: the declared columns of that split with labels, or None if `fit_on` is None.
            head: the classifier, or None if not declared.
        """
        return self

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

    def params(self) -> dict[str, object]:
        """The hyper-parameters by name, as given."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def learnt(self, name: str) -> Any:
        """Return what was learnt as `name`, or raise NotFittedError."""
        value = getattr(self, name, None)
        if value is None:
            raise NotFittedError(f"{type(self).__name__}.score_next called before fit — call fit(train, head) first")
        return value
