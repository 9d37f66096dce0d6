"""Print what CORE reaches under other readings of what its abstract and summaries leave open.

    python scripts/core_readings.py +benchmark=cifar10 backbone=resnet20_cifar10 benchmark.incomplete=allow

The words are those of a run. Each reading is a run of its own; records go to a temporary folder.
"""

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bench_sweep import carried_out  # beside this script
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.methods.geometry import CORE


@dataclass
class ByPrediction(CORE):
    """Class means over training samples by their predicted class."""

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn from predictions as labels."""
        predicted = torch.cat([rows.logits.argmax(dim=1) for rows in train.batches()])
        super()._learn(replace(train, columns={**train.columns, Field.LABELS: predicted}), head)


@dataclass
class ByRange(CORE):
    """Both parts brought to the range that they have in training, instead of z-scores."""

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn, then measure the ranges."""
        super()._learn(train, head)
        low, high = torch.aminmax(torch.cat([self._parts(rows) for rows in train.batches()]), dim=0)
        self.center_, self.scale_ = low, 1 / (high - low)


@dataclass
class AcrossAllWeights(CORE):
    """The residual across the weights of all classes, instead of that of the predicted class."""

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Find the span of the weights, then learn."""
        self.span_, _ = torch.linalg.qr(head.weight.T)
        super()._learn(train, head)

    def _parts(self, x: FeatureSet) -> Tensor:
        predicted = x.logits.argmax(dim=1)
        rows = (x.features, self.residuals_[predicted])
        cosine = torch.cosine_similarity(*(row - row @ self.span_ @ self.span_.T for row in rows), dim=1)
        return torch.stack([torch.logsumexp(x.logits.double(), dim=1), cosine.double()], dim=1)


READINGS = {
    "as here": "openbench.methods.geometry.CORE",
    "class means by prediction": "core_readings.ByPrediction",
    "ranges of training, not z-scores": "core_readings.ByRange",
    "residual across all weights": "core_readings.AcrossAllWeights",
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    print("| reading | near AUROC | far AUROC |\n| --- | ---: | ---: |")
    for name, target in READINGS.items():
        with tempfile.TemporaryDirectory() as place:
            given = ["method=core", f"method._target_={target}", f"runtime.results={place}", "runtime.progress=false"]
            carried_out(["run", *sys.argv[1:], *given])
            (file,) = Path(place, "records").rglob("*.json")
            metrics = json.loads(file.read_text())["metrics"]
        print(f"| {name} | " + " | ".join(f"{100 * metrics[group]['auroc']:.2f}" for group in ("near", "far")) + " |")


if __name__ == "__main__":
    main()
