"""CoVer: a score averaged over an image and its corrupted copies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import torch
from annotated_types import Interval, MinLen
from torch import Tensor

from openbench.core import Composite, Corruption, FeatureSet, Head, LiveMethod, Method, Request, Role
from openbench.errors import MethodError


@dataclass
class OnCorrupted(Method):
    """Another method's score of corrupted copies; it is fitted on images as they are.

    score(x) = s(x̃), x̃ the copy.

    Args:
        base: s.
        corruption: one of ImageNet-C's fifteen.
        severity: 1 to 5.

    Reference: a part of CoVer, Zhang et al., NeurIPS 2024, arXiv 2410.18472.
    """

    reference: ClassVar[str] = "Zhang et al., NeurIPS 2024, arXiv 2410.18472"
    version: ClassVar[int] = Corruption.version

    base: Method
    corruption: str
    severity: Annotated[int, Interval(ge=1, le=5)]

    @property
    def request(self) -> Request:
        """What the base reads, of the copy."""
        return replace(self.base.request, corruption=Corruption(self.corruption, self.severity))

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Fit a copy of the base."""
        self.fitted_ = type(self.base)(**self.base.params()).fit(train, head)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the base's scores (n,) float32 of the copies' columns."""
        fitted: Method = self.learnt("fitted_")  # type: ignore[assignment]
        return fitted.score(x)


@dataclass
class CoVer(Composite):
    """The mean of a score over an image and its corrupted copies.

    score(x) = (s(x) + Σ_k s(x̃_k)) / (1 + K), x̃_k one copy for each kind and severity.

    Args:
        base: s, a method that reads cached columns, e.g. MCM.
        kinds: corruptions, of ImageNet-C's fifteen.
        severities: of each, 1 to 5.

    Raises:
        MethodError: a base that runs the network itself or has parts.

    Reference: Zhang et al., What If the Input is Expanded in OOD Detection?, NeurIPS 2024, arXiv 2410.18472;
    tmlr-group/CoVer. Their recommended kinds, found on SVHN as OOD validation, also have saturate and gaussian_blur,
    which are not among the fifteen. Copies are made of the network's crop; where a transform of the user's own
    takes it, of the whole image.
    """

    needs: ClassVar[Request] = Request(fit_on=Role.ID_VAL)
    reference: ClassVar[str] = "Zhang et al., NeurIPS 2024, arXiv 2410.18472"

    base: Method
    kinds: Annotated[Sequence[str], MinLen(1)] = ("brightness", "fog", "motion_blur", "defocus_blur")
    severities: Annotated[Sequence[Annotated[int, Interval(ge=1, le=5)]], MinLen(1)] = (1, 2)

    def __post_init__(self) -> None:
        """Check that the base's score of a copy can be read from cached columns."""
        if isinstance(self.base, Composite | LiveMethod):
            name = type(self.base).__name__
            raise MethodError(f"CoVer: base {name} runs the network or has parts — e.g. method@method.base=mcm")

    @property
    def parts(self) -> Mapping[str, Method]:
        """The base on the image, and on each copy."""
        copies = {f"{k}_{s}": OnCorrupted(self.base, k, s) for k in self.kinds for s in self.severities}
        return {"clean": self.base, **copies}

    def learn(self, id_val: Mapping[str, Tensor]) -> Self:
        """Learn nothing more: the parts' scores are in one unit."""
        return self

    def fit_parts(self, fit: Callable[[Method], Method], score: Callable[[Method], Tensor]) -> Self:
        """Fit the base once, on images as they are; no score of ID validation is needed."""
        base = fit(type(self.base)(**self.base.params()))
        copies: dict[str, Method] = {}
        for name, part in self.parts.items():
            if isinstance(part, OnCorrupted):
                copies[name] = copy = OnCorrupted(part.base, part.corruption, part.severity)
                copy.fitted_ = base
        self.parts_ = {"clean": base, **copies}
        return self

    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the mean (n,) float32 of the parts' scores."""
        return torch.stack([scores[name].double() for name in self.parts]).mean(dim=0).float()
