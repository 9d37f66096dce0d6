"""Maximum softmax probability after temperature scaling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

from openbench.core import FeatureSet, Field, Head, Request, Role
from openbench.errors import MethodError
from openbench.methods._bases import SoftmaxMethod
from openbench.methods._stats import max_softmax, training

_ROWS = 1024  # whose temporaries stay near the processor with ImageNet's classes


@dataclass
class TempScaling(SoftmaxMethod):
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
        train = training(train, "TempScaling")
        solve = _lbfgs if self.solver == "lbfgs" else _converged
        temperature = solve(list(train.batches(_ROWS)), len(train))
        if not (np.isfinite(temperature) and temperature > 0):
            raise MethodError(f"TempScaling: solver={self.solver} ends at T = {temperature} — use solver=converged")
        self.temperature_ = torch.tensor(temperature, dtype=torch.float32)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -max_softmax(self._class_logits(x))

    def _class_logits(self, x: FeatureSet) -> Tensor:
        return x.logits / self.learnt("temperature_").to(x.logits.device)


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
