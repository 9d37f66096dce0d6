"""The `data` command as a user meets it; nothing leaves this machine."""

import numpy as np
import pytest
from PIL import Image as Pillow
from sklearn.datasets import load_digits

from openbench.__main__ import main
from openbench.data import download
from openbench.data.download import DataSource, RemoteFile
from openbench.errors import DataError

PHOTOS = 120  # of ten digits


@pytest.fixture
def photos(here):
    """Digits as a user's photographs: six ID classes, eights as near, nines as far, sixes and sevens for tuning."""
    digits = load_digits()
    images = np.rint(digits.images / 16 * 255).astype(np.uint8)
    elsewhere = {6: "tuning/six", 7: "tuning/seven", 8: "eights", 9: "nines"}
    for row, (image, digit) in enumerate(zip(images[:PHOTOS], digits.target[:PHOTOS], strict=True)):
        folder = here / "photos" / elsewhere.get(int(digit), f"digits/class {digit}")
        folder.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(image).save(folder / f"img {row}.png")
    return here / "photos"


def new(*extra: str) -> int:
    sets = ["--id", "photos/digits", "--near", "photos/eights", "--far", "nines=photos/nines"]
    return main(["data", "new", "mine", *sets, "--backbone", "resnet8_digits", "--side", "16", *extra])


def test_every_data_set_is_listed_with_licence_size_and_state(here, capsys):
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    assert "cifar10" in text
    assert "170 MB" in text
    assert "by hand" in text
    assert "not downloaded" in text
    assert str(here / "data") in text


def test_places_and_instructions_are_said_once_per_data_set(here, capsys):
    assert main(["data", "list", "cifar10"]) == 1
    text = capsys.readouterr().out
    assert [text.count(f"\n{path}: ") for path in ("id.train", "id.val", "id.test", "far.svhn")] == [1] * 4
    assert text.count("\n  cifar-10-batches-py\n") == 1
    assert "python -m openbench data prepare cifar10" in text
    assert text.count("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz") == 1


def test_a_download_that_fails_is_said_and_does_not_end_in_success(here, capsys, monkeypatch):
    def refused(file, root):
        raise DataError("the server is gone")

    monkeypatch.setattr(download, "prepare_file", refused)
    assert main(["data", "prepare", "svhn"]) == 1
    said = capsys.readouterr()
    assert "the server is gone" in said.err
    assert "ready" not in said.out
    monkeypatch.setattr(download, "prepare_file", lambda file, root: "done")
    assert main(["data", "prepare", "svhn"]) == 0
    assert "ready" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["list", "svhnn"], "benchmark or data set 'svhnn' not found; did you mean 'svhn'?"),
        (["prepare", "svhnn"], "benchmark or data set 'svhnn' not found; did you mean 'svhn'?"),
        (["stats", "digitz"], "benchmark 'digitz' not found; did you mean 'digits'?"),
        (["stats", "digits", "cifar10"], "'benchmark' exists already"),
    ],
)
def test_a_wrong_name_is_one_message(here, capsys, words, told):
    assert main(["data", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {told}")
    assert said.out == ""


def test_prepare_fetches_what_a_benchmark_lacks_and_looks_again(here, photos, capsys, monkeypatch):
    """A source that names a set of the benchmark is fetched; the set is complete afterwards."""
    assert new() == 0
    gone = photos / "nines"
    kept = {path.name: path.read_bytes() for path in gone.iterdir()}
    for path in gone.iterdir():
        path.unlink()
    asked = []

    def fetched(file, root):
        asked.append(file.gives)
        for name, content in kept.items():
            (gone / name).write_bytes(content)
        return "done"

    source = DataSource("nines", "Nines", "mine", "http://x", (RemoteFile("http://x/n.tar", "nines"),))
    monkeypatch.setattr(download, "data_sources", lambda: {"nines": source})
    monkeypatch.setattr(download, "prepare_file", fetched)
    assert main(["data", "list", "mine", "--config-dir", "mine"]) == 1
    assert main(["data", "prepare", "mine", "--config-dir", "mine"]) == 0
    assert asked == ["nines"]
    assert main(["data", "prepare", "mine", "--config-dir", "mine"]) == 0
    assert asked == ["nines"]


def test_a_new_benchmark_passes_its_check(here, photos, capsys):
    assert new("--ood-val", "photos/tuning", "--corruptions") == 0
    said = capsys.readouterr().out
    assert "python -m openbench run --config-dir mine +benchmark=mine" in said
    assert "tune=none" not in said
    assert main(["check", "--config-dir", "mine", "+benchmark=mine"]) == 0
    report = capsys.readouterr().out
    assert "csid/corrupted" in report
    assert "near/eights" in report
    assert "deviates" not in report


def test_images_added_later_change_no_split(here, photos, capsys):
    assert new() == 0
    assert main(["data", "list", "mine", "--config-dir", "mine"]) == 0
    before = capsys.readouterr().out.splitlines()[-8:]
    Pillow.fromarray(np.zeros((8, 8), np.uint8)).save(photos / "digits" / "class 0" / "new.png")
    assert main(["data", "list", "mine", "--config-dir", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[-8:] == before


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--near", "near=photos/eights"], "the name 'near' is that of a group in results"),
        (["--train", "photos/digits"], "give either --id, or all of --train, --val and --test"),
        (["--far", "photos/nowhere"], "'photos/nowhere' not found"),
        (["--far", "x=photos/digits"], "share the classes"),
        (["--backbone", "resnet9_digits"], "did you mean"),
    ],
)
def test_arguments_that_do_not_fit_are_one_message_and_write_nothing(here, photos, capsys, extra, text):
    assert new(*extra) == 2
    assert text in capsys.readouterr().err
    assert not (here / "mine").exists()


def test_verify_finds_the_same_picture_saved_anew(here, photos, capsys):
    assert new() == 0
    listed = (here / "mine" / "lists" / "mine" / "id.train.csv").read_text().splitlines()[1].partition(",")[0]
    with Pillow.open(photos / "digits" / listed) as picture:
        lighter = np.clip(np.asarray(picture).astype(int) + 3, 0, 255).astype(np.uint8)
    eight = sorted((photos / "eights").iterdir())[0]
    Pillow.fromarray(lighter).save(eight)
    assert main(["data", "verify", "mine", "--config-dir", "mine"]) == 0
    text = capsys.readouterr().out
    assert f"id_train/mine '{listed}' ~ near/eights '{eight.name}'" in text
    assert main(["data", "verify", "mine", "--config-dir", "mine", "--fast"]) == 0
    assert "look alike" not in capsys.readouterr().out


def test_stats_writes_a_sheet_per_split(here, photos, capsys, monkeypatch):
    # What is on a sheet is tested where it is drawn.
    monkeypatch.setattr(
        "openbench.data.checking.contact_sheet.draw", lambda split, classes, stats, path: path.write_text(stats)
    )
    assert new() == 0
    assert main(["data", "stats", "mine", "--config-dir", "mine", "--to", "sheets"]) == 0
    sheets = {path.name: path.read_text().partition(": ")[0] for path in (here / "sheets" / "mine").iterdir()}
    splits = ("id_train/mine", "id_val/mine", "id_test/mine", "near/eights", "far/nines")
    assert sheets == {f"{split.replace('/', '-')}.png": split for split in splits}
    text = capsys.readouterr().out
    assert "100% grey" in text
    assert "6 classes" in text


def test_a_new_benchmark_suggests_what_is_quick_first(here, photos, capsys):
    assert new() == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [next(i for i, line in enumerate(lines) if line.startswith(word)) for word in ("quick:", "train:", "run:")]
    assert starts == sorted(starts)
    assert "backbone.head=linear_probe method=knn" in lines[starts[0]]
    assert "backbone=resnet20_cifar training.recipe.epochs=" in lines[starts[1]]


def test_missing_sets_and_weights_are_one_message_with_one_command(here, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(here / "hub"))
    assert main(["run", "+benchmark=cifar10", "backbone=torchvision_resnet50", "method=knn"]) == 2
    summary = capsys.readouterr().err.splitlines()[0]
    assert "10 of 10 data sets are missing" in summary
    assert "and the weights of backbone 'torchvision_resnet50'" in summary
    assert summary.endswith(" — python -m openbench data prepare cifar10 backbone=torchvision_resnet50")


def test_prepare_fetches_the_sets_of_a_benchmark_and_the_weights_of_a_backbone(here, capsys, monkeypatch):
    fetched = []
    monkeypatch.setattr(download, "prepare_file", lambda file, root: fetched.append(file.gives) or "done")
    assert main(["data", "prepare", "cifar10", "backbone=torchvision_resnet50"]) == 1  # no set is there afterwards
    assert {"cifar-10-batches-py", "weights/resnet50-0676ba61.pth"} <= set(fetched)


def test_a_new_benchmark_runs_from_the_printed_command(here, photos, capsys):
    assert new("--epochs", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    [command] = [line for line in lines if line.startswith("run:")]
    python, option, module, *words = command.removeprefix("run:").split()
    assert (python, option, module) == ("python", "-m", "openbench")
    assert main([*words, "method=knn"]) == 0
    assert "eights" in capsys.readouterr().out
    assert len(list((here / "results").rglob("*.json"))) == 1
