"""The protocol of streaming methods: orders, memory, what is measured, and what a record holds."""

import json
import shutil
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.core.features import FeatureSet
from openbench.core.request import Field, Request, Role
from openbench.core.streaming import StreamingMethod
from openbench.engine.streams import StreamPlan, _of_set, _Stream, _stream
from openbench.errors import ConfigError, MethodError, RecordError
from openbench.results.streams import _DIGEST, StreamStore, _digest
from openbench.storage.plain_json import dumps


def test_an_order_is_a_permutation_that_seed_and_number_give():
    plan = StreamPlan()
    orders = [plan.order(30, 20, number) for number in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert list(plan.order(30, 20, 1)) == list(orders[1])
    assert list(StreamPlan(seed=1).order(30, 20, 1)) != list(orders[1])


@pytest.mark.parametrize(
    ("ratio", "inside", "outside"), [(0.1, 30, 3), (1.0, 20, 20), (0.5, 30, 15), (4.0, 5, 20), (2 / 3, 30, 20)]
)
def test_a_ratio_keeps_as_many_images_as_it_can(ratio, inside, outside):
    order = StreamPlan(ood_per_id=ratio).order(30, 20, 0)
    assert len(set(order)) == len(order)
    assert ((order < 30).sum(), (order >= 30).sum()) == (inside, outside)


@pytest.mark.parametrize("ratio", [0.01, 30.0])
def test_a_ratio_that_leaves_a_side_empty_is_refused(ratio):
    with pytest.raises(ConfigError, match="of 30 ID and 20 OOD images no image of one side would be left"):
        StreamPlan(ood_per_id=ratio).order(30, 20, 0)


@dataclass
class Counting(StreamingMethod[list]):
    """The value of each image, and a note of what came when."""

    needs = Request(fields=frozenset({Field.FEATURES}))
    reference = "made up"
    shift: float = 0.0

    def memory(self):
        return []

    def score_next(self, x, memory):
        assert set(x.columns) == {Field.FEATURES}
        memory.extend(x.features[:, 0].tolist())
        return (
            torch.arange(len(memory) - len(x), len(memory)).float()
            + torch.tensor(self.shift, dtype=torch.float64).float()
        )


def column(values) -> FeatureSet:
    return FeatureSet({Field.FEATURES: torch.tensor(values, dtype=torch.float32)[:, None]})


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_images_come_in_the_order_of_the_plan_and_the_memory_begins_empty(batch):
    """Images 0 to 6 are ID, 7 to 9 and 10, 11 of two OOD sets; the score is the place in the stream."""
    parts = [column(range(7)), column(range(7, 10)), column(range(10, 12))]
    for number in range(2):
        found = _stream(Counting(), parts, StreamPlan(), number, batch)
        order = StreamPlan().order(7, 5, number)
        assert list(found.scores) == list(range(12))
        assert list(found.part) == [0 if i < 7 else 1 if i < 10 else 2 for i in order]


def test_rows_are_gathered_in_the_order_of_the_stream():
    seen = []

    @dataclass
    class Watching(Counting):
        def score_next(self, x, memory):
            seen.extend(x.features[:, 0].int().tolist())
            return x.features[:, 0]

    _stream(Watching(), [column(range(7)), column(range(7, 10)), column(range(10, 12))], StreamPlan(), 3, 5)
    assert seen == list(StreamPlan().order(7, 5, 3))


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(MethodError, match=r"3 of 3 scores are not finite — parameters \{'shift': 1e\+300\}"):
        _stream(Counting(shift=1e300), [column([1.0, 2.0]), column([3.0])], StreamPlan(), 0, 10)


def test_a_set_of_which_orders_draw_more_or_less_has_a_count_for_each():
    """Two of the three streams have two images of the second OOD set, the third has one."""
    split = SimpleNamespace(name="second", role=Role.FAR)
    scores = np.arange(4, dtype=np.float32)
    streams = [_Stream(scores, np.array(part)) for part in ([0, 1, 2, 2], [0, 2, 1, 2], [0, 1, 1, 2])]
    assert _of_set(split, streams, 2)["ood_images"] == [2, 2, 1]
    assert _of_set(split, streams[:2], 2)["ood_images"] == 2


def test_parts_of_a_stream_are_measured_apart():
    rng = np.random.default_rng(0)
    scores, part = rng.normal(size=40).astype(np.float32), rng.integers(3, size=40)
    stream = _Stream(scores, part)
    for side in (1, 2):
        rows = part != 3 - side
        assert stream.measured(side)[0] == pytest.approx(roc_auc_score(part[rows] == side, scores[rows]))
        last = slice(30, 40)
        rows = rows[last]
        expected = roc_auc_score(part[last][rows] == side, scores[last][rows])
        assert stream.measured(side, 0.75)[0] == pytest.approx(expected)
    assert _Stream(scores[:4], np.zeros(4, int)).measured(1) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A results folder with the record of OODD on digits, three orders."""
    root = tmp_path_factory.mktemp("streams")
    assert main(["stream", "oodd", *words(root), "--orders", "3"]) == 0
    return root


def words(root):
    folders = [f"runtime.cache={root / 'cache'}", "runtime.progress=false", "--results", str(root / "results")]
    return ["+benchmark=digits", "training.recipe.epochs=1", "streaming.queue=32", *folders]


@pytest.mark.slow
def test_a_record_has_a_number_per_order_and_set(made, capsys):
    (record,) = StreamStore(made / "results").records()
    assert (record.method["name"], record.method["params"]["queue"]) == ("oodd", 32)
    assert record.plan == {"sets": "each", "ood_per_id": None, "orders": 3, "seed": 0}
    assert {name: entry["role"] for name, entry in record.sets.items()} == {
        "eight": "near",
        "nine": "near",
        "patches": "far",
        "noise": "far",
    }
    for entry in record.sets.values():
        assert len(entry["auroc"]) == len(set(entry["auroc"])) == 3
        assert min(entry["ood_images"], entry["id_images"]) > 0
    near = np.mean([record.sets[name]["auroc"] for name in ("eight", "nine")], axis=0)
    found = record.over_orders("near", "auroc")
    assert (found.value, found.std) == (pytest.approx(near.mean()), pytest.approx(near.std()))


def test_the_table_is_a_function_of_the_records_and_has_no_rank(made, capsys):
    page = made / "results/streams/README.md"
    before = page.read_text()
    page.unlink()
    assert main(["stream", "--table", "--results", str(made / "results")]) == 0
    assert page.read_text() == before
    assert "k1=5, k2=5, queue=32, share=0.5" in before
    assert "ID and each OOD set, all images, 3 orders of seed 0" in before
    assert "| rank" not in before


def test_a_stream_whose_record_exists_is_not_scored_again(made, capsys):
    assert main(["stream", "oodd", *words(made), "--orders", "3"]) == 0
    assert "skipped" in capsys.readouterr().err
    assert len(StreamStore(made / "results").records()) == 1


def test_other_streams_make_another_record(made, tmp_path, capsys):
    shutil.copytree(made / "results", tmp_path / "results")
    again = [f"runtime.cache={made / 'cache'}" if w.startswith("runtime.cache") else w for w in words(tmp_path)]
    assert main(["stream", "oodd", *again, "--orders", "2", "--sets", "all", "--ood-per-id", "0.5"]) == 0
    records = StreamStore(tmp_path / "results").records()
    (mixed,) = (record for record in records if record.plan["sets"] == "all")
    (inside,) = {entry["id_images"] for entry in mixed.sets.values()}
    counts = np.array([np.broadcast_to(entry["ood_images"], 2) for entry in mixed.sets.values()])
    assert counts.sum(axis=0) == pytest.approx([inside / 2] * 2, abs=1)
    assert "ID and all OOD sets, 0.5 OOD per ID image, 2 orders" in (tmp_path / "results/streams/README.md").read_text()


def test_a_changed_record_is_refused(made, tmp_path):
    shutil.copytree(made / "results", tmp_path / "results")
    (path,) = (tmp_path / "results").rglob("oodd/*.json")
    content = json.loads(path.read_text())
    content["sets"]["eight"]["auroc"][0] = 0.999
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match="is not a record of streams as it was written"):
        StreamStore(tmp_path / "results").records()


MISSHAPEN = {
    "plan": {},
    "sets": [1],
    "method": {"name": "oodd", "params": None},
    "benchmark": "digits",
    "stream_id": "0123456789abcdef",
}


@pytest.mark.parametrize("part", [*MISSHAPEN, "auroc", "images"])
def test_a_record_of_another_shape_is_refused_though_its_digest_is_right(made, tmp_path, capsys, part):
    shutil.copytree(made / "results", tmp_path / "results")
    (path,) = (tmp_path / "results").rglob("oodd/*.json")
    content = json.loads(path.read_text())
    del content[_DIGEST]
    changed = {"auroc": ("auroc", ["x"] * 3), "images": ("id_images", "many")}
    if part in changed:
        key, value = changed[part]
        content["sets"]["eight"][key] = value
    else:
        content[part] = MISSHAPEN[part]
    path.write_text(dumps({**content, _DIGEST: _digest(content)}))
    assert main(["stream", "--table", "--results", str(tmp_path / "results")]) == 2
    assert "is not a record of streams as it was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["odd", "+benchmark=digits"], "streaming method 'odd' not found in configs/streaming; did you mean 'oodd'?"),
        ([], "stream: no method — allowed: adaneg, oodd"),
        (["oodd", "+benchmark=digits", "method=knn"], "a stream has no method or tune or metrics of a run"),
        (["oodd", "+benchmark=digits", "streaming.qeue=3"], "did you mean 'queue'?"),
        (["oodd", "+benchmark=digits", "streaming.queue=0"], "streaming method 'oodd'.queue — found 0"),
        (["oodd", "+benchmark=digits", "--ood-per-id", "-1"], "stream.ood_per_id — found -1"),
        (["oodd", "--table"], "stream --table takes no method — found 'oodd'"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message, capsys):
    assert main(["stream", *arguments]) == 2
    assert message in capsys.readouterr().err
