"""The feature store: what is cached, what it costs, what is refused, and that damage never becomes a number."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from openbench.core.benchmark import Split
from openbench.core.request import Field, Perturb, Request
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.errors import CacheError, CheckpointError, FieldError
from openbench.features import _arrays as arrays
from openbench.features.store import FeatureStore
from openbench.storage.checksum import content_digest

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

FEATURES = Request(fields=frozenset({Field.FEATURES, Field.LABELS}))
LOGITS = Request()
GRAM = Request(fields=frozenset({Field.MAPS}), layers=("stage1", "stage3"), pool="gram")


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore(tmp_path / "cache", batch_size=8, progress=False)


def folder_of(store: FeatureStore, split: Split) -> Path:
    return store.root / toy_backbone().digest / split.digest


def test_columns_are_those_of_the_network(store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split()
    got = store.get(backbone, split, FEATURES)
    images = torch.cat(list(batches(split, backbone.preprocess, 5)))
    expected = backbone.outputs(images, Request())
    torch.testing.assert_close(got.features, expected.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(store.get(backbone, split, LOGITS).logits, expected.logits, rtol=1e-5, atol=1e-6)
    assert got.labels.tolist() == split.labels.tolist()
    assert set(got.columns) == {Field.FEATURES, Field.LABELS}


def test_a_second_method_costs_no_pass(store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split()
    store.get(backbone, split, LOGITS)
    assert backbone.passes == len(split)
    store.get(backbone, split, FEATURES)
    os.utime(folder_of(store, split) / "logits.npy", ns=(1, 1))  # as a copied cache has it
    store.get(toy_backbone(), split, LOGITS)
    assert backbone.passes == len(split)


def test_missing_columns_come_from_a_single_pass(store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split()
    got = store.get(backbone, split, GRAM)
    assert got.map("stage1").shape == (len(split), 16, 5)
    assert got.map("stage3").shape == (len(split), 64, 5)
    store.get(backbone, split, FEATURES)
    assert backbone.passes == len(split)


def test_each_perturbation_and_reduction_has_its_own_column(store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split()
    plain = store.get(backbone, split, LOGITS).logits
    near = store.get(backbone, split, Request(perturb=Perturb(1000.0, 0.01))).logits
    far = store.get(backbone, split, Request(perturb=Perturb(1000.0, 0.02))).logits
    images = torch.cat(list(batches(split, backbone.preprocess, 5)))
    expected = backbone.outputs(images, Request(perturb=Perturb(1000.0, 0.02))).logits
    assert not torch.equal(plain, near)
    # A gradient near zero may change sign with the batch size, and then one pixel moves the other way.
    torch.testing.assert_close(far, expected, rtol=1e-3, atol=1e-3)
    assert not torch.equal(near, far)
    mean = Request(fields=frozenset({Field.MAPS}), layers=("stage3",), pool="mean")
    features = store.get(backbone, split, FEATURES).features
    torch.testing.assert_close(store.get(backbone, split, mean).map("stage3"), features)


def test_other_weights_and_other_splits_have_other_folders(store: FeatureStore) -> None:
    one = store.get(toy_backbone(0), toy_split(seed=0), LOGITS).logits
    assert not torch.equal(one, store.get(toy_backbone(1), toy_split(seed=0), LOGITS).logits)
    assert not torch.equal(one, store.get(toy_backbone(0), toy_split(seed=1), LOGITS).logits)


DAMAGES = {
    "cut off": lambda content: content[:-100],
    "a byte": lambda content: content[:-7] + bytes([content[-7] ^ 1]) + content[-6:],
    "empty": lambda content: b"",
    "another array": lambda content: content.replace(b"(37, 3)", b"(3, 37)"),
    "sidecar": None,
}


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_column_is_reported_and_computed_again(store: FeatureStore, damage: str, unseen: bool) -> None:
    backbone, split = toy_backbone(), toy_split()
    expected = store.get(backbone, split, LOGITS).logits.clone()
    file = folder_of(store, split) / f"logits.{'json' if damage == 'sidecar' else 'npy'}"
    before, change = file.stat(), DAMAGES[damage] or (lambda content: b'{"shape": [37]}')
    file.write_bytes(change(file.read_bytes()))
    if unseen:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with logged() as said:
        again = store.get(backbone, split, LOGITS).logits
    torch.testing.assert_close(again, expected)
    assert backbone.passes == 2 * len(split)
    (line,) = said  # the undamaged column was kept
    assert re.match(r"cache: 'logits.* — computed again", line)


class Payload:
    """What unpickling would run."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return Path.touch, (self.target,)


def test_a_pickle_in_place_of_a_column_is_never_opened(tmp_path: Path) -> None:
    column = arrays.ColumnFile(tmp_path, "logits")
    column.array.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    column.sidecar.write_text(json.dumps({"digest": content_digest(column.array)}))
    assert "cannot be read" in str(column.fault(1))
    with pytest.raises(ValueError, match="allow_pickle"):
        column.open()
    assert not (tmp_path / "ran").exists()


def test_a_lock_that_cannot_be_opened_is_one_error(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CacheError, match="cannot write in"):
        arrays.cached(arrays.ColumnFile(tmp_path, "text"), 1, iter(()), {})


def test_a_store_tells_that_it_waits_for_another_job(store: FeatureStore) -> None:
    split = toy_split()
    folder = folder_of(store, split)
    folder.mkdir(parents=True)
    other = FileLock(folder / ".lock")
    other.acquire()

    with logged(lambda text: other.release()) as said:
        store.get(toy_backbone(), split, LOGITS)
    assert said == [f"features of {split.name}: another job computes them, waiting"]


def test_nothing_unfinished_stays_behind(store: FeatureStore) -> None:
    split = toy_split()
    store.get(toy_backbone(), split, GRAM)
    names = {path.name for path in folder_of(store, split).iterdir()}
    columns = {"logits", "features", "maps.stage1.gram", "maps.stage3.gram"}
    assert names == {".lock"} | {f"{c}.{s}" for c in columns for s in ("npy", "json")}


def test_an_untrained_backbone_is_refused(store: FeatureStore) -> None:
    with pytest.raises(CheckpointError, match="random weights"):
        store.get(toy_backbone().initialise(1), toy_split(), LOGITS)
    assert not store.root.exists()


@pytest.mark.parametrize(
    "request_",
    [Request(fields=frozenset({Field.MAPS})), Request(layers=("stage1",), pool="mean")],
    ids=["field", "layer"],
)
def test_maps_need_the_field_and_the_layers(store: FeatureStore, request_: Request) -> None:
    with pytest.raises(FieldError, match="maps need both"):
        store.get(toy_backbone(), toy_split(), request_)


STEP = Perturb(1.0, 0.5, "flat", 0.2)
BESIDE = Request(fields=frozenset({Field.FEATURES, Field.PERTURBED}), second_pass=STEP)


def test_both_are_those_of_the_network(store):
    backbone, split = toy_backbone(), toy_split()
    got = store.get(backbone, split, BESIDE)
    images = torch.cat(list(batches(split, backbone.preprocess, 5)))
    for found, step in ((got.features, None), (got.perturbed, STEP)):
        expected = backbone.outputs(images, Request(perturb=step)).features
        # A gradient near the limit of the share may be in or out with another batch size, and moves one element.
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    assert (got.features - got.perturbed).abs().max() > 0.05
    assert set(got.columns) == {Field.FEATURES, Field.PERTURBED}


def test_the_plain_pass_is_made_once_and_the_second_once_for_all_methods(store):
    backbone, split = toy_backbone(), toy_split()
    store.get(backbone, split, Request())
    assert backbone.passes == len(split)
    names = [column.name for column in store.missing(backbone, split, BESIDE)]
    assert names == [f"features.{digest(STEP)}", f"logits.{digest(STEP)}"]
    store.get(backbone, split, BESIDE)
    assert backbone.passes == 3 * len(split), "one pass forth and back, one forth"
    store.get(backbone, split, Request(fields=frozenset({Field.LOGITS, Field.PERTURBED}), second_pass=STEP))
    store.get(backbone, split, Request(fields=frozenset({Field.PERTURBED}), second_pass=STEP))
    store.get(backbone, split, Request(perturb=STEP))
    assert backbone.passes == 3 * len(split)


@pytest.mark.parametrize("wrong", [Request(second_pass=STEP), Request(fields=frozenset({Field.PERTURBED}))])
def test_field_and_step_belong_together(store, wrong):
    with pytest.raises(FieldError, match="need both"):
        store.get(toy_backbone(), toy_split(), wrong)
