"""Ways of training side by side: each with the score of its paper, over seeds, beside cross-entropy."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev, stdev

from scipy.stats import t as student

from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import RecordError
from openbench.results.escape import csv_row
from openbench.results.tables.render import Cell, Column, Estimate, Table

BASELINE = "cross_entropy"
BASELINE_SCORE = "msp"
_CONFIDENCE = 0.95
# Two differences that happen to be alike would make an interval of no width.
_LEAST_SEEDS = 3
_DIGITS = 6
_SHOWN = {"ID accuracy ↑": "accuracy", "near AUROC ↑": "near", "far AUROC ↑": "far", "near FPR@95 ↓": "fpr95"}
_GAIN = "near AUROC less cross-entropy's [95 %]"
_SAME = "its score on cross-entropy: near AUROC ↑"

Group = dict[int, "TrainingRun"]  # by seed


@dataclass(frozen=True)
class TrainingRun:
    """One training with one seed, scored; fractions in [0, 1].

    Args:
        training: as typed after `training=`.
        score: as typed after `method=`.
        setting: digest of the score's hyper-parameters and of how they are tuned.
        seed: of the training.
        accuracy: on the ID test split.
        near: AUROC, mean over the near sets.
        far: AUROC, mean over the far sets.
        fpr95: FPR@95 with OOD positive, mean over the near sets.
        run_id: of the record.
    """

    training: str
    score: str
    setting: str
    seed: int
    accuracy: float
    near: float
    far: float
    fpr95: float
    run_id: str


def training_runs(records: Iterable[ResultRecord], benchmark: str, backbone: str | None = None) -> list[TrainingRun]:
    """Return the runs of one benchmark on networks that were trained for it, sorted.

    Args:
        records: any; those of other benchmarks and of released weights are skipped.
        benchmark: its name.
        backbone: its name; None if there is one only.

    Raises:
        RecordError: the records are of several backbones, or of several states of the benchmark.
    """
    found = [
        record
        for record in records
        if record.benchmark["name"] == benchmark
        and record.backbone.get("training")
        and backbone in (None, record.backbone["name"])
    ]
    for what, names in (
        ("backbones", {str(record.backbone["name"]) for record in found}),
        ("states of the benchmark", {str(record.benchmark["digest"]) for record in found}),
    ):
        if len(names) > 1:
            raise RecordError(
                f"benchmark '{benchmark}': records of several {what} — found {', '.join(sorted(names))} — only one can "
                "be compared — name the backbone, or give the folder of one sweep"
            )
    return sorted((_run_of(record) for record in found), key=astuple)


def _run_of(record: ResultRecord) -> TrainingRun:
    metrics, config = record.metrics, record.config

    def number(group: str, key: str) -> float:
        return round(float(metrics[group][key]), _DIGITS)

    return TrainingRun(
        training=str(record.backbone["training"]),
        score=str(record.method["name"]),
        setting=digest([config["method"], config["tune"]])[:8],
        seed=int(config["seed"]),
        accuracy=number("id", "accuracy"),
        near=number("near", "auroc"),
        far=number("far", "auroc"),
        fpr95=number("near", "fpr95"),
        run_id=record.run_id,
    )


def compared(runs: Iterable[TrainingRun]) -> list[TrainingRun]:
    """Return the runs that a comparison is made of: of cross-entropy's, those with a score that another row has too."""
    every = list(runs)
    wanted = {(run.score, run.setting) for run in every if run.training != BASELINE}
    return [
        run
        for run in every
        if run.training != BASELINE or run.score == BASELINE_SCORE or (run.score, run.setting) in wanted
    ]


def write_runs(runs: Iterable[TrainingRun], path: Path) -> None:
    """Write a CSV with a row per run, from which `read_runs` has the same runs again."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([field.name for field in fields(TrainingRun)])
        writer.writerows(csv_row(astuple(run)) for run in runs)


def read_runs(path: Path) -> list[TrainingRun]:
    """Return the runs of a CSV that `write_runs` wrote.

    Raises:
        RecordError: columns are missing or unknown, or a number cannot be read.
    """
    types = {field.name: field.type for field in fields(TrainingRun)}
    with open(path, encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        if list(rows.fieldnames or ()) != list(types):
            raise RecordError(f"'{path}': found the columns {rows.fieldnames} — expected {', '.join(types)}")
        try:
            return [TrainingRun(**{name: types[name](text) for name, text in row.items()}) for row in rows]  # type: ignore[operator]
        except ValueError as error:
            raise RecordError(f"'{path}': {error} — a number is expected") from error


def comparison(runs: Iterable[TrainingRun], benchmark: str) -> Table:
    """Return a row per training and score, cross-entropy first, the others by near AUROC.

    The gain is the mean over seeds of the difference to cross-entropy of the same seed, with Student's interval
    d̄ ± t(.975, n − 1)·s/√n from three seeds on, for each row by itself. Scores on cross-entropy other than its own fill
    the last column, which tells what the training adds to its score.

    Args:
        runs: of one benchmark and backbone.
        benchmark: its name, for the title.

    Raises:
        RecordError: a training, score and seed has several runs, or cross-entropy has none.
    """
    groups = _grouped(runs)
    plain = {(score, setting): group for (training, score, setting), group in groups.items() if training == BASELINE}
    base = next((group for (score, _), group in plain.items() if score == BASELINE_SCORE), None)
    if base is None:
        raise RecordError(
            f"benchmark '{benchmark}': no run of training '{BASELINE}' with method '{BASELINE_SCORE}', with which "
            f"the others are compared — make it: python -m openbench run +benchmark={benchmark} training={BASELINE}"
        )
    rows: list[tuple[Cell, ...]] = []
    for (training, score, setting), group in sorted(groups.items(), key=lambda item: _rank(*item)):
        if training == BASELINE and group is not base:
            continue
        cells = [_over_seeds([getattr(run, name) for run in group.values()]) for name in _SHOWN.values()]
        same = plain.get((score, setting))
        gain = None if group is base else _gain(group, base)
        reference = None if same is None else _over_seeds([run.near for run in same.values()])
        rows.append((training, score, len(group), *cells, gain, reference))
    percents = (*_SHOWN, _GAIN, _SAME)
    return Table(
        f"Ways of training on {benchmark}",
        (
            *(Column("training"), Column("score"), Column("seeds", "count")),
            *(Column(title, "percent", 1) for title in percents),
        ),
        tuple(rows),
        header="percent · mean ± population standard deviation over seeds · each training with the score of its paper",
    )


def _grouped(runs: Iterable[TrainingRun]) -> dict[tuple[str, str, str], Group]:
    groups: dict[tuple[str, str, str], Group] = defaultdict(dict)
    for run in runs:
        group = groups[run.training, run.score, run.setting]
        if run.seed in group:
            raise RecordError(
                f"training '{run.training}' with method '{run.score}', seed {run.seed}: two runs, {run.run_id} and "
                f"{group[run.seed].run_id} — their recipes differ — compare the folders of one sweep"
            )
        group[run.seed] = run
    return groups


def _rank(key: tuple[str, str, str], group: Group) -> tuple[bool, float, tuple[str, str, str]]:
    return key[0] != BASELINE, -fmean(run.near for run in group.values()), key


def _over_seeds(values: Sequence[float]) -> Estimate:
    return Estimate(fmean(values), std=pstdev(values) if len(values) > 1 else None)


def _gain(group: Group, base: Group) -> Estimate | None:
    """The paired difference of near AUROC over the seeds that both have."""
    differences = [run.near - base[seed].near for seed, run in group.items() if seed in base]
    if not differences:
        return None
    mean, n = fmean(differences), len(differences)
    if n < _LEAST_SEEDS:
        return Estimate(mean)
    half = float(student.ppf((1 + _CONFIDENCE) / 2, n - 1)) * stdev(differences) / sqrt(n)
    return Estimate(mean, mean - half, mean + half)
