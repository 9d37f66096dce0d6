"""Choosing on each OOD set by itself: what the parts see, and how they are put together."""

from types import SimpleNamespace

import numpy as np
import pytest

from openbench.core.benchmark import Benchmark
from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.core.scores import SetScores
from openbench.engine import run as engine
from openbench.engine.run import RunSpec, joined_record, single_sets
from openbench.engine.tune import TestSplits, Tuning
from openbench.methods.msp import MSP
from openbench.metrics.suite import MetricOptions, evaluate

from .toy import split, toy

OPTIONS = MetricOptions(families=("ranking", "threshold", "selective"))


BENCHMARK = toy(
    ood_val=split("v", Role.OOD_VAL),
    csid={"s": split("s", Role.CSID)},
    near={"n": split("n", Role.NEAR), "m": split("m", Role.NEAR, 9)},
    far={"f": split("f", Role.FAR)},
)
SPACE = {"exact": [False, True]}
MU = {"n": 0.5, "m": 2.0, "f": 9.0}


def drawn(name: str, role: str, n: int, mu: float) -> SetScores:
    rng = np.random.default_rng([sum(map(ord, name + role)), int(10 * mu)])
    inside = role in ("id_test", "csid")
    correct = (np.arange(n) % 3 > 0).astype(float) if inside else None
    return SetScores(name, role, rng.normal(0 if inside else 1, 1, n), correct)


def measured(alone: Benchmark) -> ResultRecord:
    """What a run on a benchmark with one OOD set comes to: its scores depend on the weight that suits the set."""
    ((name, ood),) = {**alone.near, **alone.far}.items()
    plan = [("a", "id_test", 40), ("s", "csid", 20), (name, ood.role.value, 5 * len(ood))]
    return ResultRecord(
        run_id=f"of {name}",
        config={"seed": 0},
        benchmark={"name": "toy", "digest": alone.digest, "pristine": True, "deviations": []},
        backbone={"name": "tiny"},
        method={"name": "m", "params": {"mu": MU[name], "tpr": 0.8}},
        tuned={"mu": MU[name]},
        trials=[{"params": {"mu": mu}, "auroc": 0.5} for mu in (0.0, MU[name])],
        metrics=evaluate([drawn(*part, MU[name]) for part in plan], OPTIONS),
        header="a header",
        counts={f"{s.role}/{s.name}": {"n": len(s), "expected": s.expected} for s in alone.splits()},
        provenance={"utc": name, "seconds": {"score": 1.5, name: 2.0}, "peak_mib": {"score": len(ood)}, "passes": 7},
    )


@pytest.fixture
def found() -> dict[str, ResultRecord]:
    return {name: measured(alone) for name, alone in single_sets(BENCHMARK)}


@pytest.fixture
def joined(found):
    return joined_record("whole", BENCHMARK, found)


def test_each_choice_sees_one_ood_test_set():
    seen = {name: TestSplits.of(alone) for name, alone in single_sets(BENCHMARK)}
    assert {name: [s.name for s in splits.ood_test] for name, splits in seen.items()} == {s: [s] for s in "nmf"}
    assert {splits.id_test for splits in seen.values()} == {BENCHMARK.id_test}


def test_a_set_has_the_numbers_of_a_run_on_it_alone(found, joined):
    for name in MU:
        assert joined.metrics[name] == found[name].metrics[name]
        assert joined.metrics[f"full_spectrum/{name}"] == found[name].metrics[f"full_spectrum/{name}"]


def test_groups_are_means_over_sets_and_nothing_is_pooled(joined):
    for side in ("", "full_spectrum/"):
        n, m = (joined.metrics[f"{side}{name}"] for name in "nm")
        near = joined.metrics[f"{side}near"]
        assert (near["n_sets"], near["n_ood"]) == (2, 30 + 45)
        for key in ("auroc", "fpr95", "autc", "oscr"):
            assert near[key] == pytest.approx((n[key] + m[key]) / 2, rel=1e-14)
        assert joined.metrics[f"{side}far"]["auroc"] == joined.metrics[f"{side}f"]["auroc"]
    assert not [key for values in joined.metrics.values() for key in values if key.startswith("pooled_")]


def test_of_the_id_side_only_what_all_sets_share_is_kept(joined):
    assert joined.metrics["id"] == {"n_id": 40, "accuracy": pytest.approx(26 / 40)}


def test_the_record_says_that_each_set_has_its_own_choice(joined):
    assert (joined.tuned, joined.method["params"]) == ({"mu": MU}, {"mu": MU, "tpr": 0.8})
    assert [(t["set"], t["params"]["mu"]) for t in joined.trials] == [(s, mu) for s in MU for mu in (0.0, MU[s])]
    assert joined.header.startswith("a header · hyper-parameters chosen for each OOD set on that test set itself")


def test_what_all_choices_cost_is_added_up(joined):
    assert joined.provenance["seconds"] == {"score": 4.5, "n": 2.0, "m": 2.0, "f": 2.0}
    assert (joined.provenance["peak_mib"], joined.provenance["passes"]) == ({"score": 9}, 21)


@pytest.mark.parametrize(("strategy", "space"), [("oracle_per_set", SPACE), ("oracle", SPACE), ("oracle_per_set", {})])
def test_each_set_keeps_scores_of_its_own_where_each_has_its_own_choice(monkeypatch, tmp_path, strategy, space):
    def alone(spec, runtime):
        tests = spec.benchmark.test_splits()
        scores = [SetScores.of_split(s.name, s.role, np.zeros(len(s)), s.labels, s.labels) for s in tests]
        return measured(next(single_sets(spec.benchmark))[1]), scores

    monkeypatch.setattr(engine, "_compute", alone)
    spec = RunSpec(BENCHMARK, SimpleNamespace(digest="b"), MSP(), "m", space, Tuning(strategy))
    record, kept = engine.compute(spec, Runtime(cache=tmp_path, results=tmp_path))
    if strategy == "oracle_per_set" and space:
        assert (record.run_id, record.tuned) == (spec.run_id, {"mu": MU})
        names = {name: [s.name for s in scores] for name, scores in kept.items()}
        assert names == {f"{spec.run_id}.{name}": ["a", "s", name] for name in MU}
    else:
        assert (list(kept), record.header) == ([spec.run_id], "a header")
