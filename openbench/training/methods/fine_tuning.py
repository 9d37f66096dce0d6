"""Fine-tuning: a short training that starts from the weights of plain cross-entropy."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from openbench.config.constraints import Checked, Count, Positive
from openbench.training.base import TrainingMethod
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.recipe import Recipe


@dataclass(frozen=True)
class FineTuning(Checked):
    """The settings in which a fine-tuning differs from the first training.

    Args:
        epochs: 10.
        lr: highest learning rate, 0.001; the rest is as in the first training.
    """

    epochs: Count = 10
    lr: Positive = 1e-3

    def of(self, recipe: Recipe) -> Recipe:
        """Return a recipe with these epochs and this rate, without warm-up."""
        final = min(recipe.final_lr, self.lr)
        return replace(recipe, epochs=self.epochs, lr=self.lr, final_lr=final, warmup_epochs=0)


@dataclass(frozen=True)
class FineTuned(TrainingMethod):
    """A method that starts from the weights of cross-entropy.

    Attributes:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
    """

    tuning: FineTuning = field(default_factory=FineTuning)

    fine_tunes: ClassVar[bool] = True

    @property
    def initial(self) -> TrainingMethod:
        """Cross-entropy with the same recipe."""
        return CrossEntropy(self.recipe)

    @property
    def schedule(self) -> Recipe:
        """The recipe of the fine-tuning."""
        return self.tuning.of(self.recipe)
