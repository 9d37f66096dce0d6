"""Validation of submitted results: recomputed from their scores, compared with known records."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import OpenbenchError, RecordError
from openbench.public import targets
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records.compare import compare
from openbench.results.records.settings import given_of, strategy_of
from openbench.results.records.store import RecordStore
from openbench.results.scores.recompute import recompute
from openbench.results.scores.stored import PUBLISHED, ScoreStore, scores_digest

Verdict = Literal["refused", "apart", "ranked"]
_SAME = 1e-12  # a trial whose validation AUROC is the test AUROC to rounding
_PROCESSOR = 1e-3
_FIRST = 3
_TESTED = ("id_test/", "near/", "far/")
_SAME_SCORES = "its scores are those of run {}, to the last digit"


@dataclass
class RecordVerdict:
    """One record of a submission.

    Args:
        run_id: of the record, or the file that is not one.
        method: as typed.
        refused: why it is refused: it states something false.
        apart: why it is shown without a rank: it cannot be recomputed or compared here.
        numbers: how many numbers were recomputed from its scores.
        scores: digest of its scores; empty without any.
    """

    run_id: str
    method: str
    refused: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    numbers: int = 0
    scores: str = ""

    @property
    def verdict(self) -> Verdict:
        """`refused`, `apart` or `ranked`."""
        return "refused" if self.refused else "apart" if self.apart else "ranked"


@dataclass(frozen=True)
class KnownRecords:
    """The records that a submission is compared with.

    Args:
        benchmarks: names and digests of their definitions, from records made with the whole benchmark.
        scores: run → digest of its scores.
        results: the folder of all this.
    """

    benchmarks: Collection[tuple[str, str]]
    scores: Mapping[str, str]
    results: Path

    @classmethod
    def of(cls, results: Path) -> "KnownRecords":
        """Read the records and published scores of a results folder; unreadable files are skipped."""
        benchmarks, scores = set[tuple[str, str]](), dict[str, str]()
        store = ScoreStore(results / PUBLISHED)
        for record in RecordStore(results).readable(lambda _: None):
            if record.benchmark.get("pristine") is True and not inconsistencies(record):
                benchmarks.add((str(record.benchmark.get("name")), str(record.benchmark.get("digest"))))
            if store.path(record.run_id).is_file():
                with suppress(OpenbenchError):
                    scores[record.run_id] = scores_digest(store.read(record.run_id))
        return cls(benchmarks, scores, results)

    def differences(self, record: ResultRecord, sets: Sequence[SetScores]) -> Iterator[str]:
        """Yield in what a record is not the known run of its id: its numbers, or its scores, beyond rounding."""
        known = f"run {record.run_id} is known here"
        if (record_here := RecordStore(self.results).find(record.run_id)) is not None:
            for difference in compare(record_here[0], record).differ[:_FIRST]:
                yield f"{known}, with other numbers: {difference}"
        if sets and record.run_id in self.scores:
            scores_here = {(s.role, s.name): s.scores for s in ScoreStore(self.results / PUBLISHED).read(record.run_id)}
            for s in sets:
                if not _alike(scores_here.get((s.role, s.name)), s.scores):
                    yield f"{known}, and its scores of {s.role}/{s.name} are not these"


def check_submission(folder: Path, known: KnownRecords) -> list[RecordVerdict]:
    """Return the verdict on each record of a submitted results folder, in the order of its files.

    A record is refused if it contradicts itself, its scores do not give its numbers, its scores are those of another
    name, it has the id of a known run and is not this run, or its hyper-parameters were chosen on test data without
    saying so. It is shown apart if it cannot be recomputed or compared: no scores,
    another definition of the benchmark, an incomplete one, an oracle, foreign code.

    Args:
        folder: with `records` and `scores`, as openbench writes them.
        known: what is known here.

    Raises:
        RecordError: the folder holds no record.
    """
    unreadable: list[RecordError] = []
    records = list(RecordStore(folder).readable(unreadable.append))
    if not records and not unreadable:
        raise RecordError(
            f"'{folder}' holds no records — give a results folder as `run` writes it, with its published scores"
        )
    store = ScoreStore(folder / PUBLISHED)
    checked = [_checked(record, store, known) for record in records]
    for record, one in zip(records, checked, strict=True):
        twins = [r for r, other in zip(records, checked, strict=True) if r is not record and other.scores == one.scores]
        # A run that is known here with these scores is not a copy: published methods may coincide.
        if one.scores and known.scores.get(record.run_id) != one.scores:
            copied = [run_id for run_id, content in known.scores.items() if content == one.scores]
            renamed = [r.run_id for r in twins if _names(r) != _names(record)]
            one.refused += [_SAME_SCORES.format(", ".join(runs[:_FIRST])) for runs in (copied, renamed) if runs]
            if twins and not copied and not renamed:
                one.apart.append(_SAME_SCORES.format(", ".join(r.run_id for r in twins[:_FIRST])))
    return [*(RecordVerdict(str(error).partition(" — ")[0], "?", [str(error)]) for error in unreadable), *checked]


def _names(record: ResultRecord) -> tuple[Any, Any]:
    return record.method.get("name"), record.backbone.get("name")


def differing_counts(expected: Mapping[str, int], sets: Sequence[SetScores]) -> list[str]:
    """Return in which counts scores differ from those of a benchmark, in words; csID and validation may be left out.

    Args:
        expected: `role/set` → the number of its images.
        sets: the scores.
    """
    counts = {f"{s.role}/{s.name}": len(s.scores) for s in sets}
    tested = {key for key in expected if key.startswith(_TESTED)}
    foreign, other = sorted(counts.keys() - expected.keys()), [k for k, n in counts.items() if expected.get(k, n) != n]
    return [
        *(f"no scores of {key}, which the benchmark tests on" for key in sorted(tested - counts.keys())),
        *(f"scores of {key}, which is not a set of the benchmark" for key in foreign),
        *(f"{counts[key]} scores of {key}, which has {expected[key]} images" for key in other),
    ]


def _checked(record: ResultRecord, store: ScoreStore, known: KnownRecords) -> RecordVerdict:
    """The verdict on a record by itself."""
    one = RecordVerdict(record.run_id, str(record.method.get("name")), apart=list(_unranked_because(record, known)))
    one.refused += [*inconsistencies(record), *_tuned_on_test(record)]
    sets: list[SetScores] = []
    if not store.path(record.run_id).is_file():
        one.apart.append(f"no scores in {PUBLISHED}/{record.run_id}.parquet, so that nothing can be recomputed")
    else:
        try:
            sets = store.read_whole(record.run_id)
            one.scores = scores_digest(sets)
            recomputed = recompute(record, sets)
            one.numbers = recomputed.numbers
            one.refused += [f"its scores give another number: {d}" for d in recomputed.different[:_FIRST]]
        except OpenbenchError as error:
            one.refused.append(str(error))
    one.refused += known.differences(record, sets)
    return one


def _unranked_because(record: ResultRecord, known: KnownRecords) -> Iterator[str]:
    name, digest = str(record.benchmark.get("name")), str(record.benchmark.get("digest"))
    digests = sorted(of for one, of in known.benchmarks if one == name)
    if not digests:
        yield f"benchmark '{name}' has no complete record here to compare its definition with"
    elif digest not in digests:
        here = f"here {', '.join(digests)}: other lists of images, classes or sizes"
        yield f"benchmark '{name}' is defined otherwise: digest {digest}, {here}"
    if record.benchmark.get("pristine") is not True:
        deviations = "; ".join(map(str, record.benchmark.get("deviations") or ())) or "not stated"
        yield f"the benchmark is not as defined: {deviations}"
    if strategy_of(record).startswith("oracle"):
        yield f"hyper-parameters chosen on test data ({strategy_of(record).replace('_', ' ')})"
    foreign = sorted({target for target in targets(record.config) if "." in target})
    if foreign or record.provenance.get(SOURCES):
        yield f"made by code that openbench does not ship: {', '.join(foreign[:_FIRST]) or 'see its sources'}"
    if given_of(record):
        yield "its scores were given, and nobody ran its code"
    if record.provenance.get(UNCOMMITTED):
        yield "made by a changed copy of openbench"


def _tuned_on_test(record: ResultRecord) -> Iterator[str]:
    """Signs that hyper-parameters were chosen by the numbers that they are judged by."""
    if strategy_of(record) != "validation":
        return
    if not any(key.startswith("ood_val/") for key in record.counts):
        yield "hyper-parameters are said to be chosen on validation, but no validation OOD was read"
    # Several settings may separate a set perfectly, on validation as on test data.
    tested = [auroc for values in record.metrics.values() if (auroc := _auroc(values)) is not None and auroc < 1.0]
    trials = [(trial.get("params"), auroc) for trial in record.trials if (auroc := _auroc(trial)) is not None]
    same = next((auroc for _, auroc in trials if any(abs(auroc - value) <= _SAME for value in tested)), None)
    if same is not None:
        yield f"a tuning trial has the AUROC of a test set, {same:.6g}, to the last digit"
    chosen = [auroc for params, auroc in trials if params == record.tuned]
    best = max((auroc for _, auroc in trials), default=0.0)
    by_risk = any("risk" in trial for trial in record.trials)  # a double score is chosen by its selective risk
    if chosen and not by_risk and max(chosen) < best:
        yield f"the chosen hyper-parameters are not the best on validation ({max(chosen):.6g} of {best:.6g})"


def _auroc(values: Mapping[str, Any]) -> float | None:
    value = values.get("auroc")
    return value if isinstance(value, float) else None


def _alike(known: NDArray[Any] | None, scores: NDArray[Any]) -> bool:
    """Whether scores are equal to what another processor may make of them: a thousandth of their deviation."""
    if known is None or known.shape != scores.shape:
        return False
    with np.errstate(invalid="ignore"):
        gap = np.where(known == scores, 0.0, known - scores)  # equal infinities have no difference
    return bool(np.sqrt(np.mean(gap**2)) <= _PROCESSOR * known[np.isfinite(known)].std())
