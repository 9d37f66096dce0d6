"""`report` on a run of digits: pictures from its scores, and the images that it got most wrong."""

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.report import run_page
from openbench.results.scores.stored import ScoreStore

# As they lie on the disk, not enlarged, and a few of each set.
SMALL = ["benchmark.preprocess.resize=8", "benchmark.preprocess.crop=8"]
SETS = ("near.eight", "near.nine", "far.patches", "far.noise")
SETS += ("csid.noisy", "csid.blurred", "csid.faded", "csid.shifted")
SMALL += [f"+benchmark.{name}.limit=20" for name in ("id.test", *SETS)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    words = ["+benchmark=digits", "backbone=resnet8_digits", "training.recipe.epochs=1", "metrics.replicates=0"]
    folders = [f"runtime.cache={root / 'cache'}", f"runtime.results={root / 'results'}", "runtime.progress=false"]
    assert main(["run", *words, *SMALL, "method=msp", "tune=none", *folders]) == 0
    return root


def report(made, *words):
    return main(["report", "latest", "--results", str(made / "results"), "--cache", str(made / "cache"), *words])


def test_the_images_flagged_first_are_those_with_the_largest_scores(made, tmp_path):
    assert report(made, "--out", str(tmp_path / "run.html"), "--images", "2") == 0
    page = (tmp_path / "run.html").read_text()
    (path,) = (file for file in (made / "cache/scores").glob("*.parquet") if "by_class" not in file.name)
    ids = next(s for s in ScoreStore(path.parent).read(path.stem) if s.role == "id_test")
    sheet = page[page.index("ID test flagged first") : page.index("(near) accepted first")]
    assert sheet.count("<img") == 2
    assert "<svg" in page
    assert all(f"{score:.4g} ·" in sheet for score in np.sort(ids.scores)[-2:])
    assert "digits/" in sheet


def test_a_page_that_cannot_be_written_is_an_error(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_page, "run_page", lambda *_: "drawn elsewhere")
    (tmp_path / "file").write_text("")
    for out in ("file/run.html", "."):
        assert report(made, "--out", str(tmp_path / out), "--images", "0") == 2
        assert "cannot be written" in capsys.readouterr().err
