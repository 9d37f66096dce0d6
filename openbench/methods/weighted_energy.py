"""The weighted free energy that a training with virtual outliers learnt."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request


@dataclass
class WeightedEnergy(Method):
    """Free energy with a weight for each class, which a network trained with virtual outliers learnt.

    score(x) = −log Σ_c max(w_c, 0) exp z_c.

    Reference: Du et al., VOS: Learning What You Don't Know by Virtual Outlier Synthesis, ICLR 2022, arXiv 2202.01197;
    `WeightedEBO` of pytorch-ood. Needs a backbone trained with `training=vos`, whose regulariser learns w. Of
    classifiers the authors' own code scores the energy without weights (`method=energy`), and says that the weights of
    training make it worse in testing.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("weighted_energy",), pool="mean")
    reference: ClassVar[str] = "Du et al., ICLR 2022, arXiv 2202.01197"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.map("weighted_energy")[:, 0]
