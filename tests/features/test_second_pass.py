"""Features of a perturbed input, read in a second pass with those of the input itself."""

from pathlib import Path

import pytest
import torch

from openbench.core.request import Field, Perturb, Request
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.errors import FieldError
from openbench.features.store import FeatureStore

from .feature_toys import toy_backbone, toy_split

STEP = Perturb(1.0, 0.5, "flat", 0.2)
BESIDE = Request(fields=frozenset({Field.FEATURES, Field.PERTURBED}), second_pass=STEP)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore(tmp_path / "cache", batch_size=8, progress=False)


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


def test_names_of_columns_from_before_shares_existed_are_kept():
    assert digest(Perturb()) == "aedf198f38af855a"
    assert digest(Perturb(1, 0.0028, "peak")) == "752fc247e2ac5238"
    assert digest(Perturb(share=0.5)) != digest(Perturb())
