"""Evaluate your own model
=======================

A network that you trained, a benchmark by name, and a table: what ``python -m openbench run`` computes, from Python.
The digits of scikit-learn stand in for your data, so that nothing is downloaded.
"""

# %%
# A small network, trained on the digits 0 to 5. Yours may be any ``torch.nn.Module``.
import tempfile

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import openbench as ob

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 6),
)


# %%
# How images reach it: what turns a PIL image into its input when it is tested. A transform of torchvision or timm does
# as well: ``transforms.Compose([Resize(16), CenterCrop(16), ToTensor()])``, whose steps the record then names.
def preprocess(picture):
    """Return a PIL image as the network takes it, (3, 16, 16) in [0, 1]."""
    pixels = np.asarray(picture.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


digits = load_digits()
chosen = digits.target < 6
images = torch.stack([preprocess(Image.fromarray((p * 15.9).astype("uint8"))) for p in digits.images[chosen]])
labels = torch.from_numpy(digits.target[chosen])

optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _epoch in range(6):
    for rows in torch.randperm(len(images)).split(64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()

# %%
# Evaluate it. The penultimate features and the classifier are found; the model is copied, and left as it is.
# A method is a name, or an instance with your own hyper-parameters. ``results`` and ``cache`` are folders; without them
# records go to ``./results``.
from openbench.methods.knn import KNN

folder = tempfile.mkdtemp()
results = ob.evaluate(
    model,
    benchmark="digits",
    methods={"msp": "msp", "energy": "energy", "knn": KNN(k=5)},
    preprocess=preprocess,
    name="two_convolutions",
    tune="none",
    results=f"{folder}/results",
    cache=f"{folder}/cache",
)

# %%
# Each method has a result: metrics by set and by group, fractions from 0 to 1.
for method, result in results.items():
    print(f"{method:8} AUROC near {result.metrics['near']['auroc']:.3f}, far {result.metrics['far']['auroc']:.3f}")

# %%
# A second call finds the records and computes nothing; a model with other weights is another model.
again = ob.evaluate(
    model,
    benchmark="digits",
    methods="msp",
    preprocess=preprocess,
    name="two_convolutions",
    tune="none",
    results=f"{folder}/results",
    cache=f"{folder}/cache",
)
print(*again["msp"].notes, sep="\n")
