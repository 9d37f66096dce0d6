"""Batches that are halved where they do not fit into memory, so that a long pass goes on."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.say import Say, silent

# What torch, cuDNN, cuBLAS and oneDNN say, each in an error of its own or in a plain RuntimeError.
_LACKING = re.compile(
    r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED|could not create a (primitive|memory object)",
    re.IGNORECASE,
)
T = TypeVar("T")


@dataclass
class Portions:
    """How many images a network is given at a time, once it is known that a whole batch is too many.

    Args:
        say: receives a line whenever that number gets smaller.
        said: these lines.
    """

    say: Say = silent
    said: list[str] = field(default_factory=list)
    _most: int | None = None

    def of(self, images: Tensor, backbone: Backbone, act: Callable[[Tensor], T]) -> Iterator[T]:
        """Yield what `act` makes of consecutive portions of a batch: of the whole where it fits into memory.

        Where halves are whole, as of the default batch size, the portions are the batches of a run with a smaller batch
        size, and their rows those of it; elsewhere the last one of each batch is smaller.

        Args:
            images: (n, 3, h, w), or what the backbone takes.
            backbone: that passes them; a portion that failed does not count as passed.
            act: is called again, with half as many images, where memory does not suffice.

        Raises:
            RuntimeError, MemoryError: a single image does not fit.
        """
        at = 0
        while at < len(images):
            size, passed = min(self._most or len(images), len(images) - at), backbone.passes
            try:
                made = act(images[at : at + size])
            except (RuntimeError, MemoryError) as error:
                if size == 1 or not lacks_memory(error):
                    raise
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            else:
                yield made
                at += size
                continue
            # Here the error is gone, and with it what the failed pass held.
            backbone.passes = passed
            self._halve(size, backbone, reason)

    def _halve(self, size: int, backbone: Backbone, reason: str) -> None:
        self._most = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        line = (
            f"WARNING: a batch of {size} does not fit into memory on {backbone.device} ({reason}) — it goes on with "
            f"{self._most} at a time; runtime.batch_size={self._most} begins with that"
        )
        self.said.append(line)
        self.say(line)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that memory does not suffice."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _LACKING.search(str(error)) is not None
    )
