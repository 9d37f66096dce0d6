"""Wrappers, devices and precisions of the user's model."""

import copy

import pytest
import torch
from torch import nn

from .own_models import BOTH, Small, images, wrapped


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compiled"])
def test_wrappers_are_taken_off(wrap):
    model = Small()
    found = wrapped(wrap(model)).backbone
    assert (found.name, found.digest) == ("small", wrapped(model).backbone.digest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_run_as_they_are(dtype):
    model = Small().to(dtype)
    found = wrapped(model).backbone
    outputs = found.outputs(images(), BOTH)
    assert {outputs.logits.dtype, outputs.features.dtype, found.head.weight.dtype} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model.eval()(images().to(dtype)).float(), rtol=0.02, atol=0.02)
    assert found.digest != wrapped(copy.deepcopy(model).float()).backbone.digest
