"""A foundation model without a classifier
=======================================

DINOv2, SigLIP or MAE give features and no classes. openbench fits a head on the features of the ID training images,
once, and keeps it beside them. A small vision transformer with random weights stands in for DINOv2 here, so that
nothing is downloaded; with the released weights the whole page is one call:
``ob.evaluate("dinov2_vits14", benchmark="imagenet1k", methods=["knn", "msp", "vim"])``.
"""

# %%
# The stand-in: DINOv2's architecture at a thousandth of its size. Its weights come from a file, as yours would.
import tempfile
from pathlib import Path

import torch

import openbench as ob
from openbench.backbones.libraries import timm_model

folder = Path(tempfile.mkdtemp())
size = {"embed_dim": 24, "depth": 2, "num_heads": 4, "img_size": 28}
stand_in = timm_model(
    "stand_in", "vit_small_patch14_dinov2", num_classes=0, preprocess=ob.Preprocess(resize=28, crop=28), options=size
)
torch.save(stand_in.initialise(seed=0).network.state_dict(), folder / "vit.pt")

words = [
    f"backbone.weights={folder / 'vit.pt'}",
    "backbone.preprocess.resize=28",
    "backbone.preprocess.crop=28",
    "backbone.options.img_size=28",
    *(f"+backbone.options.{key}={value}" for key, value in size.items() if key != "img_size"),
    "backbone.tokens=cls+patch_mean",
    "metrics.families=[ranking]",
]

# %%
# Methods that read features only need no classes; the others see the head. ``linear_probe`` is a logistic regression,
# its weight decay chosen on ID validation.
results = ob.evaluate(
    "dinov2_vits14",
    benchmark="digits",
    methods=["knn", "msp", "energy"],
    overrides=words,
    tune="none",
    cache=folder / "cache",
    results=folder / "results",
    progress=False,
)
print(results.table()[["near_auroc", "far_auroc", "id_accuracy"]].round(3))

# %%
# Another head is another network in the tables: its name says which. The features are those of the first call.
nearest = ob.evaluate(
    "dinov2_vits14",
    benchmark="digits",
    methods="msp",
    overrides=[*words, "backbone.head=nearest_mean"],
    tune="none",
    cache=folder / "cache",
    results=folder / "results",
    progress=False,
)
for found in (results["msp"], nearest["msp"]):
    passes = found.record.provenance["passes"]
    print(f"{found.record.backbone['name']}: accuracy {found.metrics['id']['accuracy']:.3f}, {passes:,} images passed")
