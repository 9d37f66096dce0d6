"""Features from elsewhere: the right numbers from any kind of array, nothing left behind, and leakage refused."""

import tracemalloc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import openbench as ob
from openbench.core.method import Method
from openbench.core.request import Field, Request
from openbench.errors import ConfigError, DataError, LeakageError, NotApplicableError
from openbench.methods.knn import KNN

from ..logged import logged  # noqa: TID252 — the tests are no package

QUICK = {"replicates": 0, "correction": "simes", "set_splits": 0}
RNG = np.random.default_rng(0)
CENTRES = 5 * np.eye(3, 8)


def drawn(n, shift=0.0):
    y = np.arange(n) % 3
    x = RNG.normal(size=(n, 8)) + CENTRES[y] + shift
    return x.astype(np.float16).astype(np.float32), y  # numbers that any float type holds


TRAIN, VAL, TEST, MOVED = drawn(120), drawn(60), drawn(60), drawn(45, 0.5)
OOD_VAL, EIGHT, SVHN = drawn(50, 1.0)[0], drawn(50, 1.5)[0], drawn(70, 3.0)[0]
HEAD = CENTRES.astype(np.float32)[:3], np.full(3, -12.5, np.float32)
SETS = {"train": TRAIN, "id_val": VAL, "id_test": TEST, "near": {"eight": EIGHT}, "far": {"svhn": SVHN}}


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))


@dataclass
class Length(Method):
    """The length of the features."""

    reference: ClassVar[str] = "a class of a user's own"
    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}))

    def score(self, x):
        return x.features.norm(dim=1)


def evaluated(**changes):
    given = {**SETS, "methods": ["msp"], "head": HEAD, "metrics": QUICK, **changes}
    return ob.evaluate_features(**{key: value for key, value in given.items() if value is not None})


def test_numbers_are_those_of_the_estimators_scores_and_nothing_is_left_behind(tmp_path):
    results = evaluated(methods=["msp", "mds", KNN(k=5)], csid={"moved": MOVED})
    assert list(results) == ["msp", "mds", "knn"]
    estimators = {"msp": ob.method("msp"), "mds": ob.method("mds"), "knn": ob.method("knn", k=5)}
    answer = {id(x): (x @ HEAD[0].T + HEAD[1]).argmax(1) for x, _ in (TEST, VAL, MOVED)}
    for name, estimator in estimators.items():
        fitted = estimator.fit(*TRAIN, head=HEAD)

        def side(pair, score=fitted.score):
            return {"scores": score(pair[0]), "labels": pair[1], "predictions": answer[id(pair[0])]}

        expected = ob.evaluate_scores(
            side(TEST),
            near={"eight": fitted.score(EIGHT)},
            far={"svhn": fitted.score(SVHN)},
            id_val=side(VAL),
            csid={"moved": side(MOVED)},
            metrics=QUICK,
        ).metrics
        found = results[name].metrics
        for group, values in expected.items():
            assert {key: found[group][key] for key in values} == pytest.approx(values, abs=1e-12), (name, group)
        assert [s.name for s in results[name].scores] == ["id_test", "moved", "eight", "svhn", "id_val"]
        assert results[name].path is None
    assert not list((tmp_path / "cache").rglob("*.npy"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", ["torch", "float64", "memmap", "pandas", "jax-like"])
def test_any_kind_of_array_is_the_same_features(kind, tmp_path):
    class Sliced:
        """What JAX's arrays have, and files of arrays: a shape, slices, __array__."""

        def __init__(self, rows):
            self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

        def __getitem__(self, index):
            return Sliced(self.rows[index])

        def __array__(self, dtype=None, copy=None):
            return self.rows

    def made(rows):
        np.save(tmp_path / f"{id(rows)}.npy", rows.astype(np.float16))
        return {
            "torch": lambda: torch.tensor(rows, requires_grad=True),
            "float64": lambda: rows.astype(np.float64),
            "pandas": lambda: pd.DataFrame(rows, index=[f"image {n}" for n in range(len(rows))]),
            "memmap": lambda: np.load(tmp_path / f"{id(rows)}.npy", mmap_mode="r"),
            "jax-like": lambda: Sliced(rows),
        }[kind]()

    sets = {"train": (made(TRAIN[0]), TRAIN[1]), "id_test": (made(TEST[0]), torch.tensor(TEST[1])), "id_val": None}
    sets |= {"near": {"eight": made(EIGHT)}, "far": {"svhn": made(SVHN)}}
    plain = evaluated(id_val=None, methods=["vim"], tune="none", metrics=QUICK | {"families": ["ranking"]})["vim"]
    with logged() as messages:
        found = evaluated(**sets, methods=["vim"], metrics=QUICK | {"families": ["ranking"]})["vim"]
    assert found.metrics == plain.metrics
    assert found.record.run_id == plain.record.run_id
    kinds = {"float64": "float64", "memmap": "float16"}
    note = f"id_test, train, near 'eight', far 'svhn': {kinds.get(kind)} read as float32"
    assert found.notes == ((note,) if kind in kinds else ())
    assert (note in messages) == (kind in kinds)


def test_validation_tunes_what_is_named_and_leaves_objects_alone():
    results = evaluated(ood_val=OOD_VAL, methods={"named": "react", "object": KNN(k=7)})
    assert len(results["named"].record.trials) > 1
    assert results["object"].record.trials == []
    assert results["object"].record.method["params"]["k"] == 7
    assert evaluated(ood_val=OOD_VAL, methods="react", tune="none")["react"].record.trials == []


def test_held_out_classes_tune_without_ood_rows():
    record = evaluated(methods="react", tune="held_out_classes")["react"].record
    assert record.config["tune"] == {"strategy": "held_out_classes", "folds": 5, "seed": 0}
    assert len(record.trials) == 4
    assert all(0 <= trial["auroc"] <= 1 for trial in record.trials)
    with pytest.raises(ConfigError, match="no labelled ID validation images"):
        evaluated(methods="react", tune="held_out_classes", id_val=None)


def test_without_labels_there_is_one_class_or_no_accuracy():
    one = evaluated(train=TRAIN[0], id_test=TEST[0], id_val=None, head=None, methods=[Length(), KNN(k=5)])
    assert "accuracy" not in one["length"].metrics["id"]
    lengths = [np.linalg.norm(x, axis=1) for x in (TEST[0], SVHN)]
    assert one["length"].metrics["svhn"]["auroc"] == pytest.approx(ob.metrics.auroc(*lengths), abs=1e-6)
    unknown = evaluated(id_test=TEST[0])["msp"]
    assert "accuracy" not in unknown.metrics["id"]
    assert unknown.metrics["id"]["id_val_accuracy"] == pytest.approx(((VAL[0] @ HEAD[0].T).argmax(1) == VAL[1]).mean())


def test_names_of_classes_may_be_pandas():
    names = ["a", "b", "c"]
    ids = [evaluated(classes=kind(names))["msp"].record.run_id for kind in (list, pd.Index, pd.Series)]
    assert len(set(ids)) == 1


def test_records_are_written_once_and_found_again(tmp_path):
    first = evaluated(results=True, name="mine")["msp"]
    assert first.path is not None
    assert first.path.is_relative_to(tmp_path / "results/records/mine/features/msp")
    again = evaluated(results=True, name="mine", id_test=(TEST[0].astype(np.float64), TEST[1]))["msp"]
    assert again.path == first.path
    assert np.array_equal(again.scores[0].scores, first.scores[0].scores)
    assert any("nothing was computed" in note for note in again.notes)
    other = evaluated(results=True, name="mine", near={"eight": EIGHT + 1})["msp"]
    assert other.record.run_id != first.record.run_id


def test_nothing_of_the_size_of_the_features_is_kept_in_memory(tmp_path):
    n, d = 60_000, 128
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float16, (n, d))
    for start in range(0, n, 10_000):
        rows[start : start + 10_000] = RNG.normal(size=(10_000, d))
    sets = {"train": None, "id_val": None, "far": None, "near": {"x": RNG.normal(size=(10, d)) + 3}}
    head = RNG.normal(size=(2, d)), np.zeros(2)
    given = np.load(tmp_path / "x.npy", mmap_mode="r")
    sets |= {"head": head, "metrics": {"families": ["ranking"]}}
    evaluated(**sets, id_test=given[:9])  # imports what it needs
    tracemalloc.start()
    try:
        evaluated(**sets, id_test=given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * d * 2 * 0.8  # the array itself has 2 bytes a number, in float32 4


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"far": {"svhn": np.concatenate([SVHN, TRAIN[0][7:8]])}}, LeakageError,
         "train and far 'svhn' have 1 rows in common, the first is row 70 of far 'svhn'"),
        ({"id_val": TRAIN}, LeakageError, "train and id_val have 120 rows in common"),
        ({"far": {"svhn": SVHN[:, :5]}}, DataError, "far 'svhn' has 5 features — pass 8 features, as in id_test"),
        ({"far": {"svhn": np.where(SVHN > 6, np.inf, SVHN)}}, DataError, "far 'svhn' has NaN or infinity in"),
        ({"far": [SVHN]}, DataError, r"far is a list — pass sets by name: far=\{'svhn': X\}"),
        ({"classes": "abc"}, DataError, "classes is a str — pass the names"),
        ({"far": {}, "near": {}}, DataError, "no OOD test set left"),
        ({"id_test": (TEST[0], TEST[1][:9])}, DataError, r"id_test: y: int64 of shape \(9,\)"),
        ({"id_test": (TEST[0], TEST[1] + 1)}, DataError, "id_test: y has the class 3 — allowed: 0 to 2"),
        ({"id_test": TEST[0][0]}, DataError, r"id_test has shape \(8,\) — allowed: \(n, d\)"),
        ({"train": TRAIN[0]}, DataError, "train is X without y, and there are 3 classes"),
        ({"classes": ["a"]}, DataError, "classes has 1 names — pass 3"),
        ({"head": None}, NotApplicableError, r"'msp' reads logits, but .* has no classifier .* head=\(W, b\)"),
        ({"methods": ["odin"]}, NotApplicableError, "'odin' reads input gradients, but backbone 'features' has"),
        ({"methods": ["knn"], "train": None}, NotApplicableError, "'knn' is fitted on ID training features"),
        ({"methods": ["temp_scaling"], "id_val": None}, NotApplicableError, "fitted on ID validation features"),
        ({"methods": [KNN(k=1), KNN(k=2)]}, ConfigError, "names 'knn' twice .* {'knn': …, 'knn_2': …}"),
        ({"tune": "validation"}, ConfigError, "needs id_val and ood_val"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(changes, error, words, tmp_path):
    with pytest.raises(error, match=words):
        evaluated(**changes)
    assert not list((tmp_path / "cache").rglob("*.npy"))
