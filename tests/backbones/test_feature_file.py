"""Files of features: found by name or order, memory-mapped, and refused in words where they do not fit."""

import numpy as np
import pytest

from openbench.backbones.base import Backbone
from openbench.backbones.rows import FeatureFile
from openbench.config.build import build
from openbench.core.benchmark import RowItems, Split
from openbench.core.request import Role
from openbench.errors import ConfigError, DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
KEYS = tuple(f"test/{i}.png" for i in range(4))
LABELS = np.array([0, 1, 0, 1])


def split(name="cifar100", role=Role.NEAR, keys=KEYS, labels=None):
    n = len(keys)
    labels = np.full(n, -1) if labels is None else labels
    return Split(name, role, RowItems((np.zeros((n, 1)),)), labels, keys, (), "d", n)


def saved(tmp_path, arrays, kind=np.savez):
    kind(tmp_path / "f.npz", **{"near/cifar100/features": X, **arrays})
    return FeatureFile("features", str(tmp_path / "f.npz"))


@pytest.mark.parametrize("target", ["features", "openbench.backbones.feature_file.features"])
def test_configs_and_records_of_an_earlier_version_go_on_working(tmp_path, target):
    path = str(saved(tmp_path, {}).path)
    assert isinstance(build({"_target_": target, "name": "features", "path": path}, "backbone", Backbone), FeatureFile)


@pytest.mark.parametrize("kind", [np.savez, np.savez_compressed])
def test_rows_stand_in_order_or_are_found_by_name(tmp_path, kind):
    in_order = saved(tmp_path, {}, kind).items_of(split())
    assert np.array_equal(in_order.gather(1, 3), X[1:3])
    named = {"near/cifar100/names": np.array([*KEYS[::-1], "more"]), "near/cifar100/features": np.vstack([X, X[:1]])}
    by_name = saved(tmp_path, named, kind).items_of(split(keys=KEYS[1:]))
    assert np.array_equal(by_name.gather(0, 3), X[[2, 1, 0]])
    assert np.array_equal(by_name[2], X[0])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"near/cifar100/features": X[:3]}, r"`near/cifar100/features` has 3 rows for 4 images .* or `.*names`"),
        ({"near/cifar100/names": np.array(["a", "b", "c", "d"])}, r"lacks 4 of the set's 4 images, 'test/0.png', "),
        ({"near/cifar100/names": np.array(["a"] * 4)}, "has 1 different names"),
        ({"near/cifar100/logits": X[:2]}, r"found .*`near/cifar100/logits` float32 \(2, 3\) — needed are numbers"),
        ({"far/x/features": X, "far/x/logits": X}, "for all or none, `id_test/logits`"),
        ({"far/x/features": X[:, :2]}, r"`far/x/features` float32 \(4, 2\)"),
        ({"near/cifar100/features": X[0]}, r"`near/cifar100/features` float32 \(3,\)"),
        ({"head/weight": X[:, :2]}, r"head/weight \(4, 2\) and head/bias \(4,\) — allowed: \(c, 3\)"),
        ({"head/weight": X, "near/cifar100/logits": X}, r"head/weight \(4, 3\) .* allowed: \(3, 3\)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, words):
    with pytest.raises(DataError, match=words):
        saved(tmp_path, arrays).items_of(split())


def test_a_set_that_is_not_there_and_a_wrong_order_are_noticed(tmp_path):
    file = saved(tmp_path, {"id_test/features": X, "id_test/labels": LABELS[::-1]})
    with pytest.raises(
        DataError, match=r"no `near/cifar10/features`; did you mean 'near/cifar100'.*~benchmark.near.cifar10"
    ):
        file.items_of(split("cifar10"))
    with pytest.raises(DataError, match="`id_test/labels` differ from the benchmark's"):
        file.items_of(split("cifar10", Role.ID_TEST, labels=LABELS))


def test_files_that_are_no_arrays_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"needs a file with features: backbone.path"):
        FeatureFile("features")
    with pytest.raises(DataError, match=r"'gone.npz' not found .searched: 'gone.npz', "):
        FeatureFile("features", "gone.npz")
    (tmp_path / "f.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"f.npz' cannot be read .* — write numbers with numpy"):
        FeatureFile("features", "f.npz")
    np.savez("f.npz", a=X)
    with pytest.raises(DataError, match=r"found `a` float32 .* needed are numbers, `id_test/features`"):
        FeatureFile("features", "f.npz")
    np.savez("f.npz", **{"id_test/features": np.array([{}], dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        FeatureFile("features", "f.npz")
    whole = (tmp_path / "f.npz").read_bytes()
    np.savez("f.npz", **{"id_test/features": X})
    whole = (tmp_path / "f.npz").read_bytes()
    (tmp_path / "f.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        FeatureFile("features", "f.npz")
