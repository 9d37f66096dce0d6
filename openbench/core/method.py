"""The contract of post-hoc methods: small dataclasses that turn cached tensors into OOD scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Checked
from openbench.core._inputs import check_finite, check_training, guard
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Request
from openbench.errors import MethodError, NotFittedError, OpenbenchError

if TYPE_CHECKING:
    from openbench.core.search import SearchContext, Tuned

_BLOCK = 512  # rows reshaped at a time


class Method(Checked, ABC):
    """A post-hoc OOD score: larger = more out-of-distribution.

    Concrete classes are final `@dataclass`es whose fields are the hyper-parameters, stored verbatim; state learnt by
    `fit` lives in attributes whose names end in `_`. A method never sees a model, a loader or a config.
    """

    error: ClassVar[type[OpenbenchError]] = MethodError
    needs: ClassVar[Request] = Request()
    reference: ClassVar[str]
    version: ClassVar[int] = 1  # raised by every change that moves scores: it enters the run id
    # Hyper-parameters that `fit` does not read: a search fits once for all their values.
    read_by_score: ClassVar[frozenset[str]] = frozenset()
    # In words, the objects that `fit` learns which are not numbers or tensors: a detector cannot save them.
    learns_objects: ClassVar[str] = ""
    # Whether `search` reads which predictions of the network are right.
    search_reads_predictions: ClassVar[bool] = False

    def __init_subclass__(cls, **rest: Any) -> None:
        """Check what the methods of a subclass are given."""
        super().__init_subclass__(**rest)
        scoring = dict.fromkeys(("score", "score_next", "class_scores"), check_finite)
        guard(cls, fit=check_training, **scoring)

    @property
    def request(self) -> Request:
        """What this instance needs; differs from `needs` only where a hyper-parameter enters (ODIN's T and ε)."""
        return self.needs

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn from the split named by `request.fit_on`; return self. The default has nothing to learn.

        Args:
            train: the declared columns of that split with labels, or None if `fit_on` is None.
            head: the classifier, or None if not declared.
        """
        return self

    @abstractmethod
    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32 of `x`, independent of batch size and order; larger = more OOD.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            MethodError: no rows, or a row that is NaN or infinite.
        """

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return (n, c) float32, how badly each class fits, larger = worse; None if the method has no such form.

        Prediction sets are made from it. It is the class-conditional form s(x, y) of the score, e.g. 1 − p_y for MSP.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
        """
        return None

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the probabilities (n, c) behind class scores (n, c); None if these are not made of probabilities.

        Prediction sets need probabilities: these, or the softmax of the negative scores.
        """
        return None

    @property
    def own_space(self) -> Mapping[str, Sequence[Any]]:
        """Hyper-parameter → values that tuning tries where the config has no `_space_`."""
        return {}

    def search(self, space: Mapping[str, Sequence[Any]], context: "SearchContext") -> "Tuned | None":
        """Return the outcome of the method's own search; None (the default) = take the highest validation AUROC.

        Args:
            space: hyper-parameter → values to try.
            context: what the search may touch.
        """
        return None

    def params(self) -> dict[str, object]:
        """The hyper-parameters by name, as given."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def learnt(self, name: str) -> Tensor:
        """Return the learnt tensor `name`, or raise NotFittedError."""
        value = getattr(self, name, None)
        if value is None:
            raise NotFittedError(f"{type(self).__name__}.score called before fit — call fit(train, head) first")
        return value  # type: ignore[no-any-return]


class HeadMethod(Method):
    """Reshapes features, then scores by the energy of the head's logits: −log Σ exp(W r(f) + b)."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)

    @abstractmethod
    def reshape(self, features: Tensor) -> Tensor:
        """Return the reshaped features (n, d); the argument is not changed."""

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the head."""
        if head is None:
            raise MethodError(f"{type(self).__name__} needs the classifier head — pass head=Head(W, b)")
        self.head_ = head
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the negative log-sum-exp of the reshaped logits, (n,)."""
        return -torch.logsumexp(self._reshaped_logits(x), dim=1)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax of the reshaped logits, (n, c) float32."""
        return 1 - torch.softmax(self._reshaped_logits(x), dim=1)

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the softmax of the reshaped logits, (n, c)."""
        return 1 - scores

    def _reshaped_logits(self, x: FeatureSet) -> Tensor:
        head: Head = self.learnt("head_")  # type: ignore[assignment]
        features = x.features
        if len(features) <= _BLOCK:
            return head(self.reshape(features))
        # Reshaped features of all rows at once would leave the processor's cache.
        return torch.cat([head(self.reshape(rows)) for rows in torch.split(features, _BLOCK)])
