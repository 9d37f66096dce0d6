"""A running average of a network's weights, and how it takes their place for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """After step t the average is d_t·average + (1 − d_t)·weights, d_t = min(d, (1 + t)/(10 + t)).

    d_t is smaller in the first steps, so that the average forgets the random weights that training starts from. It
    covers all parameters, and the running mean and variance of batch norm, which belong to the weights they were taken
    with. Other buffers (counters, queues, prototypes) are not averaged.

    Args:
        model: what is averaged; its present weights are the average before the first step.
        decay: d in (0, 1).

    Reference:
        Polyak, Juditsky: Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30(4), 1992; the
        warm-up of d is that of TensorFlow's ExponentialMovingAverage with `num_updates`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.step, self._model = decay, 0, model
        self._mean = {name: value.detach().clone() for name, value in _averaged(model).items()}

    def update(self) -> None:
        """Take in the weights after a step."""
        self.step += 1
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        # Looked up each time: DistributedDataParallel replaces buffers by other tensors.
        means, values = list(self._mean.values()), [value.detach() for value in _averaged(self._model).values()]
        get_ema_multi_avg_fn(decay)(means, values, self.step)  # type: ignore[no-untyped-call]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the network the averaged weights while the body runs."""
        live = _averaged(self._model)
        own = {name: value.detach().clone() for name, value in live.items()}
        _copy(self._mean, live)
        try:
            yield
        finally:
            _copy(own, live)

    def state(self) -> dict[str, object]:
        """Return what `restore` takes."""
        return {"step": self.step, "mean": self._mean}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go back to a state."""
        step, mean = state["step"], state["mean"]
        if not isinstance(step, int) or not isinstance(mean, Mapping):
            raise TypeError("Average.restore: `step` and `mean` expected")
        self.step = step
        _copy(mean, self._mean)


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are averaged, by name; a shared one comes once."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for path, part in model.named_modules():
        if isinstance(part, _BatchNorm):
            found |= {f"{path}.{name}": value for name, value in part.named_buffers() if value.is_floating_point()}
    return found


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in target.items():
            value.copy_(source[name])
