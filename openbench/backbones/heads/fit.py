"""Linear classifiers of cached features: logistic regression fitted to convergence, and the nearest class mean."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.errors import DataError

logger = logging.getLogger(__name__)

LAMBDAS: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(2, -13, -1))  # 10 … 10⁻⁶, the largest first
_BATCH = 8192
_OPTIONS = {"maxiter": 3000, "maxfun": 6000, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-4}
_WIDE = 12.0  # how far the temperature may lie from the spread within classes, in powers of e


@dataclass(frozen=True)
class FittedHead:
    """A linear classifier, and how it came about.

    Args:
        head: W (c, d) and b (c,).
        about: what a record says of it: its regularisation or temperature, and its ID validation accuracy.
    """

    head: Head
    about: Mapping[str, Any]


def linear_probe(train: FeatureSet, val: FeatureSet, classes: int) -> FittedHead:
    """Return logistic regression on features, the regularisation of the highest ID validation accuracy.

    min over W, b of (1/n) Σ CE(W f̃ + b, y) + ½ λ ‖W‖², by L-BFGS to convergence, for each λ of 10, 10^0.5, …, 10⁻⁶.
    f̃ = (f − m)/s with the mean m of the training features and the root mean square s of their deviations, so that λ
    means the same for every network; ties in accuracy go to the lower cross-entropy. The record of each λ has the
    largest component that is left of the gradient of the objective over λ: at most 1e-4 where L-BFGS has converged.

    Args:
        train: features (n, d) and labels (n,).
        val: likewise, of ID validation.
        classes: c.

    Raises:
        DataError: a class without training samples.

    Reference:
        Radford et al., ICML 2021, arXiv 2103.00020, appendix A.3: L-BFGS, λ swept on validation. Their features are not
        scaled, and their λ are others.
    """
    problem = _Problem.of(train, classes)
    parameters, trials, tried = np.zeros(classes * (problem.d + 1)), [], []
    for weight in LAMBDAS:
        found = minimize(problem.value, parameters, args=(weight,), jac=True, method="L-BFGS-B", options=_OPTIONS)
        parameters = found.x  # the next λ starts here
        head = problem.head(parameters)
        accuracy, loss = quality(head, val)
        steps, left = int(found.nit), float(np.abs(found.jac).max())
        trials.append({"lambda": weight, "accuracy": accuracy, "cross_entropy": loss, "steps": steps, "gradient": left})
        early = "" if left <= _OPTIONS["gtol"] else f", stopped early: a gradient of {left:.1g} is left"
        logger.info(f"linear probe: λ = {weight:.2g}: ID validation accuracy {accuracy:.4f} after {steps} steps{early}")
        tried.append((accuracy, -loss, weight, head))
    accuracy, _, weight, head = max(tried, key=lambda one: one[:2])
    return FittedHead(head, {"lambda": weight, "id_val_accuracy": accuracy, "trials": trials})


def nearest_mean(train: FeatureSet, val: FeatureSet, classes: int) -> FittedHead:
    """Return the nearest class mean as a linear head: z_c = −½ t ‖f − μ_c‖² + ½ t ‖f‖² = t μ_c·f − ½ t ‖μ_c‖².

    The temperature t is that of the lowest cross-entropy on ID validation; it changes probabilities, not predictions.

    Args:
        train: features (n, d) and labels (n,).
        val: likewise, of ID validation.
        classes: c.

    Raises:
        DataError: a class without training samples.

    Reference: Snell et al., NeurIPS 2017, arXiv 1703.05175, where t is 2.
    """
    problem = _Problem.of(train, classes)
    means = torch.from_numpy(problem.means)  # around the mean of all features, which cancels in the differences

    def head_at(log_t: float) -> Head:
        scaled = means * np.exp(log_t)
        bias = -0.5 * (scaled * means).sum(dim=1) - scaled @ torch.from_numpy(problem.mean)
        return Head(scaled.float(), bias.float())

    centre = -2 * float(np.log(problem.scale))
    found = minimize_scalar(
        lambda log_t: quality(head_at(log_t), val)[1], bounds=(centre - _WIDE, centre + _WIDE), method="bounded"
    )
    head = head_at(float(found.x))
    accuracy, _ = quality(head, val)
    return FittedHead(head, {"temperature": float(np.exp(found.x)), "id_val_accuracy": accuracy})


@dataclass(frozen=True)
class _Problem:
    """Training features around their mean, in units of their deviation.

    Args:
        train: features and labels.
        classes: c.
        mean: (d,) float64 of the features.
        scale: root mean square of their deviations from it, over samples and features.
        means: (c, d) float64 of each class, around `mean`.
    """

    train: FeatureSet
    classes: int
    mean: NDArray[np.float64]
    scale: float
    means: NDArray[np.float64]

    @classmethod
    def of(cls, train: FeatureSet, classes: int) -> "_Problem":
        """Read the training set twice: for the mean, and for the deviations."""
        d = train.features.shape[1]
        counts = torch.bincount(train.labels, minlength=classes)
        if len(counts) > classes or int(counts.min()) == 0:
            absent = [c for c, count in enumerate(counts.tolist()) if not count]
            raise DataError(
                f"a head for {classes} classes needs training samples of each, found {len(counts) - len(absent)} "
                f"classes and none of class {absent[0] if absent else classes}"
            )
        sums, square = torch.zeros(classes, d, dtype=torch.float64), 0.0
        for rows in train.batches(_BATCH):
            sums.index_add_(0, rows.labels.cpu(), rows.features.double().cpu())
        mean = sums.sum(dim=0) / len(train)
        for rows in train.batches(_BATCH):
            square += float((rows.features.double().cpu() - mean).square().sum())
        scale = (square / (len(train) * d)) ** 0.5 or 1.0
        return cls(train, classes, mean.numpy(), scale, (sums / counts[:, None] - mean).numpy())

    @property
    def d(self) -> int:
        """The number of features."""
        return len(self.mean)

    def value(self, parameters: NDArray[np.float64], weight: float) -> tuple[float, NDArray[np.float64]]:
        """The objective over λ, and its gradient, at W (c, d) and b (c,), flattened one after the other.

        Divided by λ, a gradient of a given length bounds the distance to the best W, whatever λ is.
        """
        kind = torch.float64 if self.train.device.type == "cpu" else torch.float32
        device = self.train.device
        W, b, mean = (torch.from_numpy(part).to(device, kind) for part in (*self._parts(parameters), self.mean))
        loss, dW, db = 0.0, torch.zeros(W.shape, dtype=torch.float64), torch.zeros(len(b), dtype=torch.float64)
        for rows in self.train.batches(_BATCH):
            x = (rows.features.to(kind) - mean) / self.scale
            log_p = torch.log_softmax(torch.addmm(b, x, W.T), dim=1)
            loss -= float(log_p.gather(1, rows.labels[:, None]).double().sum())
            error = log_p.exp()
            error[torch.arange(len(x), device=x.device), rows.labels] -= 1
            dW += (error.T @ x).double().cpu()
            db += error.sum(dim=0).double().cpu()
        n, flat = len(self.train), self._parts(parameters)[0]
        gradient = np.concatenate([(dW.numpy() / (n * weight) + flat).ravel(), db.numpy() / (n * weight)])
        return loss / (n * weight) + 0.5 * float((flat**2).sum()), gradient

    def head(self, parameters: NDArray[np.float64]) -> Head:
        """The classifier of features as they are."""
        W, b = self._parts(parameters)
        weight = W / self.scale
        return Head(*(torch.from_numpy(part.astype(np.float32)) for part in (weight, b - weight @ self.mean)))

    def _parts(self, parameters: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        size = self.classes * self.d
        return parameters[:size].reshape(self.classes, self.d), parameters[size:]


def quality(head: Head, val: FeatureSet) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on a labelled set."""
    right, loss = 0, 0.0
    for rows in val.batches(_BATCH):
        z: Tensor = head(rows.features).double()
        right += int((z.argmax(dim=1) == rows.labels).sum())
        loss += float(torch.nn.functional.cross_entropy(z, rows.labels, reduction="sum"))
    return right / len(val), loss / len(val)
