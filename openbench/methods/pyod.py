"""Task-agnostic outlier detectors of the PyOD library, fitted on training features."""

import importlib
import importlib.util
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError, NotApplicableError, pip_install
from openbench.methods._stats import seeded, training

Detector = Literal["IForest", "OCSVM", "CBLOF", "HBOS", "KNN", "LOF", "PCA", "DeepSVDD"]
_MODULES = {"DeepSVDD": "deep_svdd"}  # others: the name in lower case
_SEEDED = ("IForest", "CBLOF", "PCA", "DeepSVDD")


@dataclass
class PyOD(Method):
    """Score of a PyOD detector at that library's defaults, which ADBench's tables use.

    score(x) = detector.decision_function(f), the detector fitted on training features without labels.

    Args:
        detector: PyOD's class: IForest, OCSVM, CBLOF, HBOS, KNN, LOF, PCA or DeepSVDD.
        seed: of the detectors that draw: IForest, CBLOF, PCA, DeepSVDD; and of the subset.
        max_train: the detector is fitted on at most that many training samples, drawn without replacement; None takes
            all. OCSVM and LOF cost the square of their number: hours for the 50,000 features of CIFAR-10.

    Raises:
        NotApplicableError: PyOD is not installed.
        MethodError: an unknown detector, a subset below 2 samples, features that are not finite, a detector that
            refuses the features, or one whose scores of them are not finite.

    Reference: Zhao, Nasrullah & Li, PyOD: A Python Toolbox for Scalable Outlier Detection, JMLR 20, 2019,
    arXiv 1901.01588; Han et al., ADBench, NeurIPS 2022, arXiv 2206.09426. COF, SOD, ECOD and COPOD are separate methods
    here: with PyOD's, a sample's score depends on the others in its batch.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Zhao et al., JMLR 2019, arXiv 1901.01588"
    learns_objects: ClassVar[str] = "an object of PyOD's"
    version: ClassVar[int] = 2  # at most max_train training samples

    detector: Detector = "IForest"
    seed: Seed = 0
    max_train: Annotated[int, Ge(2)] | None = 10_000

    def __post_init__(self) -> None:
        """Check the detector's name and that PyOD is there, without importing it."""
        if importlib.util.find_spec("pyod") is None:
            raise NotApplicableError(
                f"PyOD({self.detector!r}): the package pyod is not installed — {pip_install('pyod')}"
            )

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Fit the detector on training features (n, d)."""
        features = _array(self._subset(training(train, "PyOD")))
        # NaN scores are refused below, with a reason that a warning would not give.
        with seeded(self.seed), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("error", message="n_neighbors")  # otherwise it goes on with fewer neighbours
            detector = self._new(features.shape[1])
            try:
                detector.fit(features)
            except (ValueError, UserWarning) as error:
                raise MethodError(f"PyOD.fit: {self.detector} refuses {features.shape} features — {error}") from error
            lost = int((~np.isfinite(np.asarray(detector.decision_scores_, dtype=np.float32))).sum())
        if lost:
            raise MethodError(
                f"PyOD.fit: {self.detector} gives {lost} of {len(features)} training samples a score that is not "
                "finite (PCA divides by variances, which are 0 for columns that are constant or follow from others) — "
                "omit these columns, or take another detector"
            )
        self.detector_ = detector
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        detector: Any = self.learnt("detector_")
        scores = np.asarray(detector.decision_function(_array(x)), dtype=np.float64)
        return torch.from_numpy(scores).to(x.features.device, torch.float32)

    def _subset(self, train: FeatureSet) -> FeatureSet:
        if self.max_train is None or len(train) <= self.max_train:
            return train
        chosen = np.random.default_rng(self.seed).choice(len(train), self.max_train, replace=False)
        return train[torch.from_numpy(np.sort(chosen))]

    def _new(self, dim: int) -> Any:
        module = importlib.import_module(f"pyod.models.{_MODULES.get(self.detector, self.detector.lower())}")
        options: dict[str, Any] = {"random_state": self.seed} if self.detector in _SEEDED else {}
        if self.detector == "DeepSVDD":
            options |= {"n_features": dim, "verbose": 0}
        return getattr(module, self.detector)(**options)


def _array(x: FeatureSet) -> NDArray[np.float64]:
    return x.features.cpu().double().numpy()
