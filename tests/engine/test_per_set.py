"""Choosing on each OOD set by itself: the numbers of runs on single sets, put together in one record."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.backbones.cifar import resnet
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.engine import run as engine
from openbench.engine.run import RunSpec, single_sets
from openbench.engine.tune import Tuning
from openbench.metrics.suite import MetricOptions

from .toy import Tilt, split, toy

DIM, HARD = split("m", Role.NEAR, 30), split("f", Role.FAR, 25)
DIM = replace(DIM, items=[image // 8 for image in DIM.items])
HARD = replace(HARD, items=[(image > 127).astype(np.uint8) * 255 for image in HARD.items])
BENCHMARK = toy(
    ood_val=split("v", Role.OOD_VAL),
    csid={"s": split("s", Role.CSID)},
    near={"n": split("n", Role.NEAR, 20), "m": DIM},
    far={"f": HARD},
)
SETS = ("n", "m", "f")


@pytest.fixture(scope="module")
def compute(tmp_path_factory):
    """The record and the scores of a strategy."""
    folder = tmp_path_factory.mktemp("per set")
    backbone = resnet("toy", "resnet8", num_classes=2, preprocess=Preprocess(8, 8)).initialise(0)
    backbone.load_state(backbone.module().state_dict(), "random")

    def call(strategy, benchmark=BENCHMARK, space=(0.0, 60.0, 120.0, 180.0, 240.0, 300.0)):
        options = MetricOptions(families=("ranking", "threshold", "selective"), replicates=0)
        spaces = {"angle": list(space)} if space else {}
        spec = RunSpec(benchmark, backbone, Tilt(), "tilt", spaces, Tuning(strategy), options)
        return engine.compute(spec, Runtime(device="cpu", cache=folder, results=folder, progress=False))

    return call


@pytest.fixture(scope="module")
def joined(compute):
    return compute("oracle_per_set")


@pytest.fixture(scope="module")
def alone(compute):
    """Runs that choose on their single OOD set."""
    return {name: compute("oracle", single)[0] for name, single in single_sets(BENCHMARK)}


def test_a_set_has_the_choice_and_the_numbers_of_a_run_on_it_alone(joined, alone):
    record, _ = joined
    angles = {name: one.tuned["angle"] for name, one in alone.items()}
    assert len(set(angles.values())) > 1
    assert (record.tuned, record.method["params"]) == ({"angle": angles}, {"angle": angles})
    for name, one in alone.items():
        for key in (name, f"full_spectrum/{name}"):
            assert record.metrics[key] == one.metrics[key]
        assert [t for t in record.trials if t["set"] == name] == [{"set": name, **trial} for trial in one.trials]


def test_groups_are_means_over_sets_and_nothing_is_pooled(joined):
    metrics = joined[0].metrics
    for side in ("", "full_spectrum/"):
        n, m = (metrics[f"{side}{name}"] for name in "nm")
        near = metrics[f"{side}near"]
        assert (near["n_sets"], near["n_ood"]) == (2, 20 + 30)
        for key in ("auroc", "fpr95", "autc", "oscr"):
            assert near[key] == pytest.approx((n[key] + m[key]) / 2, rel=1e-14)
        assert metrics[f"{side}far"]["auroc"] == metrics[f"{side}f"]["auroc"]
    assert not [key for values in metrics.values() for key in values if key.startswith("pooled_")]


def test_of_the_id_side_only_what_all_sets_share_is_kept(joined):
    assert joined[0].metrics["id"].keys() == {"n_id", "accuracy", "id_val_accuracy"}


def test_the_record_is_that_of_the_whole_benchmark_and_says_how_it_was_chosen(joined):
    record, _ = joined
    assert record.benchmark["digest"] == BENCHMARK.digest
    assert record.counts.keys() == {f"{s.role}/{s.name}" for s in BENCHMARK.splits()}
    assert "hyper-parameters chosen for each OOD set on that test set itself" in record.header


@pytest.mark.parametrize(
    ("strategy", "space"), [("oracle_per_set", (0.0, 90.0)), ("oracle", (0.0, 90.0)), ("oracle_per_set", ())]
)
def test_each_set_keeps_scores_of_its_own_where_each_has_its_own_choice(compute, strategy, space):
    record, kept = compute(strategy, space=space)
    names = {name: [s.name for s in scores if s.role in ("id_test", "near", "far")] for name, scores in kept.items()}
    if strategy == "oracle_per_set" and space:
        assert names == {f"{record.run_id}.{name}": ["a", name] for name in SETS}
    else:
        assert names == {record.run_id: ["a", *SETS]}
