"""Files of scores as other libraries save them: OpenOOD's npz, pytorch-ood's buffers, single arrays, folders."""

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.errors import DataError
from openbench.results.scores.formats import Meaning, read_scores, read_sets

QUICK = ["--replicates", "0", "--correction", "simes", "--families", "ranking"]
ROLES = ["--set", "id_test=cifar10.npz", "--set", "near:cifar100=cifar100.npz", "--set", "far=mnist.npz"]


def arrays(seed=0, n=40):
    """What OpenOOD's evaluator has of a set each: pred, conf (larger = more ID), label."""
    rng = np.random.default_rng(seed)
    shifts = {"cifar10": 1.0, "cifar100": 0.3, "mnist": -1.0}
    return {
        name: {
            "pred": rng.integers(10, size=n),
            "conf": rng.normal(shift, 1, n).astype("f4"),
            "label": rng.integers(10, size=n) if name == "cifar10" else np.full(n, -1),
        }
        for name, shift in shifts.items()
    }


def saved(folder, sets):
    """The files that OpenOOD's `_save_scores` writes."""
    folder.mkdir(exist_ok=True)
    for name, found in sets.items():
        np.savez(folder / name, **found)
    return folder


def evaluated(tmp_path, source, *options):
    code = main(["evaluate", str(source), "--json", str(tmp_path / "m.json"), *QUICK, *options])
    return code, json.loads((tmp_path / "m.json").read_text())


def brute_force_auroc(ids, oods):
    """The share of pairs in which the OOD confidence is the smaller one."""
    return np.mean([(ood < ids).mean() + (ood == ids).mean() / 2 for ood in oods])


def test_auroc_of_a_folder_of_openood_is_that_of_its_confidences(tmp_path):
    sets = arrays()
    code, values = evaluated(tmp_path, saved(tmp_path / "scores", sets), *ROLES)
    assert code == 0
    for name in ("cifar100", "mnist"):
        expected = brute_force_auroc(sets["cifar10"]["conf"], sets[name]["conf"])
        assert values[name]["auroc"] == pytest.approx(expected, abs=1e-12)
    right = (sets["cifar10"]["pred"] == sets["cifar10"]["label"]).mean()
    assert values["id"]["accuracy"] == pytest.approx(right)


def test_files_named_as_the_sets_of_a_benchmark_need_no_option(tmp_path):
    folder = saved(tmp_path / "scores", arrays())
    assert evaluated(tmp_path, folder, "--benchmark", "cifar10") == evaluated(tmp_path, folder, *ROLES)


def test_roles_that_are_not_known_are_asked_for_with_options_that_work(tmp_path, capsys):
    folder = saved(tmp_path / "scores", arrays())
    assert main(["evaluate", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("—") == 1
    typed = said.partition("add what is right of: ")[2].partition(";")[0]
    assert evaluated(tmp_path, folder, *shlex.split(typed))[0] == 0


def test_what_larger_scores_mean_is_asked_for_unless_the_array_is_openoods(tmp_path, capsys):
    sets = arrays()
    for found in sets.values():
        found["scores"] = found.pop("conf")
    folder = saved(tmp_path / "scores", sets)
    assert main(["evaluate", str(folder), *ROLES]) == 2
    assert "--larger-is ood" in capsys.readouterr().err
    turned = [evaluated(tmp_path, folder, *ROLES, "--larger-is", way)[1]["near"]["auroc"] for way in ("id", "ood")]
    assert turned[0] == pytest.approx(1 - turned[1])
    assert turned[0] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conf": None}, "has no array 'conf' (OpenOOD) or 'scores', found: pred, label"),
        ({"pred": np.zeros(3)}, "found conf float32 (40,), label int64 (40,), prediction float64 (3,)"),
        ({"conf": np.full(40, np.nan)}, "row 0: conf is empty and 39 more like it — allowed: a number"),
        ({"label": np.full(40, np.nan)}, "row 0: label is empty and 39 more like it — allowed: a number"),
        ({"label": np.where(np.arange(40) == 3, np.nan, -1)}, "row 3: label is empty — allowed: a number"),
        ({"conf": np.array([{}] * 40)}, "(Object arrays cannot be loaded when allow_pickle=False) — write numbers"),
        ({"label": np.zeros(40, int)}, "no label of the far set 'mnist' is negative, which means OOD"),
        ({"scores": np.zeros(40)}, "has the arrays scores and conf"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_message(tmp_path, capsys, changes, message):
    sets = arrays()
    found = {**sets["mnist"], **changes}
    sets["mnist"] = {key: array for key, array in found.items() if array is not None}
    code, values = evaluated(tmp_path, saved(tmp_path / "scores", sets), *ROLES)
    error, *rest = capsys.readouterr().err.splitlines()
    assert code == 2
    assert message in error
    assert "mnist.npz" in error
    assert rest[0] == "1 file was left out"
    assert set(values) >= {"cifar100", "near"}  # the rest goes on
    assert "mnist" not in values


def test_one_file_that_cannot_be_used_is_an_error(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", pred=np.zeros(3))
    assert main(["evaluate", str(tmp_path / "a.npz")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_scores_of_pytorch_ood_have_the_auroc_of_its_metrics(tmp_path):
    torch = pytest.importorskip("torch")
    import openbench._compat  # noqa: F401 — before torchvision

    library = pytest.importorskip("pytorch_ood")
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(0, 1, 90).astype("f4"), rng.integers(-1, 4, 90)
    scores[labels < 0] += 1
    buffer, metrics = library.utils.TensorBuffer(), library.metrics.OODMetrics()
    for part in np.array_split(np.arange(90), 4):
        both = torch.from_numpy(scores[part]), torch.from_numpy(labels[part])
        buffer.append("scores", both[0]).append("labels", both[1])
        metrics.update(*both)
    buffer.save(tmp_path / "out.pt")
    code, values = evaluated(tmp_path, tmp_path / "out.pt", "--larger-is", "ood", "--set", "far=out.pt")
    assert code == 0
    assert values["out"]["auroc"] == pytest.approx(metrics.compute()["AUROC"], abs=1e-6)


def test_a_pickle_is_not_run(tmp_path, capsys):
    import pickle

    class Bad:
        def __reduce__(self):
            return (open, (str(tmp_path / "was_run"), "w"))

    (tmp_path / "out.pt").write_bytes(pickle.dumps(Bad(), protocol=2))
    assert main(["evaluate", str(tmp_path / "out.pt"), "--larger-is", "ood", "--set", "far=out.pt"]) == 2
    assert "cannot be read as arrays" in capsys.readouterr().err
    assert not (tmp_path / "was_run").exists()


def test_files_with_both_sides_share_the_id_scores_or_are_refused(tmp_path):
    rng = np.random.default_rng(2)
    ids, labels = rng.normal(size=20), np.r_[np.zeros(20, int), np.full(10, -1)]
    meaning = Meaning("ood", {"a.npz": ("near", "a"), "b.npz": ("far", "b")})
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", scores=np.r_[ids, rng.normal(size=10)], labels=labels)
    sets = read_scores(tmp_path, meaning, pytest.fail)
    assert [(s.role, s.name, len(s.scores)) for s in sets] == [
        ("id_test", "id_test", 20),
        ("near", "a", 10),
        ("far", "b", 10),
    ]
    np.savez(tmp_path / "b.npz", scores=rng.normal(size=30), labels=labels)
    with pytest.raises(DataError, match="two sets id_test/id_test with other scores"):
        read_scores(tmp_path, meaning, pytest.fail)


def test_columns_may_name_the_images(tmp_path):
    (tmp_path / "a.csv").write_text("score,set,role,image\n1,a,near,x/1.png\n2,a,near,x/2.png\n")
    assert read_sets(tmp_path / "a.csv")[0].images == ("x/1.png", "x/2.png")
    (tmp_path / "a.csv").write_text("score,set,role,image\n1,a,near,x/1.png\n2,a,near,\n")
    with pytest.raises(DataError, match="a name in every row of a set, or in none"):
        read_sets(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("score,set,role,image\n1,a,near,x/1.png\n2,b,near,\n")
    assert [s.images for s in read_sets(tmp_path / "a.csv")] == [("x/1.png",), None]


@pytest.mark.parametrize("of", ["folder", "file"])
def test_the_line_that_converts_openoods_pickle_gives_files_with_the_same_numbers(tmp_path, capsys, monkeypatch, of):
    import pickle

    sets = arrays()
    label = {"cifar10": sets["cifar10"]["label"], "cifar100": np.arange(40), "mnist": sets["mnist"]["label"]}
    i, near, far = ([found["pred"], found["conf"], label[name]] for name, found in sets.items())
    scores = {"id": {"train": None, "val": None, "test": i}, "csid": {"cifar10c": None}, "id_preds": None}
    scores["ood"] = {"val": None, "near": {"cifar100": near}, "far": {"mnist": far}}
    (tmp_path / "it's").mkdir()
    (tmp_path / "it's" / "knn.pkl").write_bytes(pickle.dumps(scores))
    assert main(["evaluate", str(tmp_path / "it's" / ("knn.pkl" if of == "file" else ""))]) == 2
    said = capsys.readouterr().err
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    command = shlex.split(said.partition("that folder: ")[2])
    assert said.count("—") == 1
    subprocess.run([sys.executable, *command[1:]], check=True)
    folder = saved(tmp_path / "scores", sets)
    assert evaluated(tmp_path, tmp_path / "new", "--benchmark", "cifar10") == evaluated(tmp_path, folder, *ROLES)
