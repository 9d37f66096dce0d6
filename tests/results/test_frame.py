"""The table of records: the same runs from the cache as from the files, and never a number that these do not have."""

import os
from dataclasses import replace

import pytest

from openbench.results import frame
from openbench.results.frame import everything, run_of
from openbench.results.leaderboard.ranking import board_keys
from openbench.results.records.store import RecordStore, text_of

from .records import full_record, make_record, metrics, with_method


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    found = RecordStore(tmp_path / "results")
    huge = {"a": {"size": 2**70, "width": 2**60}, "b": {"size": 0.5, "width": "unable"}}  # beyond int64, and a double
    unable = {**metrics(0.8, 0.7), "far": {"auroc": "unable", "n_sets": 1}, **huge}
    for record in (
        full_record(),
        with_method(make_record(), "msp"),
        with_method(make_record(metrics=unable), "msp", k=1),
    ):
        found.write(record)
    return found


def runs(store, keep=everything, said=None):
    return list(frame.runs(store, (said if said is not None else []).append, keep))


def counted(monkeypatch):
    """The files that are read from now on."""
    read, found = RecordStore.read, []
    monkeypatch.setattr(RecordStore, "read", lambda self, path: found.append(path.stem) or read(self, path))
    return found


@pytest.mark.parametrize("keep", [everything, board_keys])
def test_runs_are_equal_from_the_cache_and_from_the_files(store, monkeypatch, keep):
    expected = [run_of(record, keep) for record in store]
    assert runs(store, keep) == expected
    read = counted(monkeypatch)
    assert (runs(store, keep), read) == (expected, [])


def test_a_record_that_changes_is_read_again_and_one_that_goes_is_gone(store, monkeypatch):
    runs(store)
    first, second, third = store.paths()
    record = store.read(second)
    stamps = os.stat(second)
    text = text_of(replace(record, metrics=metrics(0.1, 0.2)).to_dict())
    second.unlink()
    second.write_text(text)
    os.utime(second, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # as a copy would set it
    third.unlink()
    read = counted(monkeypatch)
    found = runs(store)
    assert read == [second.stem]
    assert [run.run_id for run in found] == [first.stem, second.stem]
    assert found[1].metrics["near"]["auroc"] == 0.1


def test_files_that_are_no_records_are_said_each_time_in_their_order(store):
    paths = store.paths()
    for path in paths:
        path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    for _ in range(2):
        said = []
        assert runs(store, said=said) == []
        for path, error in zip(paths, map(str, said), strict=True):
            assert str(path) in error
            assert "has changed since it was written" in error


def test_a_damaged_table_is_made_again(store, tmp_path):
    expected = runs(store)
    (file,) = (tmp_path / "cache" / "records").iterdir()
    content = file.read_bytes()
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(content), 29999)]
    for damaged in (*flipped, content[: len(content) // 2], b""):
        file.write_bytes(damaged)
        assert runs(store) == expected


def test_entries_of_other_code_do_not_count(store, monkeypatch):
    runs(store)
    monkeypatch.setattr(frame, "code_digest", lambda: "another")
    read = counted(monkeypatch)
    runs(store)
    assert len(read) == 3


def test_without_a_cache_records_are_read(store, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert len(runs(store)) == 3
