"""The draws of ADBench, row by row, against the library calls of its public code on the table itself."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

from openbench.core.request import Role
from openbench.data import tabular as tables
from openbench.data.tabular import TableFacts, table_facts, table_part
from openbench.errors import DataError

from .opened import open_split


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


@pytest.fixture(params=[300, 1200, 10500])
def table(request, monkeypatch, root):
    """A table with fewer rows than ADBench's least, one between its limits, and one with more than its most."""
    n = request.param
    rng = np.random.default_rng(n)
    y = rng.permutation([1] * (n // 10) + [0] * (n - n // 10))
    x = np.stack([rng.normal(size=n) + 3 * y, rng.exponential(size=n), np.full(n, 7.0), np.arange(n)], axis=1)
    facts = TableFacts(n, n // 10, 4, " ".join(map(str, np.flatnonzero(y).tolist())))
    monkeypatch.setattr(tables, "table_facts", lambda: {"made": facts})
    (root / "adbench/Classical").mkdir(parents=True)
    np.savez(root / "adbench/Classical/9_made.npz", X=x, y=y)
    for kept in (table_part, tables._scaled):
        kept.cache_clear()
    yield x, y
    for kept in (table_part, tables._scaled):
        kept.cache_clear()


def opened(part, draw):
    source = {
        "_target_": "openbench.data.tabular.TableFile",
        "table": "made",
        "protocol": "adbench",
        "draw": draw,
    }
    node = {"name": "made", "manifest": f"adbench/made/adbench/{draw}/{part}", "sources": {"npz": source}}
    role, classes = (Role.FAR, ()) if part == "anomalies" else (Role.ID_TRAIN, ("normal",))
    split = open_split(node, role, classes)
    return np.stack([split.items[i] for i in range(len(split))])


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_order_and_scale_are_those_of_adbench(table, seed):
    seen, tested, seen_y, tested_y = drawn(*table, seed)
    expected = {
        "train": seen, "val": seen[seen_y == 0], "test": tested[tested_y == 0], "anomalies": tested[tested_y == 1],
    }  # fmt: skip
    for part, rows in expected.items():
        np.testing.assert_allclose(opened(part, seed), rows, rtol=1e-6, atol=1e-7)


def test_a_file_whose_anomalies_stand_elsewhere_is_refused(table, root):
    x, y = table
    np.savez(root / "adbench/Classical/9_made.npz", X=x, y=np.roll(y, 1))
    with pytest.raises(DataError, match="is not the published table"):
        opened("train", 1)


def test_the_places_of_anomalies_are_known_where_adbenchs_draw_depends_on_them():
    told = {name for name, facts in table_facts().items() if facts.places}
    due = {name for name, facts in table_facts().items() if not 1000 <= facts.rows <= 10000}
    assert due - told == {"campaign", "celeba", "donors", "shuttle"}
    assert told <= due
    for name in told:
        facts = table_facts()[name]
        assert facts.anomalous().sum() == facts.anomalies, name


def test_every_table_found_has_its_anomalies_where_they_are_said_to_be(real_data):
    folder = real_data / "adbench/Classical"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    for file in folder.glob("*.npz"):
        facts = table_facts()[file.stem.partition("_")[2]]
        if facts.places:
            with np.load(file) as pack:
                np.testing.assert_array_equal(facts.anomalous(), pack["y"] == 1, err_msg=file.name)
