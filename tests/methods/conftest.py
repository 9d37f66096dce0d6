"""A small network, for the tests of what runs one."""

import pytest
import torch

from openbench.backbones.network import NetworkBackbone

from .problems import small_network


@pytest.fixture(scope="module")
def network() -> NetworkBackbone:
    return small_network()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
