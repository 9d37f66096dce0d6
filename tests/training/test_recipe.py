from itertools import pairwise

import pytest
import torch

from openbench.errors import ConfigError
from openbench.training.augment.augmentations import CutMix, HorizontalFlip, JensenShannon, Mixup, RandomCrop
from openbench.training.augment.reading import RandomResizedCrop
from openbench.training.recipe import Recipe


def test_rate_follows_torch_cosine_scheduler_stepped_per_batch() -> None:
    recipe, per_epoch = Recipe(epochs=7, lr=0.3, final_lr=1e-6), 11
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=77, eta_min=1e-6)
    for step in range(77):
        assert recipe.learning_rate(step, per_epoch) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        scheduler.step()


def test_warmup_rises_linearly_to_the_highest_rate_then_the_cosine_begins() -> None:
    recipe = Recipe(epochs=10, lr=0.4, warmup_epochs=2)
    rates = [recipe.learning_rate(step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([0.04 * k for k in range(1, 11)])
    assert rates[10] == pytest.approx(0.4)
    assert all(a > b for a, b in pairwise(rates[10:]))


@pytest.mark.parametrize(("images", "steps"), [(128, 4), (129, 4), (130, 5), (31, 1), (2, 1), (1, 0)])
def test_a_left_over_image_makes_no_batch_of_its_own(images: int, steps: int) -> None:
    assert Recipe(batch_size=32).steps_per_epoch(images) == steps


def test_augmentations_from_a_yaml_list_make_the_same_recipe_as_a_tuple() -> None:
    assert Recipe(augment=[RandomCrop(4)]) == Recipe(augment=(RandomCrop(4),))


@pytest.mark.parametrize(
    "augment",
    [
        (HorizontalFlip(), RandomResizedCrop()),
        (Mixup(), HorizontalFlip()),
        (Mixup(), CutMix()),
        (Mixup(), JensenShannon()),
    ],
)
def test_a_reading_comes_first_and_one_mixing_or_consistency_last(augment: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="the first may be a Reading, the last a Mixing or a JensenShannon"):
        Recipe(augment=augment)
    recipe = Recipe(augment=(RandomResizedCrop(), HorizontalFlip(), Mixup()))
    assert (recipe.reading, recipe.augmentations, recipe.mixing) == (RandomResizedCrop(), (HorizontalFlip(),), Mixup())
