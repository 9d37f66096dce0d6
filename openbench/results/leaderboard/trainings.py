"""Comparison of trainings, each with the score of its paper, over seeds, with cross-entropy.

A run is a row of a DataFrame with the columns of COLUMNS; numbers are fractions in [0, 1], of near and far sets means
over the sets, `fpr95` with OOD positive over the near ones, `setting` a digest of the score's hyper-parameters and of
how they are tuned.
"""

from collections.abc import Iterable
from math import sqrt
from typing import TYPE_CHECKING

from openbench.digest import digest
from openbench.errors import RecordError
from openbench.results.frame import Run
from openbench.results.records.settings import OWN, RELEASED
from openbench.results.tables.render import Cell, Column, Estimate, Table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

BASELINE = "cross_entropy"
NOT_OURS = (RELEASED, OWN)  # networks that openbench did not train
BASELINE_SCORE = "msp"
_TEXTS, _NUMBERS = ("training", "score", "setting"), ("accuracy", "near", "far", "fpr95")
COLUMNS = {**dict.fromkeys(_TEXTS, "str"), "seed": "int64", **dict.fromkeys(_NUMBERS, "float64"), "run_id": "str"}
_CONFIDENCE = 0.95
_LEAST_SEEDS = 3  # two differences that happen to be alike would make an interval of no width
_SHOWN = {"ID accuracy ↑": "accuracy", "near AUROC ↑": "near", "far AUROC ↑": "far", "near FPR@95 ↓": "fpr95"}
_GAIN = "near AUROC less cross-entropy's [95 %]"
_SAME = "its score on cross-entropy: near AUROC ↑"


def training_runs(runs: Iterable[Run], benchmark: str, backbone: str | None = None) -> "DataFrame":
    """Return the runs of one benchmark on networks that were trained for it, sorted.

    Args:
        runs: any; those of other benchmarks and of released weights are skipped.
        benchmark: its name.
        backbone: its name; None if there is one only.

    Raises:
        RecordError: the runs are of several backbones, or of several states of the benchmark.
    """
    import pandas as pd

    on_it = (run for run in runs if run.benchmark == benchmark and backbone in (None, run.backbone))
    selected = [run for run in on_it if not run.training.startswith(NOT_OURS)]
    for what, key in (("backbones", "backbone"), ("states of the benchmark", "digest")):
        names = sorted({getattr(run, key) for run in selected})
        if len(names) > 1:
            found = f"records of several {what}, {', '.join(names)}"
            raise RecordError(f"benchmark '{benchmark}': {found} — name the backbone, or give the folder of one sweep")
    rows = []
    for run in selected:
        about = (run.training, run.method, digest([run.nodes["method"], run.nodes["tune"]])[:8], run.seed)
        near, far, accuracy = run.metrics["near"], run.metrics["far"]["auroc"], run.metrics["id"]["accuracy"]
        rows.append((*about, accuracy, near["auroc"], far, near["fpr95"], run.run_id))
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS).round(6)
    return table.sort_values(list(COLUMNS), ignore_index=True)


def compared(runs: "DataFrame") -> "DataFrame":
    """Return the runs that a comparison is made of: of cross-entropy's, those with a score that another row has too."""
    others = runs[runs["training"] != BASELINE]
    scores = runs.set_index(["score", "setting"]).index.isin(others.set_index(["score", "setting"]).index)
    return runs[scores | (runs["score"] == BASELINE_SCORE)]


def comparison(runs: "DataFrame", benchmark: str) -> Table:
    """Return a row per training and score, cross-entropy first, the others by near AUROC.

    The gain is the mean over seeds of the difference to cross-entropy of the same seed, with Student's interval
    d̄ ± t(.975, n − 1)·s/√n from three seeds on, for each row by itself. Scores on cross-entropy other than its own fill
    the last column, which shows how much the training adds to its score.

    Args:
        runs: of one benchmark and backbone.
        benchmark: its name, for the title.

    Raises:
        RecordError: a training, score and seed has several runs, or cross-entropy has none.
    """
    for (training, score, _, seed), twice in runs.groupby([*_TEXTS, "seed"]):
        if len(twice) > 1:
            what, ids = f"training '{training}' with method '{score}', seed {seed}", " and ".join(twice["run_id"][:2])
            raise RecordError(f"{what}: two runs with different recipes, {ids} — compare the folders of one sweep")
    groups = {key: group.set_index("seed") for key, group in runs.groupby(list(_TEXTS))}
    plain = {(score, setting): group for (training, score, setting), group in groups.items() if training == BASELINE}
    base = next((group for (score, _), group in plain.items() if score == BASELINE_SCORE), None)
    if base is None:
        raise RecordError(
            f"no run to compare with — make it: python -m openbench run +benchmark={benchmark} training={BASELINE}"
        )
    order = sorted(groups, key=lambda key: (key[0] != BASELINE, -groups[key]["near"].mean(), key))
    rows: list[tuple[Cell, ...]] = []
    for training, score, setting in order:
        group, same = groups[training, score, setting], plain.get((score, setting))
        if training == BASELINE and group is not base:
            continue
        cells = [_over_seeds(group[name]) for name in _SHOWN.values()]
        gain = None if group is base else _gain(group["near"] - base["near"])
        reference = None if same is None else _over_seeds(same["near"])
        rows.append((str(training), str(score), len(group), *cells, gain, reference))
    percents = (Column(title, "percent", 1) for title in (*_SHOWN, _GAIN, _SAME))
    columns = (*Column.of("training", "score", ("seeds", "count")), *percents)
    header = "percent · mean ± population standard deviation over seeds · each training with the score of its paper"
    return Table(f"Ways of training on {benchmark}", columns, tuple(rows), header)


def _over_seeds(values: "Series") -> Estimate:
    return Estimate(float(values.mean()), std=float(values.std(ddof=0)) if len(values) > 1 else None)


def _gain(differences: "Series") -> Estimate | None:
    """The mean of paired differences, by seed; a seed that one side lacks is missing."""
    from scipy.stats import t as student

    n, mean = differences.count(), float(differences.mean())
    if n < _LEAST_SEEDS:
        return Estimate(mean) if n else None
    half = float(student.ppf((1 + _CONFIDENCE) / 2, n - 1) * differences.std() / sqrt(n))
    return Estimate(mean, mean - half, mean + half)
