"""Benchmarks of rows: tables, their parts, scales and ADBench's draws row by row, and texts as hashed words."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

from openbench.core.request import Role
from openbench.data import tabular as tables
from openbench.data.build import build_benchmark
from openbench.data.dataset import BenchmarkSet, SetConfig, locate, split_of
from openbench.data.tabular import HashedTexts, TableFacts, table_facts, table_part
from openbench.errors import DataError

from .opened import open_split

# Rows, anomalies, columns as ADBench's paper tabulates them.
PUBLISHED = {
    "cardio": (1831, 176, 21),
    "thyroid": (3772, 93, 6),
    "shuttle": (49097, 3511, 9),
    "wine": (129, 10, 13),
    "donors": (619326, 36710, 10),
    "Hepatitis": (80, 13, 19),
}


def parts(table, draw=0, protocol="held_out"):
    return {part: table_part(f"adbench/{table}/{protocol}/{draw}/{part}") for part in tables.PARTS}


@pytest.fixture
def written(monkeypatch, root):
    """Write a table as if it were a published one; return its file."""

    def write(x, y, places=""):
        facts = TableFacts(len(x), int(y.sum()), x.shape[1], places)
        monkeypatch.setattr(tables, "table_facts", lambda: {"made": facts})
        forget()
        file = root / "adbench/Classical/9_made.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, X=x, y=y)
        return file

    yield write
    forget()


def forget():
    """Forget the tables of this process."""
    for kept in (table_part, tables._scaled):
        kept.cache_clear()


@pytest.fixture
def tiny(written):
    """A table of 100 rows, 20 of them anomalies, mixed; column 2 is constant."""
    rng = np.random.default_rng(3)
    y = rng.permutation([1] * 20 + [0] * 80)
    x = np.stack([rng.normal(5, 2, 100) + 9 * y, rng.normal(size=100), np.full(100, 7.0)], axis=1)
    return x, y, written(x, y)


def opened(part, protocol="held_out", draw=0):
    source = {"_target_": "openbench.data.tabular.TableFile", "table": "made", "protocol": protocol, "draw": draw}
    node = {"name": "made", "manifest": f"adbench/made/{protocol}/{draw}/{part}", "sources": {"npz": source}}
    return open_split(node, *((Role.FAR,) if part == "anomalies" else (Role.ID_TRAIN, ("normal",))))


def rows_of(split):
    return np.stack([split.items[i] for i in range(len(split))])


@pytest.mark.parametrize("table", PUBLISHED)
def test_a_table_has_the_published_counts(table):
    facts = table_facts()[table]
    assert (facts.rows, facts.anomalies, facts.columns) == PUBLISHED[table]


def test_every_table_found_is_as_counted(real_data):
    folder = real_data / "adbench/Classical"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    found = {}
    for file in folder.glob("*.npz"):
        name = file.stem.partition("_")[2]
        with np.load(file) as pack:
            x, y = pack["X"], pack["y"]
        found[name] = TableFacts(len(x), int(y.sum()), x.shape[1])
        if table_facts()[name].places:
            np.testing.assert_array_equal(table_facts()[name].anomalous(), y == 1, err_msg=name)
    assert found == {name: replace(table_facts()[name], places="") for name in found}
    assert len(found) > 40


@pytest.mark.parametrize("table", ["cardio", "wine", "Lymphography"])
def test_the_parts_share_no_row_and_leave_none_out(table):
    facts = table_facts()[table]
    keys = [key for part in parts(table).values() for key in part.keys]
    assert len(keys) == len(set(keys)) == facts.rows
    assert sum("/anomaly/" in key for key in keys) == facts.anomalies


def test_three_tenths_of_each_kind_are_tested_and_the_rest_of_the_anomalies_trains_unlabelled():
    found = parts("cardio")
    counts = {name: sum("/anomaly/" in key for key in part.keys) for name, part in found.items()}
    assert {name: len(part) for name, part in found.items()} == {
        "train": 1116, "val": 165, "test": 497, "anomalies": 53,
    }  # fmt: skip
    assert counts == {"train": 123, "val": 0, "test": 0, "anomalies": 53}
    assert found["train"].class_names() == ("normal",)
    assert found["anomalies"].class_names() == ("anomaly",)


def test_a_key_is_the_nth_row_of_its_kind_standardised_with_the_training_rows(tiny):
    x, y, _ = tiny
    train = opened("train")
    raw = np.stack([x[np.flatnonzero(y == ("/anomaly/" in key))[int(key.rpartition("/")[2])]] for key in train.keys])
    assert sum("/anomaly/" in key for key in train.keys) == 14
    varied = raw[:, :2]
    np.testing.assert_allclose(rows_of(train)[:, :2], (varied - varied.mean(0)) / varied.std(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rows_of(train)[:, 2], np.zeros(62))
    test = opened("anomalies")
    expected = [x[np.flatnonzero(y == 1)[int(key.rpartition("/")[2])], 0] for key in test.keys]
    np.testing.assert_allclose(rows_of(test)[:, 0], (expected - raw[:, 0].mean()) / raw[:, 0].std(), rtol=1e-5)


def test_a_table_that_is_not_the_published_one_is_refused(tiny, written):
    x, y, file = tiny
    np.savez(file, X=x[1:], y=y[1:])
    with pytest.raises(DataError, match=r"not the published table .100 rows of 3 columns, 20 anomalies"):
        opened("train")
    x[3, 1] = np.nan
    np.savez(file, X=x, y=y)
    with pytest.raises(DataError, match="1 values are NaN or infinite"):
        opened("train")
    file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        opened("train")
    np.savez(written(x, y, " ".join(map(str, np.flatnonzero(y)))), X=x, y=np.roll(y, 1))
    with pytest.raises(DataError, match="is not the published table"):  # its anomalies stand elsewhere
        opened("train")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adbench/cardo/adbench/1/train", "table 'cardo' not found; did you mean 'cardio'"),
        ("adbench/cardio/adbench/x/train", "is not a part of a table"),
        ("adbench/cardio/adbench/1/tset", "PART one of train, val, test, anomalies"),
        ("adbench/cardio/adbnch/1/test", "PROTOCOL one of adbench, held_out"),
    ],
)
def test_a_part_that_does_not_exist_is_refused(name, message):
    with pytest.raises(DataError, match=message):
        table_part(name)


def drawn(x, y, seed):
    """ADBench's training and test rows, scaled, with their labels; from the global generator, as there."""
    state = np.random.get_state()  # noqa: NPY002 - what ADBench draws from
    try:
        np.random.seed(seed)  # noqa: NPY002
        if len(y) < 1000 or len(y) > 10000:
            size, again = (1000, True) if len(y) < 1000 else (10000, False)
            chosen = np.random.choice(np.arange(len(y)), size, replace=again)  # noqa: NPY002
            x, y = x[chosen], y[chosen]
        seen, tested, seen_y, tested_y = train_test_split(x, y, test_size=0.3, shuffle=True, stratify=y)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    scaler = MinMaxScaler().fit(seen)
    return scaler.transform(seen), scaler.transform(tested), seen_y, tested_y


@pytest.mark.parametrize("n", [300, 1200, 10500])  # below ADBench's least, within its limits, above its most
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_order_and_scale_are_those_of_adbench(n, seed, written):
    rng = np.random.default_rng(n)
    y = rng.permutation([1] * (n // 10) + [0] * (n - n // 10))
    x = np.stack([rng.normal(size=n) + 3 * y, rng.exponential(size=n), np.full(n, 7.0), np.arange(n)], axis=1)
    written(x, y, " ".join(map(str, np.flatnonzero(y))))
    seen, tested, seen_y, tested_y = drawn(x, y, seed)
    expected = {
        "train": seen, "val": seen[seen_y == 0], "test": tested[tested_y == 0], "anomalies": tested[tested_y == 1],
    }  # fmt: skip
    for part, rows in expected.items():
        np.testing.assert_allclose(rows_of(opened(part, "adbench", seed)), rows, rtol=1e-6, atol=1e-7)


def test_the_places_of_anomalies_are_known_where_adbenchs_draw_depends_on_them():
    told = {name for name, facts in table_facts().items() if facts.places}
    due = {name for name, facts in table_facts().items() if not 1000 <= facts.rows <= 10000}
    assert due - told == {"campaign", "celeba", "donors", "shuttle"}
    assert told <= due
    for name in told:
        facts = table_facts()[name]
        assert facts.anomalous().sum() == facts.anomalies, name


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
    config = SetConfig(
        "texts", manifest("group/{n}", group=range(len(keys))), {"texts": HashedTexts(at=[str(tmp_path)])}
    )
    entry = BenchmarkSet("benchmark.id.test", Role.ID_TEST, config)
    (tmp_path / "group").mkdir()
    for key in keys:
        (tmp_path / key).write_text(f"From: x\n\nmotor {key}")
    digests = []
    for key in [*keys[1:99:7], keys[0]]:
        digests += [split_of(locate(entry), ("group",)).digest]
        (tmp_path / key).write_text("From: x\n\nbrake")
    assert len(set(digests)) == len(digests)
