"""Which rows of a table are for training, validation and test: the protocols of unsupervised anomaly detection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Table = NDArray[np.float64]

NORMAL, ANOMALY = "normal", "anomaly"
PARTS = ("train", "val", "test", "anomalies")
_TEST = 0.3
_VAL = 0.1
# ADBench's limits: smaller tables are drawn from with replacement, of larger ones a part is taken.
_LEAST, _MOST = 1_000, 10_000


@dataclass(frozen=True)
class Scale:
    """How columns are brought to one scale: (x − shift) / unit.

    Args:
        shift: (d,).
        unit: (d,), 1 for a column that is constant in training.
    """

    shift: Table
    unit: Table

    def __call__(self, values: Table) -> Table:
        """Return the scaled values (n, d)."""
        scaled: Table = (values - self.shift) / self.unit
        return scaled


@dataclass(frozen=True)
class Protocol:
    """A rule that splits the rows of a table, and the scale of its columns.

    Args:
        part: (n,) whether a row is an anomaly, and the draw → rows of each of PARTS; `train` has anomalies too.
        scale: training rows (n, d) → scale.
    """

    part: Callable[[NDArray[np.bool_], int], Mapping[str, Rows]]
    scale: Callable[[Table], Scale]


def adbench(anomalous: NDArray[np.bool_], draw: int) -> dict[str, Rows]:
    """Return the rows as ADBench draws them for its seed `draw`; its tables are the means over seeds 1, 2 and 3.

    Of more than 10 000 rows, 10 000 are drawn; from fewer than 1 000, 1 000 are drawn with replacement, so that the
    same row may train and test. Then 70 % train and 30 % test, anomalies in equal shares. There is no validation:
    that part repeats the normal training rows.
    """
    stream = np.random.RandomState(draw)  # the generator that ADBench's draws come from
    n = len(anomalous)
    rows = np.arange(n)
    if not _LEAST <= n <= _MOST:
        rows = stream.choice(n, _LEAST if n < _LEAST else _MOST, replace=n < _LEAST)
    # Imported here, since it takes seconds and only tables need it.
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(rows, test_size=_TEST, stratify=anomalous[rows], random_state=stream)
    return {
        "train": train,
        "val": train[~anomalous[train]],
        "test": test[~anomalous[test]],
        "anomalies": test[anomalous[test]],
    }


def held_out(anomalous: NDArray[np.bool_], draw: int) -> dict[str, Rows]:
    """Return every row in exactly one part: of the normal ones 60 % train, 10 % validate and 30 % test.

    Anomalies have no validation part; 70 % of them are among the training rows.
    """
    rng = np.random.default_rng(draw)
    normal, odd = np.flatnonzero(~anomalous), np.flatnonzero(anomalous)
    mixed, strange = rng.permutation(len(normal)), rng.permutation(len(odd))
    first, second = (round(share * len(normal)) for share in (1 - _TEST - _VAL, 1 - _TEST))
    seen = round((1 - _TEST) * len(odd))
    return {
        "train": np.concatenate([normal[np.sort(mixed[:first])], odd[np.sort(strange[:seen])]]),
        "val": normal[np.sort(mixed[first:second])],
        "test": normal[np.sort(mixed[second:])],
        "anomalies": odd[np.sort(strange[seen:])],
    }


def unit_interval(train: Table) -> Scale:
    """Return the scale that maps each training column onto [0, 1]."""
    low = train.min(axis=0)
    return Scale(low, _nonzero(train.max(axis=0) - low))


def standard(train: Table) -> Scale:
    """Return the scale that gives each training column mean 0 and standard deviation 1."""
    return Scale(train.mean(axis=0), _nonzero(train.std(axis=0)))


def _nonzero(unit: Table) -> Table:
    return np.where(unit > 0, unit, 1.0)


PROTOCOLS: Mapping[str, Protocol] = {
    "adbench": Protocol(adbench, unit_interval),
    "held_out": Protocol(held_out, standard),
}
