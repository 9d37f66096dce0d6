"""
A detector with a guarantee
===========================

A benchmark says which method ranks images well. To act on one image, a threshold is needed, and a promise about how
often it is wrong. This page makes a detector for a network of your own, asks it, watches it, and writes it to disk.
"""

# %%
# A network and images
# --------------------
# Digits 0 to 4 are in-distribution. The images are uint8, as a decoder hands them over, and are split in three: the
# network and the method learn from the first part, the threshold from the second, and the third is new.
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import openbench as ob
from openbench.errors import LeakageError

torch.manual_seed(0)
digits = load_digits()
images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
inside = np.random.default_rng(0).permutation(np.flatnonzero(labels <= 4))
train, held_out, new = inside[:400], inside[400:700], inside[700:]
outside = np.flatnonzero(labels >= 5)


class Small(nn.Module):
    """One convolution and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(32 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.maps(x))


preprocess = ob.Preprocess(resize=8, crop=8, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
network = Small()
grey = torch.from_numpy(images[train]).float()[:, None].expand(-1, 3, -1, -1)
inputs, targets = (grey / 255 - 0.5) / 0.25, torch.from_numpy(labels[train])
optimiser = torch.optim.Adam(network.parameters(), 1e-3)
for _ in range(40):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(inputs), targets).backward()
    optimiser.step()

# %%
# Fit, calibrate, ask
# -------------------
# ``fit`` gives the method what it learns from; ``calibrate`` sets the threshold on images that neither the network nor
# the method has seen. ``promise`` says what then holds, and what does not.
detector = ob.Detector(network, ob.method("knn", k=5), preprocess=preprocess)
detector.fit((list(images[train]), labels[train]))
detector.calibrate((list(images[held_out]), labels[held_out]), alpha=0.05)
print(detector.promise)

# %%
# A row per image. A p-value is the share of calibration images that look as odd; an image is called OOD where it is
# at most alpha. The prediction set holds the class of an ID image with probability 0.95.
found = detector.predict(list(images[new]))
found.to_pandas().head()

# %%
# About one in twenty of the new ID images is called OOD, as promised. How many of the digits 5 to 9 are called OOD is
# not promised.
odd = detector.predict(list(images[outside]))
print(f"of new digits 0 to 4: {100 * found.is_ood.mean():.1f} % called OOD")
print(f"of digits 5 to 9:     {100 * odd.is_ood.mean():.1f} % called OOD")

# %%
# What was used for fitting cannot calibrate: its scores are too small, and the promise would be empty.
try:
    detector.calibrate(list(images[train[:100]]))
except LeakageError as error:
    print(error)

# %%
# A batch
# -------
# Flagging one image at a time says nothing about how many of the flagged are false alarms. For a batch, ``select``
# does: of those selected, at most a tenth is ID on average.
batch = np.concatenate([new[:100], outside[:100]])
selected = detector.select(list(images[batch]), fdr=0.1)
print(f"{selected.sum()} selected, {selected[:100].sum()} of them ID")

# %%
# A stream
# --------
# The promise holds for images like those of calibration. ``Monitor`` notices when they no longer are; while nothing
# changes, the chance that it ever raises an alarm is at most one in a hundred.
monitor = ob.Monitor(detector.calibration.scores, level=0.01)
monitor.update_scores(found.score)
print("alarm after new digits 0 to 4:", monitor.alarm)
monitor.update_scores(odd.score)
print("alarm at image", monitor.alarm_at, "of", monitor.images)

# %%
# On disk
# -------
# Numbers and tensors, no code. So a network of a class of your own is passed when it is loaded; its weights are those
# of the detector. With the digest that ``save`` returned, nobody can put another detector in its place.
path = Path(tempfile.mkdtemp()) / "detector.zip"
digest = detector.save(path)
loaded = ob.load_detector(path, model=Small(), digest=digest)
print(loaded, (loaded.predict(list(images[new])).score == found.score).all())
