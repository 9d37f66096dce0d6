"""Transforms of torchvision, timm and open_clip as openbench's Preprocess: the same pixels, or run as they are."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from sklearn.datasets import load_sample_images

from openbench import _compat
from openbench.api.models.preprocess import prepared
from openbench.core.benchmark import Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Role
from openbench.data.loading import batches
from openbench.data.sources.base import ArrayItems
from openbench.digest import digest
from openbench.errors import ConfigError, DataError

transforms = _compat.library("torchvision.transforms")
v2 = _compat.library("torchvision.transforms.v2")

BENCHMARK = Preprocess(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
NORMALISE = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
FLOATS = v2.ToDtype(torch.float32, scale=True)


def timm_transform():
    data, timm = _compat.library("timm.data"), _compat.library("timm")
    settings = timm.get_pretrained_cfg("mobilenetv2_100").to_dict()
    return data.create_transform(**data.resolve_data_config(pretrained_cfg=settings))


def photos():
    """Windows of real photographs, smaller and larger than the crops, upright and not."""
    china, flower = load_sample_images().images
    return [china[:40, :70], china[100:350, 20:300], flower[:299, :224], flower, china[:32, :32], flower[:64, :64]]


def of_pixels(image, preprocess):
    """One image as a network gets it from a benchmark."""
    items = ArrayItems(np.ascontiguousarray(image)[None], np.arange(1))
    split = Split("photo", Role.FAR, items, np.full(1, -1), ["a"], (), "d", 1)
    return next(batches(split, preprocess, 1))[0]


class Normalize:
    """Somebody's own step, called like torchvision's."""

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __call__(self, image):
        return image - 0.5


def _convert_to_rgb(image):
    """What a chain of open_clip 2.30 has in place of a class."""
    return image.convert("RGB")


EXPRESSED = {
    "early open_clip": lambda: transforms.Compose(
        [transforms.Resize(24), transforms.CenterCrop(24), _convert_to_rgb, transforms.ToTensor(), NORMALISE]
    ),
    "preset": lambda: _compat.library("torchvision").models.ResNet18_Weights.DEFAULT.transforms(),
    "timm": timm_transform,
    "open_clip": lambda: _compat.library("open_clip").image_transform(224, is_train=False),
    "v1": lambda: transforms.Compose(
        [transforms.Resize(48), transforms.CenterCrop(40), transforms.ToTensor(), NORMALISE]
    ),
    "both_sides": lambda: transforms.Compose([transforms.Resize((30, 30)), transforms.ToTensor()]),
    "nested": lambda: v2.Compose([transforms.Resize([36]), v2.CenterCrop([36, 36]), transforms.ToTensor()]),
}
AS_THEY_ARE = {
    "v2_scales_by_a_product": lambda: v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), FLOATS]),
    "resized_as_a_tensor": lambda: transforms.Compose(
        [transforms.ToTensor(), transforms.Resize(40), transforms.CenterCrop(32), NORMALISE]
    ),
    "cropped_alone": lambda: transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor()]),
    "a_step_that_only_has_a_known_name": lambda: transforms.Compose(
        [transforms.Resize(24), transforms.CenterCrop(24), transforms.ToTensor(), Normalize()]
    ),
    "a_function": lambda: lambda image: transforms.functional.to_tensor(image.resize((20, 20))) * 2 - 1,
}


@pytest.mark.parametrize("name", EXPRESSED)
def test_a_chain_of_known_steps_becomes_a_preprocess_of_the_same_pixels(name):
    transform = EXPRESSED[name]()
    found = prepared(transform, BENCHMARK)
    assert type(found.preprocess) is Preprocess
    for image in photos():
        assert torch.equal(of_pixels(image, found.preprocess), transform(Pillow.fromarray(image)))


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_another_transform_is_run_as_it_is(name):
    transform = AS_THEY_ARE[name]()
    found = prepared(transform, BENCHMARK)
    assert isinstance(found.preprocess, OwnPreprocess)
    assert "preprocess is run as it is" in found.notes[0]
    for image in photos():
        expected = transform(Pillow.fromarray(image))
        assert torch.equal(of_pixels(image, found.preprocess), expected)
        assert found.preprocess.crop == expected.shape[1]


def test_constants_of_timm_are_those_of_its_settings():
    assert prepared(timm_transform(), BENCHMARK).preprocess.mean == (0.485, 0.456, 0.406)


def test_a_transform_without_resizing_leaves_the_size_to_the_benchmark():
    image = load_sample_images().images[0][:80, :100]
    small = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32)])(Pillow.fromarray(image))
    for last in (transforms.ToTensor(), v2.Compose([v2.ToImage(), FLOATS])):
        transform = transforms.Compose([last, NORMALISE])
        found = prepared(transform, BENCHMARK)
        assert "resize 32 and crop 32 are the benchmark's: preprocess has neither" in found.notes
        assert torch.equal(of_pixels(image, found.preprocess), transform(small))


def test_mean_and_std_of_what_is_run_as_it_is_are_measured():
    normalise = v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.5])
    whole = v2.Compose([v2.Resize(8), v2.CenterCrop(8), v2.ToImage(), FLOATS, normalise])
    found = prepared(whole, BENCHMARK).preprocess
    assert found.mean == pytest.approx((0.4, 0.5, 0.6), abs=1e-5)
    assert found.std == pytest.approx((0.2, 0.25, 0.5), abs=1e-5)


def test_grey_networks_are_given_grey_images():
    whole = transforms.Compose(
        [
            transforms.Resize(28),
            transforms.CenterCrop(28),
            transforms.ToTensor(),
            transforms.Normalize((0.1307,), (0.3081,)),
        ]
    )
    found = prepared(whole, BENCHMARK).preprocess
    image = load_sample_images().images[0][:90, :90]
    assert found.channels == 1
    assert torch.equal(of_pixels(image, found), whole(Pillow.fromarray(image).convert("L")))


def test_equal_transforms_have_equal_digests_and_others_do_not():
    def of(shift):
        return transforms.Compose(
            [transforms.Resize(8), transforms.CenterCrop(8), transforms.PILToTensor(), lambda x: x / 255 - shift]
        )

    same, again, other = (digest(prepared(of(shift), BENCHMARK).preprocess) for shift in (0.25, 0.25, 0.5))
    assert same == again != other


def test_what_is_kept_in_a_record_is_plain():
    own = prepared(lambda image: transforms.functional.to_tensor(image.resize((4, 4))), BENCHMARK).preprocess
    kept = asdict(own)
    assert json.loads(json.dumps(kept)) == kept | {"mean": [*own.mean], "std": [*own.std]}
    assert "image.resize((4, 4))" in kept["own"]["text"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda image: 1 / 0, "preprocess fails on a RGB image of 96×96 pixels: ZeroDivisionError"),
        (transforms.Resize(8), "returns a Image, not a tensor"),
        (Preprocess, "preprocess is <class .*Preprocess'>, which is not a transform — pass the torchvision transform"),
        ("cifar", "preprocess is 'cifar', which is not a transform"),
    ],
)
def test_what_cannot_prepare_images_is_refused(given, says):
    with pytest.raises((ConfigError, DataError), match=says):
        prepared(given, BENCHMARK)


def test_tensors_of_several_sizes_are_refused_with_the_way_out():
    whole = prepared(lambda im: transforms.functional.to_tensor(im if im.width == 20 else im.resize((9, 9))), BENCHMARK)
    images = [np.zeros((20, 20, 3), np.uint8), np.zeros((30, 30, 3), np.uint8)]

    class Items(list):
        pass

    split = Split("two", Role.FAR, Items(images), np.full(2, -1), ["a", "b"], (), "d", 2)
    with pytest.raises(DataError, match=r"tensors of 2 shapes.*add Resize and CenterCrop"):
        list(batches(split, whole.preprocess, 2))


def test_the_benchmarks_own_and_openbenchs_are_taken_as_they_are():
    own = Preprocess(resize=9, crop=9)
    assert prepared("benchmark", BENCHMARK).preprocess == BENCHMARK
    assert prepared(own, BENCHMARK).preprocess is own
