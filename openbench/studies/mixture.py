"""The synthetic problem of the reject-option paper: three classes on a line and one bump of OOD, with ideal scores."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from openbench.config.constraints import Count, check_value
from openbench.errors import ConfigError
from openbench.metrics.selective.risk import SelectiveCurve, TprFpr, least_risk, oscr_selective
from openbench.results.tables.render import Estimate
from openbench.studies.cells import Cell
from openbench.studies.figures import Published
from openbench.studies.spread import difference
from openbench.studies.study import Row, Study

_WEIGHTS, _MEANS, _OOD_DEVIATION = np.array([0.3, 0.3, 0.4]), np.array([-1.0, 1.0, 3.0]), float(np.sqrt(0.2))
_PRIOR = 0.25  # of OOD
_BOUND = TprFpr(0.7, 0.2)
_SCORES = ("r", "g")
Floats = NDArray[np.float64]

_METRICS: dict[str, Callable[[SelectiveCurve], float | str]] = {
    "auroc": lambda curve: curve.pair.auroc(),
    "aupr_in": lambda curve: curve.pair.aupr_in().trapezoid,
    "oscr_selective": oscr_selective,
    "risk@tpr0.7,fpr0.2": lambda curve: found if isinstance(found := least_risk(curve, _BOUND), str) else found.value,
}


def mixture_cells(study: Study) -> list[list[Cell]]:
    """Return the cells of a study with the layout `mixture`: metrics of a large sample, drawn with seed 0.

    A quarter of all inputs are OOD, p_I = .3 N(−1, 1) + .3 N(1, 1) + .4 N(3, 1), p_O = N(m, .2). The scores are
    a·r + b·g of r, the risk of the Bayes classifier given the input, and g = p_O / p_I; a row's `run` says a and b as
    `r=1` and `g=0.2`.

    Args:
        study: with the options `ood_mean` (m) and `samples`, the number of ID inputs.

    Raises:
        ConfigError: a row or a column that the problem does not have.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, section 5.1.
    """
    where = f"study '{study.name}'"
    mean, samples = study.options.get("ood_mean", 2.0), study.options.get("samples", 400_000)
    check_value(mean, float, f"{where}: options.ood_mean")
    check_value(samples, Count, f"{where}: options.samples")
    ids, losses, ood = _sample(samples, float(mean))
    published, found = Published(study), []
    for row in study.rows:
        a, b = _weights(row, where)
        curve = SelectiveCurve.of(a * ids[0] + b * ids[1], losses, a * ood[0] + b * ood[1])
        found.append([_cell(study, row, at, curve, published) for at in range(len(study.columns))])
    return found


def _cell(study: Study, row: Row, at: int, curve: SelectiveCurve, published: Published) -> Cell:
    column = study.columns[at]
    if column.key not in _METRICS:
        raise ConfigError(
            f"study '{study.name}': columns.{column.path} — found '{column.key}' — allowed: {', '.join(_METRICS)}"
        )
    value, printed = _METRICS[column.key](curve), published.figure(row, column)
    if isinstance(value, str):
        return Cell(row, column, printed=printed, reason=f"{value}: no threshold meets both bounds")
    ours = Estimate(float(value))
    gap = difference((ours, 1), (printed.value, 1), printed.rounding) if printed else None
    return Cell(row, column, ours=ours, printed=printed, difference=gap)


def _weights(row: Row, where: str) -> tuple[float, float]:
    given = dict(word.split("=", 1) for word in row.run if "=" in word)
    try:
        a, b = (float(given[name]) for name in _SCORES)
    except (KeyError, ValueError) as error:
        found = " ".join(row.run)
        raise ConfigError(f"{where}: rows.{row.name} — found '{found}' — allowed: e.g. [r=1, g=0.2]") from error
    return a, b


def _sample(size: int, mean: float) -> tuple[Sequence[Floats], Floats, Sequence[Floats]]:
    """Both scores of ID inputs, their losses, and both scores of OOD inputs."""
    rng = np.random.default_rng(0)
    y = rng.choice(len(_MEANS), size, p=_WEIGHTS)
    x = rng.normal(_MEANS[y])
    classes = _densities(x)
    losses = (classes.argmax(axis=0) != y).astype(np.float64)
    outside = rng.normal(mean, _OOD_DEVIATION, round(size * _PRIOR / (1 - _PRIOR)))
    return _ideal(x, mean), losses, _ideal(outside, mean)


def _densities(x: Floats) -> Floats:
    """(3, n) densities of the classes, weighted."""
    return np.asarray(_WEIGHTS[:, None] * norm.pdf(x, _MEANS[:, None]))


def _ideal(x: Floats, mean: float) -> tuple[Floats, Floats]:
    classes = _densities(x)
    return 1 - classes.max(axis=0) / classes.sum(axis=0), norm.pdf(x, mean, _OOD_DEVIATION) / classes.sum(axis=0)
