"""What the operating system refuses is told in words; errors of ours keep their traceback."""

import errno
import os

import numpy as np
import pytest
import torch

from openbench.cli.process import message_of


def raised(act) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever the library raises is what is told
        act()
    return caught.value


TOO_MUCH = {
    "python": lambda: bytearray(1 << 60),
    "numpy": lambda: np.empty(1 << 58),
    "torch": lambda: torch.empty(1 << 56),
}


@pytest.mark.parametrize("library", TOO_MUCH)
def test_a_lack_of_memory_names_what_to_lower(library):
    told = message_of(raised(TOO_MUCH[library]))
    assert told is not None
    for key in ("not enough memory", "runtime.batch_size", "runtime.score_batch", "training.recipe.batch_size"):
        assert key in str(told)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_what_a_disk_refuses_names_the_file(number):
    told = message_of(OSError(number, os.strerror(number), "/some/file"))
    assert told is not None
    assert "'/some/file'" in str(told)
    assert os.strerror(number) in str(told)


@pytest.mark.parametrize("error", [RuntimeError("shape"), FileNotFoundError(errno.ENOENT, "x", "y")])
def test_an_error_of_ours_is_none_of_the_systems(error):
    assert message_of(error) is None
