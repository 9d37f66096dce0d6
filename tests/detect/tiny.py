"""A network, images and detectors that are small enough for a test, and real enough to classify."""

from functools import cache

import numpy as np
import torch
from torch import nn

from openbench.core.preprocess import Preprocess
from openbench.detect.detector import Detector

CLASSES = ("red", "green", "blue")
PREPROCESS = Preprocess(resize=8, crop=8, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Tiny(nn.Module):
    """One convolution, and the nearest class mean of its averaged maps as a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU())
        self.head = nn.Linear(12, len(CLASSES))

    def forward(self, x):
        return self.head(self.layer1(x).mean(dim=(2, 3)))


@cache
def network() -> Tiny:
    torch.manual_seed(3)
    made = Tiny().eval()
    pixels, labels = images(90, 9)
    with torch.no_grad():
        x = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        features = made.layer1(x).mean(dim=(2, 3))
        means = torch.stack([features[torch.from_numpy(labels == y)].mean(dim=0) for y in range(3)])
        made.head.weight.copy_(8 * means)
        made.head.bias.copy_(-4 * means.square().sum(dim=1))
    return made


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with one colour stronger, (n, 8, 8, 3) uint8, and which."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    pixels = rng.integers(0, 120, (count, 8, 8, 3))
    pixels[np.arange(count), :, :, labels] += rng.integers(60, 130, (count, 1, 1))
    return pixels.astype(np.uint8), labels


def detector(method="knn", **rest) -> Detector:
    """Fitted on 120 images."""
    chosen = Detector(network(), method, preprocess=PREPROCESS, classes=CLASSES, **rest)
    return chosen.fit(images(120, 0))


@cache
def calibrated(method="knn", alpha=0.1) -> Detector:
    """Also calibrated, on 199 images."""
    return detector(method).calibrate(images(199, 1), alpha=alpha)
