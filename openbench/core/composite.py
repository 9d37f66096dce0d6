"""A score made of other scores: parts that may be fitted on different splits and read different inputs."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Request, Role
from openbench.errors import MethodError, NotFittedError


class Composite(Method):
    """Combines the scores of independent methods.

    `fit_parts` fits a fresh copy of each part on the split that the part names. `learn` then gets the fitted parts'
    scores of ID validation, e.g. to standardise them. It sees no labels and no OOD samples.
    """

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Method]:
        """The parts by name, as given: unfitted."""

    @abstractmethod
    def learn(self, id_val: Mapping[str, Tensor]) -> Self:
        """Learn from the fitted parts' scores (n,) of ID validation; return self."""

    @abstractmethod
    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the scores (n,) float32 made of the parts' scores (n,); larger = more OOD."""

    @property
    def request(self) -> Request:
        """Everything that the parts read; where they read different inputs, the engine scores them one by one."""
        requests = [leaf.request for leaf in leaves(self)]
        return replace(
            next((r for r in requests if r.layers), requests[0]),
            fields=frozenset().union(*(r.fields for r in requests)),
            fit_on=Role.ID_VAL,
            head=any(r.head for r in requests),
            layers=tuple(dict.fromkeys(layer for r in requests for layer in r.layers)),
            second_pass=next((r.second_pass for r in requests if r.second_pass), None),
            texts=tuple(dict.fromkeys(texts for r in requests for texts in r.texts)),
            corruption=None,
            mixing=next((r.mixing for r in requests if r.mixing), None),
        )

    @property
    def fitted_parts(self) -> Mapping[str, Method]:
        """The fitted copies of the parts.

        Raises:
            NotFittedError: before `fit_parts`.
        """
        parts: Mapping[str, Method] | None = getattr(self, "parts_", None)
        if parts is None:
            raise NotFittedError(f"{type(self).__name__} used before its parts were fitted — call fit_parts first")
        return parts

    def fit_parts(self, fit: Callable[[Method], Method], score: Callable[[Method], Tensor]) -> Self:
        """Fit the parts, then learn from their scores of ID validation; return self.

        Args:
            fit: fits an unfitted method on the split that it names and returns it.
            score: returns the scores (n,) of ID validation by a fitted method.
        """
        self.parts_ = {name: fit(type(part)(**part.params())) for name, part in self.parts.items()}
        return self.learn({name: score(part) for name, part in self.parts_.items()})

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Refuse: one split cannot serve parts that name different ones.

        Raises:
            MethodError: always.
        """
        raise MethodError(f"{type(self).__name__}.fit: each part is fitted on its own split — call fit_parts")

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32 of samples that have every part's columns; larger = more OOD.

        Raises:
            MethodError: parts read differently pooled maps or different inputs, which do not fit in one FeatureSet.
        """
        requests = [leaf.request for leaf in leaves(self)]
        pools = {request.pool for request in requests if request.layers}
        second_passes = {request.second_pass for request in requests} - {None}
        inputs = {(request.perturb, request.corruption) for request in requests}
        if len(pools) > 1 or len(second_passes) > 1 or len(inputs) > 1:
            raise MethodError(f"{type(self).__name__}.score: its parts read different inputs — run it in the engine")
        return self.combine({name: part.score(x) for name, part in self.fitted_parts.items()})


def leaves(method: Method) -> Iterator[Method]:
    """Yield the methods that read columns: a composite's parts and their parts, or the method itself."""
    if isinstance(method, Composite):
        for part in method.parts.values():
            yield from leaves(part)
    else:
        yield method


def version_of(method: Method) -> int:
    """Return a method's version; a composite's version rises with that of any part."""
    parts = method.parts.values() if isinstance(method, Composite) else ()
    return type(method).version + sum(version_of(part) - 1 for part in parts)
