"""Small networks and a benchmark of a few images, for the tests of the user's models."""

import copy

import numpy as np
import torch
from torch import nn

from openbench.api.arguments import head_of
from openbench.api.models.wrap import ImageTask, ModelOptions, wrap
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request, Role
from openbench.data.sources.base import ArrayItems

SIDE, CLASSES = 16, 5
PLAIN = Preprocess(resize=SIDE, crop=SIDE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
# Overrides and preprocess for evaluations of the digits on few images.
DIGITS = [f"~benchmark.csid.{name}" for name in ("noisy", "blurred", "faded", "shifted")]
DIGITS += ["~benchmark.near.nine", "~benchmark.far.patches", "metrics.families=[ranking]"]
DIGITS += [f"benchmark.{part}.limit=30" for part in ("id.val", "id.test", "ood_val", "near.eight", "far.noise")]
DIGITS += ["benchmark.id.train.limit=60"]
DIGITS_PREPROCESS = Preprocess(resize=16, crop=16, mean=(0.3, 0.3, 0.3), std=(0.3, 0.3, 0.3))
BOTH = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))


def benchmark(classes=CLASSES, preprocess=PLAIN):
    pixels = np.random.default_rng(0).integers(0, 256, (20, SIDE, SIDE, 3), dtype=np.uint8)
    items = ArrayItems(pixels, np.arange(20))
    names = tuple(f"c{i}" for i in range(classes))
    split = Split("toy", Role.ID_TEST, items, np.arange(20) % classes, [str(i) for i in range(20)], names, "d", 20)
    return ImageTask(split, names, preprocess)


def wrapped(model, preprocess=PLAIN, classes=CLASSES, head=None, **options):
    return wrap(model, ModelOptions(preprocess=preprocess, head=head_of(head), **options), benchmark(classes))


class Small(nn.Module):
    """Maps, pooling, classifier."""

    def __init__(self, d=7, classes=CLASSES):
        super().__init__()
        self.conv = nn.Conv2d(3, d, 3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(d, classes)

    def pooled(self, x):
        return self.avgpool(torch.relu(self.conv(x))).flatten(1)

    def forward(self, x):
        return self.fc(self.pooled(x))


def images(n=6):
    return torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def outputs_of(model, x):
    """The features and logits of a Small, computed by itself."""
    model = copy.deepcopy(model).eval()
    features = model.pooled(x)
    return features, model.fc(features)


def check_outputs(backbone, model):
    """A backbone has the features and logits of a Small."""
    features, logits = outputs_of(model, images())
    outputs = backbone.outputs(images(), BOTH)
    torch.testing.assert_close(outputs.features, features)
    torch.testing.assert_close(outputs.logits, logits)


def small(seed=0, kind=Small, d=12, classes=6):
    """A network for the six ID classes of the digits."""
    torch.manual_seed(seed)
    return kind(d=d, classes=classes)


def small_model():
    torch.manual_seed(3)
    model = Small()
    model.scale = 2.0
    model.register_buffer("table", torch.arange(3.0), persistent=False)
    return model
