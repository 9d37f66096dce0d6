"""A table's columns as features, and what every backbone states unless it says otherwise."""

import pytest
import torch

from openbench.backbones.rows import Identity
from openbench.core.preprocess import Preprocess
from openbench.core.request import Perturb, Request
from openbench.errors import ConfigError


def test_rows_come_out_as_features_with_one_logit_of_zero():
    backbone, rows = Identity("identity", Preprocess(8, 8), 3), torch.arange(12.0).view(4, 3)
    found = backbone.outputs(rows, Request())
    assert torch.equal(found.features, rows)
    assert torch.equal(found.logits, torch.zeros(4, 1))
    assert torch.equal(backbone.head(rows), torch.zeros(4, 1))
    assert backbone.passes == 4
    backbone.outputs(rows[:3], Request())
    assert backbone.passes == 7


@pytest.mark.parametrize("request_", [Request(layers=("stage1",)), Request(perturb=Perturb(1.0, 0.1))], ids=str)
def test_maps_and_gradients_are_refused(request_):
    with pytest.raises(ConfigError, match="neither maps nor gradients"):
        Identity("identity", Preprocess(8, 8), 3).outputs(torch.zeros(4, 3), request_)
