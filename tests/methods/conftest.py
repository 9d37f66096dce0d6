"""A small network, for the tests of what runs one."""

import pytest

from openbench.backbones.network import NetworkBackbone

from .problems import small_network


@pytest.fixture(scope="module")
def network() -> NetworkBackbone:
    return small_network()
