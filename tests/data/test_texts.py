"""Texts as rows of hashed words; the messages here are stand-ins."""

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data.build import build_benchmark
from openbench.data.dataset import Located, SetConfig, split_of
from openbench.data.tabular import HashedTexts

MESSAGES = {
    "plain": "From: a\nSubject: engines\n\npistons valves pistons\n",
    "other_header": "From: b\n\npistons valves\npistons",
    "quoting": "From: c\n\nb writes:\n> brakes\npistons pistons valves",
    "elsewhere": "From: d\n\ngoalie puck",
    "empty": "From: e\n\nthe and of\n",
}


@pytest.fixture
def rows(tmp_path):
    for name, text in MESSAGES.items():
        (tmp_path / "group").mkdir(exist_ok=True)
        (tmp_path / "group" / name).write_text(text)
    keys = [f"group/{name}" for name in [*MESSAGES, "absent"]]
    found = HashedTexts(columns=4096).find(tmp_path, keys)
    assert found.present.tolist() == [True] * len(MESSAGES) + [False]
    return dict(zip(MESSAGES, (found.items[i] for i in range(len(MESSAGES))), strict=True))


def test_a_row_holds_the_counts_of_words_at_length_one_without_header_and_quotations(rows):
    assert rows["plain"].dtype == np.float32
    assert sorted(np.abs(rows["plain"][rows["plain"] != 0])) == pytest.approx([1 / 5**0.5, 2 / 5**0.5])
    np.testing.assert_array_equal(rows["plain"], rows["other_header"])
    assert np.count_nonzero(rows["quoting"]) == 3  # pistons, valves, and "writes", but not "brakes"
    assert rows["plain"] @ rows["elsewhere"] == 0
    assert not rows["empty"].any()


def test_the_benchmark_is_made_of_the_folders_of_the_archive(root, composed):
    for there in ("train/rec.autos", "test/rec.autos", "test/sci.med", "test/talk.politics.misc"):
        folder = root / f"20news-bydate-{there}"
        folder.mkdir(parents=True)
        for i in range(20):
            (folder / str(i)).write_text(f"From: x\n\nmotor {there} {i}")
    bench = build_benchmark({**composed("+benchmark=newsgroups"), "incomplete": "allow"})
    assert [len(split) for split in (bench.id_train, bench.id_val, bench.id_test)] == [18, 2, 20]
    assert {name: len(split) for name, split in (bench.near | bench.far).items()} == {"science": 20, "talk": 20}
    assert bench.id_train.items[0].shape == (1024,)


def test_each_of_many_texts_enters_the_digest_of_their_set(tmp_path, manifest):
    keys = tuple(f"group/{number}" for number in range(100))
    config = SetConfig("texts", manifest("group/{n}", group=range(len(keys))), {})
    (tmp_path / "group").mkdir()
    for key in keys:
        (tmp_path / key).write_text(f"From: x\n\nmotor {key}")
    digests = []
    for key in [*keys[1:99:7], keys[0]]:
        located = Located(config.listing(), len(keys), len(keys), HashedTexts().find(tmp_path, keys))
        digests += [split_of(config, located, Role.ID_TEST, ("group",), "benchmark.id_test").digest]
        (tmp_path / key).write_text("From: x\n\nbrake")
    assert len(set(digests)) == len(digests)
