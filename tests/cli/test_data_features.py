"""`data new --features` as a user meets it: a benchmark of arrays, what runs on it, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_wine
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from openbench.__main__ import main
from openbench.data.own.features import array_in, arrays_in
from openbench.storage.yaml_file import read_yaml

QUICK = ["metrics.replicates=0", "metrics.correction=simes", "+metrics.set_splits=0", "runtime.progress=false"]


@pytest.fixture(autouse=True)
def wines(here):
    """A folder with features of wines: two cultivars are ID, the third is near, noise is far."""
    X, y = load_wine(return_X_y=True)
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
    known = np.random.default_rng(0).permutation(np.flatnonzero(y < 2))
    train, test = known[:90], known[90:]
    np.savez("train.npz", features=X[train], labels=y[train])
    np.save("test.npy", X[test])
    np.save("test_y.npy", y[test])
    np.save("near.npy", X[y == 2].astype(np.float64))
    np.save("far.npy", np.random.default_rng(1).normal(size=(60, 13)).astype(np.float16) * 3)


def new(**changes: str) -> int:
    sets = {"train": "train.npz", "id_test": "test.npy", "near.third": "near.npy", "far.noise": "far.npy"}
    sets |= {where.replace("_in_", "."): file for where, file in changes.items()}
    words = [f"{where}={file}" for where, file in sets.items() if file]
    return main(["data", "new", "wines", "--features", *words, "--labels", "id_test=test_y.npy"])


def run(*words: str) -> int:
    return main(["run", "--config-dir", "wines", "+benchmark=wines", *QUICK, *words])


def records() -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(Path("results").rglob("records/**/*.json"))]


def scores_of_neighbours(k: int) -> dict[str, np.ndarray]:
    """The distance to the k-th nearest training row on the unit sphere, by scikit-learn."""
    rows = {int(line.split(",")[0]) for line in Path("wines/lists/wines/id.train.csv").read_text().split()[1:]}
    unit = {name: x / np.linalg.norm(x, axis=1, keepdims=True) for name, x in features().items()}
    near = NearestNeighbors(n_neighbors=k).fit(unit["train"][sorted(rows)])
    return {name: near.kneighbors(x)[0][:, -1] for name, x in unit.items() if name != "train"}


def features() -> dict[str, np.ndarray]:
    arrays = {name: np.load(f"{name}.npy").astype(np.float32) for name in ("test", "near", "far")}
    return {"train": np.load("train.npz")["features"], **arrays}


def test_a_run_on_arrays_has_the_auroc_of_an_independent_knn(capsys):
    assert new() == 0
    told = capsys.readouterr().out
    assert "a linear head is fitted on train" in told
    assert "nothing is tuned" in told
    assert "run:    python -m openbench run --config-dir wines +benchmark=wines tune=none method=knn" in told
    assert run("method=knn", "method.k=5") == 0
    (record,) = records()
    scores = scores_of_neighbours(5)
    for name, of in (("third", "near"), ("noise", "far")):
        truth = np.repeat([0, 1], [len(scores["test"]), len(scores[of])])
        expected = roc_auc_score(truth, np.concatenate([scores["test"], scores[of]]))
        assert record["metrics"][name]["auroc"] == pytest.approx(expected, abs=1e-4)
    assert record["backbone"]["head"]["kind"] == "linear_probe"


def test_logits_and_a_head_that_makes_them_give_the_same_numbers():
    rng = np.random.default_rng(2)
    W, b = rng.normal(size=(2, 13)).astype(np.float32), rng.normal(size=2).astype(np.float32)
    np.savez("head.npz", weight=W, bias=b)
    for name, x in features().items():
        np.save(f"{name}_logits.npy", x @ W.T + b)
    sets = ["train=train.npz", "id_test=test.npy", "near.third=near.npy"]
    logits = ["train=train_logits.npy", "id_test=test_logits.npy", "near.third=near_logits.npy"]
    for name, more in (("given", ["--logits", *logits]), ("made", ["--head", "head.npz"])):
        words = ["data", "new", name, "--features", *sets, "--labels", "id_test=test_y.npy", *more, "--to", "both"]
        assert main(words) == 0
        assert main(["run", "--config-dir", "both", f"+benchmark={name}", "method=energy", *QUICK]) == 0
    given, made = records()
    assert given["metrics"]["third"]["auroc"] == pytest.approx(made["metrics"]["third"]["auroc"], abs=1e-6)
    assert given["metrics"]["id"]["accuracy"] == made["metrics"]["id"]["accuracy"]


def test_what_needs_a_network_or_classes_is_refused_with_the_reason(capsys):
    assert new() == 0
    assert run("method=odin") == 2
    assert (
        "reads input gradients, but backbone 'array_features_linear_probe' has features and" in capsys.readouterr().err
    )
    words = ["--features", "train=test.npy", "id_test=far.npy", "near.third=near.npy", "--to", "plain"]
    assert main(["data", "new", "plain", *words]) == 0
    assert main(["run", "--config-dir", "plain", "+benchmark=plain", "method=msp", *QUICK]) == 2
    assert "benchmark 'plain' has one class and no classifier" in capsys.readouterr().err
    assert main(["run", "--config-dir", "plain", "+benchmark=plain", "method=mds", *QUICK]) == 0


def test_a_changed_file_is_computed_again_and_found_by_verify(capsys):
    assert new() == 0
    assert main(["data", "verify", "wines", "--config-dir", "wines"]) == 0
    assert run("method=knn", "method.k=5") == run("method=knn", "method.k=5") == 0
    assert len(records()) == 1
    changed = np.load("near.npy")
    changed[1, 4] += 0.5  # a row whose numbers are no part of the sample in a split's digest
    np.save("near.npy", changed)
    assert run("method=knn", "method.k=5") == 0
    assert len(records()) == 2
    capsys.readouterr()
    assert main(["data", "verify", "wines", "--config-dir", "wines"]) == 1
    assert "near/third: '" in (report := capsys.readouterr().out)
    assert "problems: 1 changed file (" in report


def test_a_row_that_is_id_and_ood_is_refused(capsys):
    whole, seen = np.load("near.npy"), np.load("test.npy")[7]
    np.save("near.npy", np.vstack([whole[:-1], seen]))
    assert new() == 0
    assert run("method=knn") == 2
    assert "id_test wines and near third have 1 row in common, e.g. '000047'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"near_in_third": "nan.npy"}, "'nan.npy' has NaN or infinity in 2 of 40 rows, the first is row 3"),
        (
            {"id_test": "short.npy"},
            "id_test 'short.npy' has 30 rows, and labels int64 (40,) — allowed: (n,) whole numbers from 0",
        ),
        ({"far_in_noise": "wide.npy"}, "far.noise 'wide.npy' has 14 columns, train 'train.npz' has 13"),
        ({"train": "gap.npz"}, "train 'gap.npz' has the labels 0, 2 — number the classes 0, 1, 2, … without gaps"),
        ({"train": "absent.npz"}, "'absent.npz' not found"),
        ({"nera_in_third": "near.npy"}, "set 'nera.third' not found — available: train, id_val"),
        ({"id_test": ""}, "--features: id_test missing — give id_test=FILE"),
        ({"near_in_third": "", "far_in_noise": ""}, "no OOD test set — give at least one, near or far"),
    ],
)
def test_bad_arrays_are_one_message_and_nothing_is_written(changes, text, capsys):
    rows = np.ones((40, 13), np.float32) * np.arange(40)[:, None]
    bad = rows.copy()
    bad[[3, 9], 1] = np.nan, np.inf
    np.save("nan.npy", bad)
    np.save("short.npy", rows[:30])
    np.save("wide.npy", np.ones((5, 14)))
    np.savez("gap.npz", features=rows, labels=np.arange(40) % 2 * 2)
    assert new(**changes) == 2
    assert text in (error := capsys.readouterr().err)
    assert error.count("—") <= 1
    assert not Path("wines").exists()


def test_labels_of_some_id_sets_alone_are_refused(capsys):
    sets = ["train=train.npz", "id_test=test.npy", "near.third=near.npy"]
    assert main(["data", "new", "wines", "--features", *sets]) == 2
    assert "id_test has no labels, train has — give --labels id_test=FILE" in capsys.readouterr().err


def test_images_and_features_do_not_mix(capsys):
    assert main(["data", "new", "wines", "--features", "train=train.npz", "--near", "photos"]) == 2
    assert "--features and images exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npy", "npz", "parquet", "columns.parquet", "filtered.parquet", "half.safetensors"])
def test_every_format_gives_the_same_rows(form, tmp_path):
    rows, file = np.arange(24, dtype=np.float32).reshape(8, 3), tmp_path / f"x.{form}"
    if form == "npy":
        np.save(file, rows)
    elif form == "npz":
        np.savez(file, features=rows, labels=np.arange(8))
    elif form == "parquet":
        lists = pa.array(list(rows), pa.list_(pa.float32()))
        pq.write_table(pa.table({"features": lists, "label": list("abcdabcd")}), file)
    elif form == "columns.parquet":
        pq.write_table(pa.table({**{f"c{i}": rows[:, i] for i in range(3)}, "label": list("abcdabcd")}), file)
    elif form == "filtered.parquet":  # the rows of a larger table, which have an index
        pd.DataFrame({"features": list(np.vstack([rows, rows]))})[8:].to_parquet(file)
    else:
        save_file({"features": torch.from_numpy(rows).bfloat16()}, file)
    np.testing.assert_array_equal(array_in(file, ("features",)), rows)
    if form == "npy":
        assert isinstance(arrays_in(file)[""], np.memmap)


def test_class_numbers_of_two_digits_count_in_their_order():
    rng = np.random.default_rng(3)
    for name, n in (("train", 48), ("test", 24)):
        np.savez(f"{name}.npz", features=rng.normal(size=(n, 4)), labels=np.arange(n) % 12)
    np.save("ood.npy", rng.normal(size=(9, 4)))
    words = ["--features", "train=train.npz", "id_test=test.npz", "far.x=ood.npy"]
    assert main(["data", "new", "twelve", *words]) == 0
    node = read_yaml(Path("twelve/benchmark/twelve.yaml"))["benchmark"]
    assert node["classes"] == [f"{label:02d}" for label in range(12)]
    assert main(["data", "verify", "twelve", "--config-dir", "twelve"]) == 0
