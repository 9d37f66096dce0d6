"""Choosing the layer weights of a Mahalanobis ensemble: its distances are taken once for all ways to weigh them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from openbench.core.benchmark import Split
from openbench.engine.evaluate import fit, score_split, with_params
from openbench.engine.search import grid
from openbench.engine.tune import TuneContext, Tuned, best_trial
from openbench.errors import MethodError
from openbench.methods.mds_ensemble import MDSEnsemble
from openbench.metrics.ranking import auroc

Distances = NDArray[np.float64]


def regress(method: MDSEnsemble, space: Mapping[str, Sequence[Any]], context: TuneContext) -> Tuned:
    """Return the setting of the highest validation AUROC (ties: the first tried), weights as numbers, and all trials.

    Args:
        method: unfitted.
        space: values of its hyper-parameters; `logistic` among the weights stands for those found by regression.
        context: what the choice may touch.

    Raises:
        ConfigError: the space names no hyper-parameter of the method.
        MethodError: no setting is feasible.
    """
    settings = grid(space, list(method.params()), type(method).__name__)
    trials: list[dict[str, Any]] = []
    measured: dict[str, tuple[MDSEnsemble, Distances, Distances]] = {}
    for params in settings:
        others, weights = _but_weights(params), params.get("weights", method.weights)
        try:
            if others not in measured:
                measured[others] = _measured(with_params(method, {**params, "weights": "equal"}), context)
            fitted, inside, outside = measured[others]
            found = logistic_weights(inside, outside) if weights == "logistic" else weights
            chosen: dict[str, Any] = {**params, "weights": found if isinstance(found, str) else list(found)}
            weighed = _weighed(fitted, chosen["weights"])
            trials.append({"params": chosen, "auroc": auroc(_total(weighed, inside), _total(weighed, outside))})
        except MethodError as error:
            trials.append({"params": params, "infeasible": str(error)})
        context.report(len(trials), len(settings), trials[-1])
    best = best_trial(method, trials)["params"]
    fitted, *_ = measured[_but_weights(best)]
    return Tuned(dict(best), trials, _weighed(fitted, best["weights"]))


def logistic_weights(inside: Distances, outside: Distances) -> list[float]:
    """Return the weight (k,) of each of k distances in the logistic regression that tells ID from OOD samples.

    Distances are standardised over both sides, weights penalised by ½‖w‖² against the sum of losses, both sides weigh
    alike whatever their sizes, and the weights are those of distances as given.

    Args:
        inside: (n, k) of ID samples.
        outside: (m, k) of OOD samples.
    """
    x = np.concatenate([inside, outside])
    mean, std = x.mean(axis=0), x.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    y = np.repeat([0, 1], [len(inside), len(outside)])
    model = LogisticRegression(C=1.0, class_weight="balanced", tol=1e-8, max_iter=10000)
    weights: list[float] = (model.fit((x - mean) / std, y).coef_[0] / std).tolist()
    return weights


def _but_weights(params: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in params.items() if name != "weights"})


def _weighed(fitted: Any, weights: str | Sequence[float]) -> Any:
    """The fitted parts, weighed otherwise."""
    weighed = with_params(fitted, {"weights": weights})
    vars(weighed)["parts_"] = fitted.fitted_parts
    return weighed


def _measured(method: Any, context: TuneContext) -> tuple[MDSEnsemble, Distances, Distances]:
    """Fit, and return the distances (n, k) of both sides."""
    fitted: Any = fit(method, context.fitting, context.features, context.device)
    id_split, ood_splits = context.sides()
    return fitted, _distances(fitted, (id_split,), context), _distances(fitted, ood_splits, context)


def _distances(fitted: MDSEnsemble, splits: Sequence[Split], context: TuneContext) -> Distances:
    runtime = (context.device, context.batch)
    rows = [
        np.stack([score_split(part, s, context.features, runtime) for part in fitted.fitted_parts.values()], axis=1)
        for s in splits
    ]
    return np.concatenate(rows).astype(np.float64)


def _total(weighed: Any, distances: Distances) -> NDArray[np.float32]:
    columns = {name: torch.from_numpy(distances[:, i]) for i, name in enumerate(weighed.fitted_parts)}
    total: NDArray[np.float32] = weighed.combine(columns).numpy()
    return total
