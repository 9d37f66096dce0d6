"""A module of the user's own that computes what a backbone of openbench's does: it is that backbone."""

import copy

import pytest
import torch
from torch import nn

from openbench.api.models import shipped
from openbench.api.models.computation import computation, same_for_any_number
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.core.preprocess import Preprocess
from openbench.public import TARGET

from .own_models import BOTH, CLASSES, SIDE, Renamed, Small, adopted, images


class Clipped(Renamed):
    """Computes the same on all but extreme images."""

    def forward(self, x):
        return super().forward(x).clamp(max=1e9)


class Branching(Renamed):
    """Computes the same on all but extreme images, by a condition."""

    def forward(self, x):
        return super().forward(x) if x.abs().max() < 1e9 else super().forward(-x)


class Asked(nn.Module):
    """Computes the same unless the pixels answer a question otherwise than those of the first images."""

    def __init__(self, like, question):
        super().__init__()
        self.like, self.question = like, question

    def forward(self, x):
        return self.like(-x if self.question(x) else x)


QUESTIONS = {
    "numpy": lambda x: x.numpy().max() > 1e9,
    "array": lambda x: abs(x.__array__()).max() > 1e9,
    "list": lambda x: max(x.flatten().tolist()) > 1e9,
    "item": lambda x: x.max().item() > 1e9,
    "text": lambda x: "1e" in repr(x),
    "positions": lambda x: len(torch.nonzero(x > 1e9)),
    "mask": lambda x: x[x > 1e9].numel(),
    "values": lambda x: len(torch.unique(x)) < 9,
    "branch": lambda x: torch.cond(x.max() > 1e9, lambda x: -x, lambda x: x.clone(), (x,)) is None,
}


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A network whose weights openbench ships, as far as it knows."""
    torch.manual_seed(0)
    model = CifarResNet(SPECS["resnet8"], CLASSES)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    preprocess = {TARGET: "openbench.core.preprocess.Preprocess", "resize": SIDE, "crop": SIDE}
    preprocess |= {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    about = {"name": "released", "model": "resnet8", "weights": str(tmp_path / "weights.pt"), "num_classes": CLASSES}
    node = {TARGET: "openbench.backbones.cifar.resnet", **about, "preprocess": preprocess}
    monkeypatch.setattr(shipped, "_nodes", lambda: (("released", node),))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", [copy.deepcopy, Renamed])
def test_a_network_of_any_class_that_computes_what_openbench_ships_is_that(released, kind):
    found = adopted(kind(released))
    assert (found.backbone.name, found.node["weights"][-10:]) == ("released", "weights.pt")
    assert found.notes[-1] == "this is openbench's released"
    torch.testing.assert_close(found.backbone.outputs(images(), BOTH).logits, released.eval()(images()))


def test_weights_that_a_file_keeps_in_16_bits_are_those_of_the_network(released, tmp_path):
    torch.save(released.half().state_dict(), tmp_path / "weights.pt")
    assert adopted(released.float()).backbone.name == "released"


@pytest.mark.slow
def test_a_network_that_computes_anything_else_is_not_what_openbench_ships(released):
    other = copy.deepcopy(released)
    other.fc.bias.data[0] += 1
    darker = Preprocess(resize=SIDE, crop=SIDE, mean=(0.4, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    swapped = Renamed(copy.deepcopy(released))
    swapped.parts[0][0].conv1, swapped.parts[0][0].conv2 = swapped.parts[0][0].conv2, swapped.parts[0][0].conv1
    for model in (Clipped(released), Branching(released), Renamed(other), swapped):
        assert adopted(model).backbone.name == type(model).__name__.lower()
    assert adopted(Renamed(released), darker).backbone.name == "renamed"
    assert adopted(Renamed(released), name="mine").backbone.name == "mine"


class Gated(torch.nn.Module):
    """Maps of 8 channels, 8 high and wide, times or plus one number for each of 8."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.maps, self.way = torch.nn.Conv2d(3, 8, 1), way

    def forward(self, x):
        maps = self.maps(x)
        gate = maps.mean(dim=(2, 3))
        return self.way(maps, gate).mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda m, g: m * g.view(-1, 8, 1, 1), lambda m, g: m * g.view(-1, 1, 8, 1)),  # which axis is repeated
        (lambda m, g: m + g.view(-1, 8, 1, 1), lambda m, g: m + g.view(-1, 1, 1, 8)),
        (
            lambda m, g: m * g.softmax(1).view(-1, 8, 1, 1),
            lambda m, g: m * g.view(-1, 1, 8).softmax(1).view(-1, 8, 1, 1),
        ),
    ],
)
def test_axes_of_one_tell_computations_apart(one, other):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    first, second, again = Gated(one).eval(), Gated(other).eval(), Gated(lambda m, g: one(m, g[..., None].flatten(1)))
    assert not torch.allclose(first(x), second(x))
    assert computation(first, x) != computation(second, x)
    assert computation(first, x) == computation(again, x) is not None


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_network_that_asks_for_values_cannot_be_followed(question):
    like = CifarResNet(SPECS["resnet8"], CLASSES)
    assert computation(Asked(like, lambda x: len(x) == 0), images()) is not None
    assert computation(Asked(like, question), images()) is None


NUMBERS = {
    "more": lambda x: x.shape[0] > 100,
    "after a layer": lambda x: nn.functional.conv2d(x, torch.ones(1, 3, 1, 1)).shape[0] == 256,
    "number of pixels": lambda x: x.numel() > 1e6,
    "bytes": lambda x: x.nbytes > 1e7,
    "shape": lambda x: tuple(x.shape) == (256, 3, SIDE, SIDE),
    "lookup": lambda x: {256: True}.get(x.shape[0]),
    "length": lambda x: len(x) > 100,
    "loop": lambda x: list(x)[100:],
    "parts": lambda x: x.split(64)[1:],
}


@pytest.mark.parametrize("question", NUMBERS.values(), ids=NUMBERS)
def test_a_network_that_asks_for_the_number_of_images_may_be_another_for_another_number(question):
    assert not same_for_any_number(Asked(Small(), question), images())


@pytest.mark.slow
@pytest.mark.parametrize("question", [lambda x: x.shape[0] > 100, lambda x: x.shape[0] == 1], ids=["many", "one"])
def test_a_network_that_is_another_for_other_numbers_of_images_is_not_what_openbench_ships(released, question):
    assert adopted(Asked(released, question)).backbone.name == "asked"


class Collecting(Asked):
    """Keeps what it is given, as some do to look at it later."""

    def forward(self, x):
        self.given = [*getattr(self, "given", ()), x]
        return super().forward(x)


@pytest.mark.slow
@pytest.mark.parametrize("question", [lambda x: x.shape[0] > 100, lambda x: True], ids=["by number", "always"])
def test_what_a_network_keeps_of_its_images_is_nothing_of_the_tracers(released, question):
    found = adopted(Collecting(released, question)).backbone
    assert found.name == "collecting"
    for kept in copy.deepcopy(found.network).given:
        torch.testing.assert_close(kept, found.network.given[0])


def test_a_shape_may_be_made_with_the_number_of_images():
    def reshaped(x):
        return x.view(x.size(0), -1).reshape(x.shape[0], 3, -1).flatten(1).view(-1, 3 * SIDE * SIDE) is None

    assert same_for_any_number(Asked(Small(), reshaped), images())


def test_items_that_are_taken_by_number_can_be_followed():
    like = CifarResNet(SPECS["resnet8"], CLASSES)
    assert computation(Asked(like, lambda x: x[:, torch.tensor([2, 0])] is None), images()) is not None


def test_an_axis_of_one_is_not_another_axis():
    class Softmax(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)).softmax(1)

    class Ones(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)).unsqueeze(1).softmax(1).squeeze(1)

    assert computation(Softmax(), images()) != computation(Ones(), images())


@pytest.mark.parametrize("kind", [copy.deepcopy, Renamed])
def test_a_network_with_hooks_on_gradients_is_not_what_openbench_ships(released, kind):
    model = kind(copy.deepcopy(released))
    model.register_full_backward_hook(lambda module, given, made: None)
    assert adopted(model).backbone.name == type(model).__name__.lower()
