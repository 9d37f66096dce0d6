"""The protocol of streaming methods: orders, memory, what is measured, and what a record and its tables hold."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.core.features import FeatureSet
from openbench.core.method import StreamingMethod, StreamPlan
from openbench.core.request import Field, Request
from openbench.engine.evaluate import measured, score_stream
from openbench.errors import ConfigError, MethodError
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.leaderboard.ranking import boards
from openbench.results.records.compare import allowance
from openbench.results.records.store import RecordStore
from openbench.results.tables.views import names_of


def test_an_order_is_a_permutation_that_seed_and_number_give():
    plan = StreamPlan()
    orders = [plan.order(30, 20, number) for number in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert list(plan.order(30, 20, 1)) == list(orders[1])
    assert list(StreamPlan(seed=1).order(30, 20, 1)) != list(orders[1])


@pytest.mark.parametrize(("ratio", "inside", "outside"), [(0.1, 30, 3), (4.0, 5, 20), (2 / 3, 30, 20)])
def test_a_ratio_keeps_as_many_images_as_it_can(ratio, inside, outside):
    order = StreamPlan(ood_per_id=ratio).order(30, 20, 0)
    assert len(set(order)) == len(order)
    assert ((order < 30).sum(), (order >= 30).sum()) == (inside, outside)


@pytest.mark.parametrize("ratio", [0.01, 30.0])
def test_a_ratio_that_leaves_a_side_empty_is_refused(ratio):
    with pytest.raises(ConfigError, match="leaves no image of one side"):
        StreamPlan(ood_per_id=ratio).order(30, 20, 0)


@dataclass
class Places(StreamingMethod[list]):
    """The place of each image in the stream; the memory holds the images themselves."""

    needs = Request(fields=frozenset({Field.FEATURES}))
    reference = "made up"
    shift: float = 0.0

    def memory(self):
        self.seen = []
        return self.seen

    def score_next(self, x, memory):
        memory.extend(x.features[:, 0].int().tolist())
        return torch.arange(len(memory) - len(x), len(memory)) + torch.tensor(self.shift, dtype=torch.float64).float()


def column(values) -> FeatureSet:
    return FeatureSet({Field.FEATURES: torch.tensor(values, dtype=torch.float32)[:, None]})


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_images_come_in_the_order_of_the_plan_and_the_memory_begins_empty(batch):
    """Images 0 to 6 are ID, 7 to 9 and 10, 11 of two OOD sets; the score is the place in the stream."""
    sets, method = [column(range(7)), column(range(7, 10)), column(range(10, 12))], Places()
    for number in range(2):
        found = score_stream(method, sets, StreamPlan(), number, batch)
        order = list(StreamPlan().order(7, 5, number))
        assert method.seen == order
        assert list(found[0]) == list(range(12))
        assert list(found[1]) == [0 if i < 7 else 1 if i < 10 else 2 for i in order]


def test_scores_that_are_not_finite_and_of_single_images_are_refused():
    with pytest.raises(MethodError, match=r"3 of 3 scores are not finite .parameters \{'shift': 1e\+300\}"):
        score_stream(Places(shift=1e300), [column([1.0, 2.0]), column([3.0])], StreamPlan(), 0, 10)
    with pytest.raises(MethodError, match="its scores depend on the images before"):
        Places().score(column([1.0]))


def test_sets_of_a_stream_are_measured_apart():
    rng = np.random.default_rng(0)
    scores, part = rng.normal(size=40).astype(np.float32), rng.integers(3, size=40)
    for side in (1, 2):
        found = measured(scores, part, side, "one")
        for key, rows in (("auroc", slice(0, 40)), ("auroc_last_quarter", slice(30, 40))):
            kept = part[rows] != 3 - side
            assert found[key] == pytest.approx(roc_auc_score(part[rows][kept] == side, scores[rows][kept]))
        assert (found["n_id"], found["n_ood"]) == ((part == 0).sum(), (part == side).sum())
    assert "auroc_first_quarter" not in measured(scores[:4], np.array([0, 0, 0, 1]), 1, "one")
    with pytest.raises(ConfigError, match="an order of the stream holds no image of 'one'"):
        measured(scores[:4], np.zeros(4, int), 1, "one")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A results folder with records of OODD on digits: three orders of each set, and two of all sets in one stream."""
    root = tmp_path_factory.mktemp("streams")
    assert main(["run", *words(root), "method._stream_.orders=3"]) == 0
    plan = ("orders=2", "sets=all", "ood_per_id=0.5")
    assert main(["run", *words(root), *(f"method._stream_.{word}" for word in plan)]) == 0
    return root


def words(root):
    folders = [f"runtime.cache={root / 'cache'}", "runtime.progress=false", f"runtime.results={root / 'results'}"]
    small = [f"benchmark.preprocess.{key}=8" for key in ("resize", "crop")]  # a quarter of the pixels
    return ["+benchmark=digits", *small, "training.recipe.epochs=1", "method=oodd", "method.queue=32", *folders]


def records(root):
    return {record.method["stream"]["sets"]: record for record in RecordStore(root / "results")}


def test_a_record_has_the_numbers_of_each_order_and_their_means(made):
    record = records(made)["each"]
    assert record.method["stream"] == {"sets": "each", "ood_per_id": None, "orders": 3, "seed": 0}
    near = [[record.metrics[f"order_{i}/{name}"]["auroc"] for i in range(3)] for name in ("eight", "nine")]
    assert np.ptp(near, axis=1).min() > 0
    assert record.metrics["near"]["auroc"] == pytest.approx(np.mean(near))
    assert record.metrics["order_1/near"]["auroc"] == pytest.approx(np.mean(near, axis=0)[1])
    assert inconsistencies(record) == ()
    assert names_of(record) == ["near", "eight", "nine", "far", "noise", "patches"], "an order is no set of a table"
    assert allowance(record, "eight", "auroc") == allowance(record, "order_0/eight", "auroc") > 1e-6


def test_a_stream_of_all_sets_holds_as_many_images_as_its_ratio_says(made):
    metrics = records(made)["all"].metrics
    for i in range(2):
        sets = [metrics[f"order_{i}/{name}"] for name in ("eight", "nine", "patches", "noise")]
        (inside,) = {values["n_id"] for values in sets}
        assert sum(values["n_ood"] for values in sets) == pytest.approx(inside / 2, abs=1)


def test_streams_stand_on_no_board_and_have_a_page_of_their_own(made, capsys):
    assert boards(records(made).values()) == []
    assert main(["leaderboard", "--results", str(made / "results")]) == 0
    page = (made / "results/leaderboard/streams.md").read_text()
    near = [records(made)["each"].metrics[f"order_{i}/near"]["auroc"] for i in range(3)]
    assert f"| near | mean | – | – | {100 * np.mean(near):.2f} ± {100 * np.std(near):.2f} |" in page
    assert "Streams: ood_per_id=0.5, orders=2, seed=0, sets=all; mean" in page


def test_a_stream_whose_record_exists_is_not_scored_again_and_verifies(made, capsys):
    again = ["run", *words(made), "method._stream_.orders=3"]
    assert main(again) == 0
    assert "\nskipped " in capsys.readouterr().out
    assert main([*again, "runtime.on_existing=verify"]) == 0
    assert "\nverified " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("method._stream_.ood_per_id=-1", "_stream_.ood_per_id — found -1"),
        ("+method._space_.k1=[1,2]", "a streaming method is not tuned"),
    ],
)
def test_bad_arguments_are_refused_by_name(word, message, capsys):
    assert main(["run", "+benchmark=openset_digits", "method=oodd", word]) == 2
    assert message in capsys.readouterr().err
