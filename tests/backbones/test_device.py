"""Device names, and the check that torch and torchvision belong together."""

import pytest
import torch

from openbench import _compat
from openbench.backbones.base import as_input, resolve_device
from openbench.errors import ConfigError


def test_unknown_device_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"device 'cudaa' is not on this machine .*; did you mean 'cuda'\?"):
        resolve_device("cudaa")


def test_absent_cuda_device_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda:99' .* \d+ CUDA devices and \d of Metal\) — "):
        resolve_device("cuda:99")


def test_a_gpu_whose_driver_torch_cannot_use_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")


def test_absent_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(ConfigError, match="pip install no_such_package"):
        _compat.library("no_such_package")


def test_images_on_a_cpu_are_laid_out_channels_last() -> None:
    images = torch.arange(24).view(1, 2, 3, 4)
    found = as_input(images, torch.device("cpu"))
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, images.float())
