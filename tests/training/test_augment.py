import numpy as np
import pytest
import torch

from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(1, 256, (64, 9, 7, 3), generator=seeded(9)).to(torch.uint8)


def padded(image: np.ndarray, p: int) -> np.ndarray:
    return np.pad(image, ((p, p), (p, p), (0, 0)))


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_cuts_the_windows_that_numpy_cuts_one_by_one(images: torch.Tensor, padding: int) -> None:
    cropped = RandomCrop(padding)(images, seeded(3)).numpy()
    top, left = torch.randint(0, 2 * padding + 1, (2, len(images)), generator=seeded(3)).tolist()
    for i, image in enumerate(images.numpy()):
        window = padded(image, padding)[top[i] : top[i] + 9, left[i] : left[i] + 7]
        np.testing.assert_array_equal(cropped[i], window)


def test_every_offset_of_the_crop_is_equally_likely() -> None:
    image = torch.arange(1, 26).view(1, 5, 5, 1).to(torch.uint8)
    crops = RandomCrop(1)(image.repeat(9000, 1, 1, 1), seeded()).numpy()
    windows = {padded(image[0].numpy(), 1)[t : t + 5, u : u + 5].tobytes(): 0 for t in range(3) for u in range(3)}
    for crop in crops:
        windows[crop.tobytes()] += 1
    # Binomial(9000, 1/9): standard deviation 29.8; five of them.
    assert all(abs(count - 1000) < 150 for count in windows.values())


def test_flip_mirrors_left_to_right_about_half_of_the_images(images: torch.Tensor) -> None:
    many = images.repeat(40, 1, 1, 1)
    flipped = HorizontalFlip()(many, seeded()).numpy()
    mirrored = 0
    for before, after in zip(many.numpy(), flipped, strict=True):
        is_mirror = np.array_equal(after, before[:, ::-1])
        assert is_mirror or np.array_equal(after, before)
        mirrored += is_mirror
    assert abs(mirrored / len(many) - 0.5) < 5 * 0.5 / len(many) ** 0.5


@pytest.mark.parametrize(("probability", "mirrored"), [(0.0, False), (1.0, True)])
def test_flip_at_the_ends_of_its_range(images: torch.Tensor, probability: float, mirrored: bool) -> None:
    expected = images.flip(2) if mirrored else images
    assert torch.equal(HorizontalFlip(probability)(images, seeded()), expected)
