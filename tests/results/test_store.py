import json
import math
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from openbench.errors import RecordError
from openbench.results.records.store import RecordStore, text_of

from ..forked import Forked  # noqa: TID252 — the tests are no package
from .records import make_record, undigested


def test_a_record_lies_under_benchmark_backbone_method_and_reads_back_equal(tmp_path):
    record, store = make_record(), RecordStore(tmp_path)
    path = store.write(record)
    assert path == tmp_path / "records" / "toy" / "tiny" / "knn" / f"{record.run_id}.json"
    assert store.find(record.run_id) == (record, path)
    assert list(store) == [record]
    assert len(store) == 1


def test_a_run_that_was_never_recorded_is_not_found(tmp_path):
    store = RecordStore(tmp_path)
    store.write(make_record())
    assert store.find("f" * 16) is None
    assert RecordStore(tmp_path / "nowhere").find("f" * 16) is None
    assert store.find("*") is None


def test_copies_in_hidden_folders_and_behind_do_not_hide_a_record(tmp_path):
    store = RecordStore(tmp_path)
    path = store.write(make_record())
    for folder in (".old/tiny/knn", "toy/tiny/z"):
        (store.folder / folder).mkdir(parents=True)
        (store.folder / folder / path.name).write_bytes(path.read_bytes())
    assert store.find(path.stem) == (make_record(), path)
    path.unlink()
    (store.folder / "toy/tiny/z" / path.name).unlink()
    assert store.find(path.stem) is None


def test_a_second_writer_is_refused_and_changes_nothing(tmp_path):
    record, store = make_record(), RecordStore(tmp_path)
    before = store.write(record).read_bytes()
    with pytest.raises(RecordError, match=rf"record {record.run_id} exists in .*on_existing=verify"):
        store.write(replace(record, header="other"))
    assert store.paths()[0].read_bytes() == before
    assert [p.name for p in store.paths()[0].parent.iterdir()] == [f"{record.run_id}.json"]


def test_of_several_writers_at_once_exactly_one_wins_and_its_text_is_whole(tmp_path):
    store, start = RecordStore(tmp_path), threading.Barrier(6)

    def write(number):
        start.wait()
        try:
            store.write(make_record(run_id="0" * 16, header=f"{number}" * 100_000))
        except RecordError:
            return ""
        return f"{number}" * 100_000

    with ThreadPoolExecutor(6) as pool:
        assert "".join(pool.map(write, range(6))) == store.find("0" * 16)[0].header


def test_what_a_killed_writer_leaves_is_no_record_and_does_not_stand_in_the_way(tmp_path):
    store = RecordStore(tmp_path / "results")

    def killed_before_it_is_in_place():
        os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store.write(make_record(run_id="0" * 16))

    assert Forked(killed_before_it_is_in_place, tmp_path / "note").ended()[0] == -signal.SIGKILL
    assert len([p for p in store.root.rglob("*") if p.is_file()]) == 1
    assert list(store) == []
    assert store.find("0" * 16) is None
    store.write(make_record(run_id="0" * 16))
    assert len(store) == 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"near": {"auroc": math.nan}}, "metrics.near.auroc cannot be recorded: nan"),
        ({"near": {"auroc": {0.5}}}, "metrics.near.auroc cannot be recorded: a set"),
    ],
)
def test_what_is_not_json_is_refused_by_its_key_and_leaves_no_file(tmp_path, value, named):
    with pytest.raises(RecordError, match=re.escape(named)):
        RecordStore(tmp_path).write(make_record(metrics=value))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    values = {"near": {"auroc": np.float64(0.1), "fpr95": np.float32(0.5), "n_sets": np.int64(3)}}
    path = RecordStore(tmp_path).write(make_record(metrics=values))
    assert json.loads(path.read_text())["metrics"] == {"near": {"auroc": 0.1, "fpr95": 0.5, "n_sets": 3}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": "other"}, "the record inside has run_id 'other'"),
        ({"config_digest": "0" * 16}, "key 'config_digest' of the record is 0000000000000000 — allowed: "),
    ],
)
def test_an_edited_record_is_refused(tmp_path, changes, said):
    store = RecordStore(tmp_path)
    path = store.write(make_record())
    content = undigested(path)
    for text, why in ((text_of(content | changes), said), (json.dumps(content), "its content, is missing")):
        path.write_text(text)
        with pytest.raises(RecordError, match=why):
            list(store)


@pytest.mark.parametrize("name", ["../x", ".hidden", "a b", None])
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(RecordError, match=r"benchmark\.name of a record is .*, but becomes part of a path"):
        RecordStore(tmp_path).write(make_record(benchmark={"name": name}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_with_the_option(tmp_path):
    (tmp_path / "file").write_text("")
    store = RecordStore(tmp_path / "file")
    for attempt in (store.check_writable, lambda: store.write(make_record())):
        with pytest.raises(
            RecordError, match=r"results folder '.*file' cannot be written \(.* — choose another: runtime\.results=DIR"
        ):
            attempt()


def test_a_record_is_found_by_the_beginning_of_its_run_id(tmp_path):
    store = RecordStore(tmp_path)
    for run_id in ("abc1", "abd2", "ab"):
        store.write(make_record(run_id=run_id))
    assert store.look_up("abc")[0].run_id == "abc1"
    assert store.look_up("ab")[0].run_id == "ab"
    with pytest.raises(
        RecordError, match=r"3 records in .* begin with 'a': .*abc1 \(toy/tiny/knn\).* — type more of it"
    ):
        store.look_up("a")
    with pytest.raises(RecordError, match=r"record 'abx1' not found in .*; did you mean 'abc1'"):
        store.look_up("abx1")


def test_the_latest_record_is_the_one_made_last_whenever_its_file_was_copied(tmp_path):
    store = RecordStore(tmp_path)
    for run_id, utc in (("b", "2025-01-01"), ("a", "2026-05-05"), ("c", "2025-12-31")):
        store.write(make_record(run_id=run_id, provenance={"utc": f"{utc}T00:00:00+00:00"}))
    assert store.look_up("latest")[0].run_id == "a"


def test_no_flipped_byte_of_a_record_is_read(tmp_path):
    store = RecordStore(tmp_path)
    path = store.write(make_record())
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x02]) + whole[at + 1 :])
        with pytest.raises(RecordError):
            list(store)
