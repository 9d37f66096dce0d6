"""Maximum softmax probability after temperature scaling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.errors import MethodError
from openbench.methods._stats import max_softmax

_ROWS = 1024  # whose temporaries stay near the processor with ImageNet's classes


@dataclass
class TempScaling(Method):
    """Negative maximum softmax probability at the temperature that calibrates ID validation.

    score(x) = −max_c softmax(z/T)_c, T minimising the mean negative log-likelihood of ID validation labels.

    Args:
        solver: `lbfgs` takes 50 LBFGS iterations with step .01 from T = 1.5, which may stop short of the optimum:
            this made the published numbers; `converged` solves the one-dimensional problem (convex in 1/T).

    Raises:
        MethodError: a temperature that is not positive or finite came out.

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv 1706.04599.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.LABELS}), fit_on=Role.ID_VAL)
    reference: ClassVar[str] = "Guo et al., ICML 2017, arXiv 1706.04599"

    solver: Literal["lbfgs", "converged"] = "lbfgs"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Find the temperature on ID validation logits (n, c) and labels (n,)."""
        if train is None:
            raise MethodError("TempScaling.fit: needs ID validation logits and labels — found None")
        rows = list(train.batches(_ROWS))
        found = _lbfgs(rows, len(train)) if self.solver == "lbfgs" else _converged(rows, len(train))
        if not (np.isfinite(found) and found > 0):
            raise MethodError(f"TempScaling: temperature {found} after solver={self.solver} — use solver=converged")
        self.temperature_ = torch.tensor(found, dtype=torch.float32)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        scaled = x.logits / self.learnt("temperature_").to(x.logits.device)
        return -max_softmax(scaled)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax(z/T), (n, c) float32."""
        fit: Tensor = torch.softmax(x.logits / self.learnt("temperature_").to(x.logits.device), dim=1)
        return 1 - fit

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return softmax(z/T), (n, c)."""
        return 1 - scores


def _lbfgs(batches: Sequence[FeatureSet], n: int) -> float:
    with torch.enable_grad():
        temperature = torch.full((1,), 1.5, device=batches[0].logits.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

        def closure() -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros((), device=temperature.device)
            for rows in batches:  # gradients add up
                loss = functional.cross_entropy(rows.logits / temperature, rows.labels) * (len(rows) / n)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total

        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return float(temperature.detach())


def _converged(batches: Sequence[FeatureSet], n: int) -> float:
    def loss(log_inverse: float) -> float:
        scaled = ((rows.logits.double() * float(np.exp(log_inverse)), rows.labels) for rows in batches)
        return sum(float(functional.cross_entropy(z, labels, reduction="sum")) for z, labels in scaled) / n

    # From T = 1/1000 to 1000; beyond, the classifier is either always right or no better than chance.
    return float(np.exp(-minimize_scalar(loss, bounds=(-6.91, 6.91), method="bounded", options={"xatol": 1e-10}).x))
