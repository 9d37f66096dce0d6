from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openbench.core.request import Role
from openbench.errors import CacheError
from openbench.results.scores import stored
from openbench.results.scores.stored import ScoreStore

from .records import split_scores


def test_scores_read_back_split_by_split_in_the_order_written(tmp_path):
    store, written = ScoreStore(tmp_path), split_scores()
    written[0].scores[:2] = np.inf, -np.inf
    path = store.write("run", written)
    assert path == tmp_path / "run.parquet"
    read = store.read("run")
    assert [(s.role, s.name) for s in read] == [(s.role, s.name) for s in written]
    for a, b in zip(written, read, strict=True):
        for column in ("scores", "labels", "predictions"):
            np.testing.assert_array_equal(getattr(a, column), getattr(b, column))
            assert getattr(b, column).dtype == (np.float32 if column == "scores" else np.int64)


def test_the_file_says_of_each_image_whether_it_was_right_and_nothing_for_ood(tmp_path):
    written = split_scores()
    frame = pq.read_table(ScoreStore(tmp_path).write("run", written)).to_pandas()
    assert list(frame.columns) == ["set", "role", "score", "label", "prediction", "correct"]
    assert len(frame) == sum(len(s.scores) for s in written)
    known = frame[frame["role"].isin(["id_test", "id_val", "csid"])]
    assert (known["correct"] == (known["label"] == known["prediction"])).all()
    assert frame[frame["role"].isin(["near", "far", "ood_val"])]["correct"].isna().all()


@pytest.mark.parametrize("column", ["score", "prediction", "set"])
def test_an_edited_file_is_not_taken_for_scores(tmp_path, column):
    path = ScoreStore(tmp_path).write("run", split_scores())
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[0] = next(value for value in values if value != values[0])
    kind = table.schema.field(column).type
    array = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind)
    edited = table.set_column(table.column_names.index(column), column, array)
    pq.write_table(edited.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(CacheError, match="have changed since they were written"):
        ScoreStore(tmp_path).read("run")


def test_no_flipped_byte_of_the_file_changes_a_score(tmp_path):
    store, noticed = ScoreStore(tmp_path), 0
    path = store.write("run", split_scores())
    whole, read = path.read_bytes(), repr(store.read("run"))
    with pytest.raises(CacheError, match="scores of run other not found"):
        store.read("other")
    path.write_bytes(whole[:100])
    with pytest.raises(CacheError, match=r"run\.parquet: not the scores of a run"):
        store.read("run")
    for at in range(0, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            assert repr(store.read("run")) == read, at
        except CacheError:
            noticed += 1
    assert noticed > len(whole) / 46


def test_an_unwritable_cache_is_named_with_the_option(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"runtime\.cache=DIR"):
        ScoreStore(tmp_path / "file").write("run", split_scores())


def with_probabilities(count=4):
    rng = np.random.default_rng(0)
    found = []
    for s in split_scores():
        n = len(s.scores)
        kinds = {}
        if s.role in (Role.ID_VAL, Role.ID_TEST):
            p = rng.dirichlet(np.ones(count), n)
            kinds = {
                "probabilities": p.astype("f4"),
                "class_scores": (-np.log(p)).astype("f4"),
                "class_probabilities": p,
            }
            kinds["class_scores"][:, -1] = np.inf  # a class that the method has not seen
        found.append(replace(s, **kinds))
    return found


def test_class_probabilities_come_back_to_the_last_digit_beside_the_scores(tmp_path):
    store, written = ScoreStore(tmp_path), with_probabilities()
    store.write("run", written)
    for a, b in zip(written, store.read_whole("run"), strict=True):
        np.testing.assert_array_equal(a.scores, b.scores)
        for kind in ("probabilities", "class_scores", "class_probabilities"):
            if getattr(a, kind) is None:
                assert getattr(b, kind) is None
            else:
                np.testing.assert_array_equal(getattr(a, kind), getattr(b, kind))
                assert getattr(a, kind).dtype == getattr(b, kind).dtype
    assert all(s.probabilities is None for s in store.read("run"))


def test_scores_without_class_probabilities_stay_readable_and_leave_none_behind(tmp_path):
    store = ScoreStore(tmp_path)
    store.write("run", with_probabilities())
    store.write("run", split_scores())
    assert all(s.probabilities is None for s in store.read_whole("run"))
    assert [path.name for path in tmp_path.glob("*.parquet")] == ["run.parquet"]


def test_two_methods_on_one_network_share_its_class_probabilities(tmp_path):
    store, ours = ScoreStore(tmp_path), with_probabilities()
    store.write("a", ours)
    store.write("b", [replace(s, scores=-s.scores) for s in ours])
    store.write("other", [replace(s, probabilities=p[::-1] if (p := s.probabilities) is not None else p) for s in ours])
    assert len(list((tmp_path / "probabilities").iterdir())) == 2
    for name in ("a", "b"):
        for s, read in zip(ours, store.read_whole(name), strict=True):
            np.testing.assert_array_equal(s.probabilities, read.probabilities)


@pytest.mark.parametrize("shared", [True, False])
def test_class_probabilities_that_are_changed_or_of_other_scores_are_refused(tmp_path, shared):
    store, other = ScoreStore(tmp_path / "a"), ScoreStore(tmp_path / "b")
    store.write("run", with_probabilities())
    turned = [
        replace(s, probabilities=p[::-1] if (p := s.probabilities) is not None else p) for s in with_probabilities()
    ]
    other.write("run", [replace(s, scores=-s.scores) for s in turned])
    (mine,), (others,) = (
        (s.root / "probabilities").iterdir() if shared else [s.by_class("run")] for s in (store, other)
    )
    content = mine.read_bytes()
    for wrong in (others.read_bytes(), content[:100] + bytes([content[100] ^ 1]) + content[101:]):
        mine.write_bytes(wrong)
        with pytest.raises(CacheError):
            store.read_whole("run")
    if shared:
        mine.unlink()
        with pytest.raises(CacheError, match="not found"):
            store.read_whole("run")


def test_of_many_classes_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MOST_VALUES", 4 * 40)
    store = ScoreStore(tmp_path)
    store.write("run", with_probabilities())
    assert not store.by_class("run").exists()
