"""A streaming method that reads text, as a user runs it, with a small open_clip model of random weights."""

import pytest

from openbench.__main__ import main
from openbench.results.streams import StreamStore

from .test_vlm import CLIP, DIGITS
from .tiny_clip import library, weights

OF_RUNS = ("tune", "metrics")


@pytest.mark.slow
def test_adaneg_scores_streams_of_a_vision_language_model(tmp_path, monkeypatch, capsys):
    library()
    for name in ("CACHE", "RESULTS", "DATA"):
        monkeypatch.setenv(f"OPENBENCH_{name}", str(tmp_path / name.lower()))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.txt").write_text("".join(f"word {i}\n" for i in range(40)))
    chosen = ["streaming.nouns=mine.txt", "streaming.adjectives=null", "streaming.leave_out=[]"]
    shared = [word for word in DIGITS if not word.startswith(OF_RUNS)]
    arguments = [*shared, *CLIP, f"backbone.checkpoint={weights()}", *chosen, "--orders", "2"]
    assert main(["stream", "adaneg", *arguments]) == 0
    (record,) = StreamStore(tmp_path / "results").records()
    classes, mine = record.method["texts"]
    assert (classes["words"], classes["templates"], mine["words"], mine["count"]) == (
        "classes",
        ["the nice {}"],
        "mine.txt",
        40,
    )
    assert {len(entry["auroc"]) for entry in record.sets.values()} == {2}
    (tmp_path / "data/mine.txt").write_text("".join(f"word {i}\n" for i in range(41)))
    assert main(["stream", "adaneg", *arguments]) == 0
    assert len(StreamStore(tmp_path / "results").records()) == 2, "other words make another record"
