"""`fit` and `score` as they are typed."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.detect.detector import Detector
from openbench.detect.saved import load_detector
from openbench.results.records.store import RecordStore

from .tiny import images


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos" / "inner"
    folder.mkdir(parents=True)
    for place, pixels in enumerate(images(3, 4)[0]):
        Image.fromarray(pixels).save(folder / f"{place}.png")
    (folder / "notes.txt").write_text("no image")
    return folder.parent


def test_score_writes_a_row_per_image(saved, photos, tmp_path, capsys):
    made, path = saved
    out = tmp_path / "rows.parquet"
    assert main(["score", str(path), str(photos), str(photos / "inner" / "0.png"), "--out", str(out)]) == 0
    rows = parquet.read_table(out).to_pylist()
    expected = made.predict(np.concatenate([images(3, 4)[0], images(3, 4)[0][:1]])).rows()
    assert [row.pop("image") for row in rows] == [str(photos / "inner" / f"{i}.png") for i in (0, 1, 2, 0)]
    for row, one in zip(rows, expected, strict=True):
        assert row.pop("error") is None
        assert row == one | {"score": row["score"]}
        assert np.float32(row["score"]) == np.float32(one["score"])
    assert "4 images" in capsys.readouterr().err


def test_an_unreadable_image_has_a_row_of_its_own_and_csv_cells_compute_nothing(saved, photos, tmp_path):
    (photos / "bad.png").write_bytes(b"\x89PNG but no more")
    out = tmp_path / "rows.csv"
    assert main(["score", str(saved[1]), str(photos), "--out", str(out)]) == 1
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [bool(row["error"]) for row in rows] == [True, False, False, False]
    assert all(not row["label_name"].startswith("=") for row in rows)
    lines = tmp_path / "rows.jsonl"
    main(["score", str(saved[1]), str(photos), "--out", str(lines)])
    first, second, *_ = map(json.loads, lines.read_text().splitlines())
    assert first["error"].endswith("bad.png' cannot be read (cannot identify image file)")  # not where it is in memory
    assert first["p_value"] is None
    assert 0 < second["p_value"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["score", "nowhere", "."], "holds no images"),
        (["score", "nowhere", "x.png"], "'x.png' not found"),
        (["score", "nowhere", __file__, "--out", "rows.xlsx"], "ends in none of .parquet, .csv, .jsonl"),
        (["fit", "+benchmark=openset_digits"], "out is not given"),
        (["fit", "+benchmark=openset_digits", "out=."], "exists"),
        (["fit", "+benchmark=openset_digits", f"out={__file__}/detector"], "test_commands.py' is not a folder"),
        (["fit", "+benchmark=openset_digits", "alhpa=0.1", "out=x"], "the config has no key 'alhpa'"),
        (["fit", "+benchmark=openset_digits", "alpha=5", "out=x"], "calibrate.alpha"),
        (["fit", "+benchmark=openset_digits", "calibration=train", "out=x"], "fit.calibration"),
    ],
)
def test_bad_words_are_refused_before_anything_is_loaded(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "openbench.engine.prepare.prepare", lambda *_, **__: pytest.fail("it went on to data and network")
    )
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits come with scikit-learn; the network's weights are random, but fixed."""
    from openbench.engine import prepare

    def random_weights(config, benchmark, *rest):
        backbone = prepare.build_backbone(config, benchmark)
        return backbone.load_state(backbone.network.state_dict(), "memory"), prepare.TrainingInfo()

    place = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "ready_backbone", random_weights)
        patch.setenv("OPENBENCH_CACHE", str(place / "cache"))
        patch.setenv("OPENBENCH_RESULTS", str(place / "results"))
        yield


def fit(*words):
    return main(["fit", "+benchmark=openset_digits", *words])


@pytest.mark.usefixtures("digits")
def test_fit_makes_a_detector_of_a_benchmark(tmp_path, capsys):
    out = tmp_path / "made.zip"
    assert fit("method=react", "alpha=0.1", f"out={out}") == 0
    told = capsys.readouterr().out
    loaded = load_detector(out)
    assert (loaded.about["calibrated_on"], loaded.chosen.name) == ("id_test", "react")
    assert f"licence of the images: {loaded.about['licences']['images']}" in told
    assert ["at most 10 %" in told, "digest" in told, "of id_val" in told] == [True, True, False]
    # ReAct is fitted on ID validation, and DoubleScore brings its parts to one unit there.
    for method in ("react", "knn_msp"):
        assert fit("calibration=id_val", f"out={tmp_path / 'b'}", f"method={method}") == 2
        assert "is fitted on it" in capsys.readouterr().err


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(("method", "reason"), [("hbos", "cannot be saved"), ("oodd", "scores streams of images")])
def test_a_method_that_no_detector_can_have_is_refused_before_anything_is_computed(
    tmp_path, monkeypatch, capsys, method, reason
):
    monkeypatch.setattr("openbench.engine.prepare.prepare", lambda *_, **__: pytest.fail("computed"))
    assert fit(f"method={method}", f"out={tmp_path / 'made'}") == 2
    assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("digits")
def test_fit_learns_from_the_splits_that_a_run_learns_from(tmp_path, monkeypatch, capsys):
    given, plain = [], Detector.fit

    def noted(self, train=None, val=None, **rest):
        given.append([split and split.role for split in (train, val)])
        return plain(self, train, val, **rest)

    monkeypatch.setattr(Detector, "fit", noted)
    for method in ("knn_msp", "msp"):
        assert fit(f"method={method}", f"out={tmp_path / method}") == 0
        assert ("of id_val, which it has not seen" in capsys.readouterr().out) == (method == "msp")
    assert given == [[Role.ID_TRAIN, Role.ID_VAL], [None, None]]


@pytest.mark.usefixtures("digits")
def test_what_tuning_has_seen_is_not_reported_as_unseen(tmp_path, monkeypatch, capsys):
    record = SimpleNamespace(tuned={"k": 3}, run_id="0" * 16)
    monkeypatch.setattr(RecordStore, "find", lambda self, run_id: (record, None))
    assert fit("method=knn", f"out={tmp_path / 'made'}") == 0
    assert "of id_val" not in capsys.readouterr().out
    assert load_detector(tmp_path / "made").learnt[1].k == 3
    assert fit("method=knn", "calibration=id_val", f"out={tmp_path / 'b'}") == 2
    assert "was tuned on it" in capsys.readouterr().err
