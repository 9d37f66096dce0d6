"""What methods that learn from outliers share: the outliers of a batch, and fine-tuning after cross-entropy."""

from dataclasses import dataclass, replace

from torch import Tensor

from openbench.errors import ConfigError
from openbench.training.base import Batch
from openbench.training.recipe import Recipe


def outliers_of(batch: Batch) -> Tensor:
    """Return the outliers (m, channels, h, w) of a batch.

    Raises:
        TypeError: there are none; the loop gives them to methods with `uses_outliers`.
    """
    if batch.outliers is None:
        raise TypeError("the loss needs Batch.outliers — found None — the method must declare uses_outliers = True")
    return batch.outliers


@dataclass(frozen=True)
class FineTuning:
    """A short training that goes on from the weights of a longer one.

    Args:
        epochs: 10.
        lr: highest learning rate, 0.001; the rest is as in the first training.
    """

    epochs: int = 10
    lr: float = 1e-3

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.epochs < 1 or not self.lr > 0:
            raise ConfigError(f"training.tuning — found {self} — allowed: epochs ≥ 1, lr > 0")

    def of(self, recipe: Recipe) -> Recipe:
        """Return a recipe with these epochs and this rate, without warm-up."""
        final = min(recipe.final_lr, self.lr)
        return replace(recipe, epochs=self.epochs, lr=self.lr, final_lr=final, warmup_epochs=0)
