import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from openbench.data.build import build_benchmark
from openbench.data.checking.verify import refuse_same_images
from openbench.data.manifests import load_manifest
from openbench.data.sources.embedded import PhotoPatches, SklearnDigits
from openbench.errors import LeakageError

DIGIT_SPLITS = ("train", "val", "test", "six_seven", "eight", "nine")


def pixels(source, keys):
    found = source.find(source.places([])[0], keys)
    assert found.present.all()
    return np.stack([found.items[i] for i in range(len(keys))])


def test_every_digit_belongs_to_one_split_and_its_class_is_its_target():
    targets = load_digits().target
    lists = [load_manifest(f"digits/{name}") for name in DIGIT_SPLITS]
    rows = {int(key.split("/")[-1]): name for part in lists for key, name in zip(part.keys, part.classes, strict=True)}
    assert sum(map(len, lists)) == len(rows) == len(targets)
    assert all(str(targets[row]) == name for row, name in rows.items())


def test_a_digit_in_two_lists_is_refused(composed, manifest):
    node = composed("+benchmark=digits")
    refuse_same_images(build_benchmark(node))
    key, name = (of[0] for of in (load_manifest("digits/test").keys, load_manifest("digits/test").classes))
    node["id"]["val"]["manifest"] = manifest(key, **{name: [0]})
    with pytest.raises(LeakageError, match=f"id_val digits and id_test digits have 1 image in common, e.g. '{key}'"):
        refuse_same_images(build_benchmark(node))


def test_digits_are_scikit_learns_spread_over_eight_bits():
    keys = load_manifest("digits/test").keys
    rows = [int(key.split("/")[-1]) for key in keys]
    found = pixels(SklearnDigits(), keys)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(np.rint(found / 255.0 * 16.0), load_digits().images[rows])


def test_patches_are_averages_of_the_photograph_that_the_class_names():
    photo = np.asarray(Image.fromarray(load_sample_image("flower.jpg")).convert("L"), np.float64)
    # Mean of every 4×4 block at every offset, by cumulative sums.
    sums = np.pad(photo.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    means = (sums[4:, 4:] - sums[:-4, 4:] - sums[4:, :-4] + sums[:-4, :-4]) / 16
    grids = np.lib.stride_tricks.sliding_window_view(np.rint(means), (29, 29))[:, :, ::4, ::4]
    # Rounding of a half may go either way.
    assert np.abs(grids - PhotoPatches().image("flower", 3)).max(axis=(2, 3)).min() <= 1
