"""`publish` and `verify`: scores travel with a record only if they prove it, and a record is checked from them."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.report import run_page
from openbench.results.checks import read_checks
from openbench.results.records.store import RecordStore, digest_of, load
from openbench.results.scores.stored import ScoreStore
from tests.results.records import named


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A results folder and a cache with one run of two methods on digits."""
    root = tmp_path_factory.mktemp("published")
    words = ["+benchmark=digits", "backbone=resnet8_digits", "training.recipe.epochs=1", "metrics.replicates=0"]
    words += ["benchmark.preprocess.resize=8", "benchmark.preprocess.crop=8"]  # as they lie on the disk, not enlarged
    words += ["~benchmark.csid", *(f"benchmark.{part}.limit=60" for part in ("id.train", "id.test", "near.eight"))]
    folders = [f"runtime.cache={root / 'cache'}", f"runtime.results={root / 'results'}", "runtime.progress=false"]
    for method in ("msp", "mls"):
        assert main(["run", *words, f"method={method}", "tune=none", *folders]) == 0
    return root


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made / "results", tmp_path / "results")
    return tmp_path / "results"


def publish(made, results, *words):
    return main(["publish", *words, "--results", str(results), "--cache", str(made / "cache")])


def test_published_scores_prove_their_records(made, folder, capsys):
    assert publish(made, folder, "all") == 0
    assert "copied the scores of 2 records" in capsys.readouterr().out
    assert main(["verify", "--scores", "all", "--results", str(folder)]) == 0
    assert "2 of 2 records are what their scores say" in capsys.readouterr().out


def test_a_record_with_published_scores_is_checked_without_images_and_the_check_is_kept(made, folder, capsys):
    publish(made, folder, "all")
    path = next(folder.rglob("msp/*.json"))
    assert main(["verify", path.stem[:9], "--keep", "--results", str(folder)]) == 0
    assert f"from the images: python -m openbench verify --images {path.stem[:9]}\n" in capsys.readouterr().out
    (check,) = read_checks(folder).values()
    assert "lac_size@0.1" in load(path).metrics["id"]  # made of class probabilities, which are published too
    assert check.said.endswith("values equal to rounding")
    assert (check.run_id, check.made_from, check.reproduces) == (path.stem, "scores", True)
    scores = ScoreStore(folder / "scores")
    assert check.of(digest_of(load(path)), scores.state(path.stem))
    assert not check.of(digest_of(replace(load(path), header="another")), scores.state(path.stem))
    scores.by_class(path.stem).unlink()
    assert not check.of(digest_of(load(path)), scores.state(path.stem))  # these were not checked
    kept = folder / "checks.jsonl"
    kept.write_text(kept.read_text().replace("true", "false"))
    assert not read_checks(folder)  # it has changed since it was written


def test_a_record_that_is_not_there_does_not_keep_others_from_being_verified(made, folder, capsys):
    publish(made, folder, "all")
    msp, mls = (next(folder.rglob(f"{name}/*.json")).stem for name in ("msp", "mls"))
    assert main(["verify", "--scores", msp, "0000", mls, "--results", str(folder)]) == 2
    said = capsys.readouterr()
    assert "2 of 2 records are what their scores say" in said.out
    assert "record '0000' not found" in said.err
    assert main(["publish", "0000", "--results", str(folder)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert main(["verify", "--images", "0000", "1111", "--results", str(folder)]) == 2
    said = capsys.readouterr()
    assert [f"record '{name}' not found" in said.err for name in ("0000", "1111")] == [True, True]


def test_what_excludes_itself_is_refused(folder, capsys):
    for words in (["all", "--images"], ["all", "runtime.device=cpu"], ["--scores", "0123", "runtime.device=cpu"]):
        assert main(["verify", *words, "--results", str(folder)]) == 2
        assert (
            "allowed: run ids with --scores, or `all` alone; to begin with the images, name the"
            in capsys.readouterr().err
        )


def test_an_edited_record_is_found_though_its_digest_was_made_again(made, folder, capsys):
    publish(made, folder, "all")
    path = next(folder.rglob("msp/*.json"))
    record = load(path)
    path.unlink()
    wrong = {**record.metrics, "far": {**record.metrics["far"], "fpr95": record.metrics["far"]["fpr95"] / 2 + 0.1}}
    RecordStore(folder).write(replace(record, metrics=wrong))
    capsys.readouterr()
    assert main(["verify", "--scores", path.stem, "--results", str(folder)]) == 1
    assert "not what its scores say: metrics.far.fpr95" in capsys.readouterr().out


def test_scores_that_are_not_those_of_the_record_are_not_copied(made, folder, tmp_path, capsys):
    msp, mls = (next(folder.rglob(f"{name}/*.json")).stem for name in ("msp", "mls"))
    (tmp_path / "cache/scores").mkdir(parents=True)
    shutil.copy(made / f"cache/scores/{mls}.parquet", tmp_path / f"cache/scores/{msp}.parquet")
    assert main(["publish", msp, "--results", str(folder), "--cache", str(tmp_path / "cache")]) == 1
    assert "not what its scores say" in capsys.readouterr().out
    assert not (folder / "scores").exists()


def test_a_run_with_a_choice_per_set_is_to_be_computed_from_its_images(folder, capsys):
    record, _ = RecordStore(folder).look_up(next(folder.rglob("msp/*.json")).stem)
    config = {**record.config, "tune": {"strategy": "oracle_per_set"}}
    per_set = named(replace(record, config=config, config_digest="", tuned={"k": {"eight": 5}}))
    RecordStore(folder).write(per_set)
    for command in ("publish", "verify --scores"):
        assert main([*command.split(), per_set.run_id, "--results", str(folder)]) == 2
        assert f"images: python -m openbench verify --images {per_set.run_id}" in capsys.readouterr().err


def test_without_published_scores_the_command_that_makes_them_is_given(folder, capsys):
    assert main(["verify", "--scores", "all", "--results", str(folder)]) == 2
    assert "python -m openbench publish all" in capsys.readouterr().err


def report(made, *words):
    return main(["report", "latest", "--results", str(made / "results"), "--cache", str(made / "cache"), *words])


def test_the_images_flagged_first_in_a_report_are_those_with_the_largest_scores(made, tmp_path):
    assert report(made, "--out", str(tmp_path / "run.html"), "--images", "2") == 0
    page = (tmp_path / "run.html").read_text()
    record, _ = RecordStore(made / "results").look_up("latest")
    ids = next(s for s in ScoreStore(made / "cache/scores").read(record.run_id) if s.role == "id_test")
    sheet = page[page.index("ID test flagged first") : page.index("(near) accepted first")]
    assert sheet.count("<img") == 2
    assert "<svg" in page
    assert all(f"{score:.4g} ·" in sheet for score in np.sort(ids.scores)[-2:])
    assert "digits/" in sheet


def test_a_page_that_cannot_be_written_is_an_error(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_page, "run_page", lambda *_: "drawn elsewhere")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for out in ("file/run.html", "folder.html"):
        assert report(made, "--out", str(tmp_path / out), "--images", "0") == 2
        assert "cannot be written" in capsys.readouterr().err
