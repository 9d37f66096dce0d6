"""A streaming method that reads text, as a user runs it, with a small open_clip model of random weights."""

from openbench.__main__ import main
from openbench.results.records.store import RecordStore

from .test_vlm import CLIP, DIGITS
from .tiny_clip import library, weights


def test_adaneg_scores_streams_of_a_vision_language_model(tmp_path, monkeypatch, capsys):
    library()
    for name in ("CACHE", "RESULTS", "DATA"):
        monkeypatch.setenv(f"OPENBENCH_{name}", str(tmp_path / name.lower()))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.txt").write_text("".join(f"word {i}\n" for i in range(40)))
    chosen = ["method=adaneg", "method.nouns=mine.txt", "method.adjectives=null", "method.leave_out=[]"]
    arguments = ["run", *DIGITS, *CLIP, f"backbone.weights={weights()}", *chosen, "method._stream_.orders=2"]
    assert main(arguments) == 0
    (record,) = RecordStore(tmp_path / "results")
    classes, mine = record.method["texts"]
    assert (classes["words"], classes["templates"], mine["words"], mine["count"]) == (
        "classes",
        ["the nice {}"],
        "mine.txt",
        40,
    )
    (tmp_path / "data/mine.txt").write_text("".join(f"word {i}\n" for i in range(41)))
    assert main(arguments) == 0
    assert len(RecordStore(tmp_path / "results")) == 2, "other words make another record"
