"""A submission that is honest passes; one that cheats is refused, however the digests were made again."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.metrics.suite import MetricOptions, describe, evaluate
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from tests.results.records import make_record, named

WHOLE = {"name": "toy", "digest": "aaaa", "pristine": True, "deviations": []}
OPTIONS = {"families": ["ranking", "threshold"], "replicates": 0}
SHIFTS = {(Role.ID_TEST, "toy"): 0.0, (Role.ID_VAL, "toy"): 0.0, (Role.OOD_VAL, "v"): 1.0, (Role.NEAR, "a"): 1.0,
          (Role.NEAR, "b"): 1.2, (Role.FAR, "c"): 3.0}  # fmt: skip


def scores(seed):
    rng, unknown = np.random.default_rng(seed), np.full(60, -1)
    return [
        SetScores.of_split(name, role, rng.normal(shift, 1, 60).astype("f4"), unknown, unknown)
        for (role, name), shift in SHIFTS.items()
    ]


def kept(seed):
    """Scores of a seed; of seed 1 without the sets of a role, if a role is given."""
    return scores(seed) if isinstance(seed, int) else [s for s in scores(1) if s.role != seed]


def record_of(sets, method="mine", **changes):
    options = MetricOptions(**OPTIONS)
    tune = {"strategy": "validation", "_name_": "validation"}
    record = make_record(
        config={"seed": 0, "method": {"_name_": method, "k": 5}, "tune": tune, "metrics": OPTIONS, "benchmark": {}},
        benchmark=WHOLE,
        method={"name": method, "version": 1, "reference": "", "params": {"k": 5}},
        tuned={"k": 5},
        trials=[{"params": {"k": 5}, "auroc": 0.77}, {"params": {"k": 9}, "auroc": 0.75}],
        metrics=evaluate(sets, options),
        header=describe(options),
        counts={f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets},
    )
    return replace(record, **changes) if "run_id" in changes else named(replace(record, **changes))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A results folder with one published record."""
    folder = tmp_path_factory.mktemp("known")
    sets = scores(0)
    record = record_of(sets, "knn")
    RecordStore(folder).write(record)
    ScoreStore(folder / "scores").write(record.run_id, sets)
    return folder


@pytest.fixture
def check(known, tmp_path, capsys):
    """Write a record with scores, check them, and return the exit code and what was said."""

    def checked(record, sets=None):
        RecordStore(tmp_path / "mine").write(record)
        if sets is not None:
            ScoreStore(tmp_path / "mine/scores").write(record.run_id, sets)
        code = main(["verify", "--submission", str(tmp_path / "mine"), "--results", str(known)])
        return code, capsys.readouterr().out

    return checked


def raised(record, key, by):
    near = {**record.metrics["near"], key: record.metrics["near"][key] + by}
    return {**record.metrics, "near": near}


def test_an_honest_record_may_be_ranked(check):
    sets = scores(1)
    code, said = check(record_of(sets), sets)
    assert code == 0
    assert "1 may be ranked, 0 apart, 0 refused" in said


CHEATS = {
    "a better number": (lambda r: replace(r, metrics=raised(r, "autc", -0.01)), 1, "another number: metrics.near.autc"),
    "a mean that is none": (lambda r: replace(r, metrics=raised(r, "auroc", 0.01)), 1, "does not follow from its sets"),
    "somebody else's scores": (lambda r: record_of(scores(0)), 0, "scores are those of run"),
    "better scores than the record's": (lambda r: r, 7, "give another number"),
    "chosen by the test numbers": (
        lambda r: record_of(scores(1), trials=[{"params": {"k": 5}, "auroc": r.metrics["a"]["auroc"]}]),
        1,
        "has the AUROC of a test set",
    ),
    "not the best on validation": (lambda r: record_of(scores(1), tuned={"k": 9}), 1, "not the best on validation"),
    "the id of another run": (lambda r: replace(r, run_id="0123456789abcdef"), 1, "does not follow from what was run"),
    "scores without a set": (lambda r: r, "near", "counts 60 images in near/a, its scores 0"),
    "a number that is not computed": (
        lambda r: record_of(scores(1), metrics={**r.metrics, "near": {**r.metrics["near"], "oscr": 0.99}}),
        1,
        "states near.oscr, which its scores and its options do not give",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_refused(check, cheat):
    change, seed, why = CHEATS[cheat]
    code, said = check(change(record_of(scores(1))), kept(seed))
    assert code == 1
    assert why in said


OTHERS = {
    "rounded": lambda s: replace(s, scores=s.scores.round(1)) if s.role == Role.NEAR else s,
    "swapped": lambda s: replace(s, name={"a": "b", "b": "a"}.get(s.name, s.name)),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_a_known_run_with_other_scores_is_refused(check, change):
    sets = [change(s) for s in scores(0)]
    code, said = check(record_of(sets, "knn"), sets)
    assert code == 1
    assert "is known here, and its scores of near/" in said


def test_a_known_run_from_another_processor_may_be_ranked(check):
    sets = [replace(s, scores=s.scores * np.float32(1 + 2e-7)) for s in scores(0)]
    code, said = check(record_of(sets, "knn"), sets)
    assert code == 0, said


def test_scores_of_a_published_run_under_the_name_of_another_are_refused(known, check):
    other = record_of(scores(5), "vim")
    RecordStore(known).write(other)
    ScoreStore(known / "scores").write(other.run_id, scores(5))
    code, said = check(record_of(scores(0), "vim"), scores(0))
    assert code == 1
    assert f"are those of run {record_of(scores(0), 'knn').run_id}, to the last digit" in said


def test_equal_scores_under_two_names_are_refused(check, tmp_path):
    sets = scores(1)
    twin = record_of(sets, "twin")
    RecordStore(tmp_path / "mine").write(twin)
    ScoreStore(tmp_path / "mine/scores").write(twin.run_id, sets)
    code, said = check(record_of(sets), sets)
    assert code == 1
    assert "0 may be ranked, 0 apart, 2 refused" in said


APART = {
    "no scores": ({}, "no scores in"),
    "another definition": ({"benchmark": {**WHOLE, "digest": "cccc"}}, "is defined otherwise"),
    "an unknown benchmark": ({"benchmark": {**WHOLE, "name": "new"}}, "no complete record here"),
    "part": ({"benchmark": {**WHOLE, "pristine": False, "deviations": ["near.a limited"]}}, "near.a limited"),
}


@pytest.mark.parametrize("case", APART)
def test_what_cannot_be_recomputed_or_compared_is_shown_apart(check, case):
    changes, why = APART[case]
    sets = scores(1)
    code, said = check(record_of(sets, **changes), sets if changes else None)
    assert code == 0
    assert why in said
    assert "0 may be ranked, 1 apart, 0 refused" in said


def test_code_of_ones_own_is_shown_apart(check):
    sets = scores(1)
    record = record_of(sets)
    config = {**record.config, "method": {**record.config["method"], "_target_": "mine.Method"}}
    _, said = check(record_of(sets, config=config), sets)
    assert "code that openbench does not ship: mine.Method" in said


def test_a_file_that_is_not_a_record_is_refused_and_the_others_are_checked(check, tmp_path):
    sets = scores(1)
    record = record_of(sets)
    broken = RecordStore(tmp_path / "mine").write(record_of(scores(4), "other"))
    broken.write_text("{")
    code, said = check(record, sets)
    assert code == 1
    assert "1 may be ranked, 0 apart, 1 refused" in said
    shutil.rmtree(tmp_path / "mine")
