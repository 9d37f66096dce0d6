"""Uniform class probabilities and misjudged rotations."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request

_TURNS = 4


@dataclass
class RotPred(Method):
    """Mean cross-entropy of four rotations less the divergence of class probabilities from uniform, in bits.

    score(x) = ¼ Σ_r −log₂ softmax(v_r)_r − KL(u‖softmax(z)), v_r the rotation logits of the image turned r times;
    KL(u‖p) = −log₂ C − mean_c log₂ p_c.

    Reference: Hendrycks et al., Using Self-Supervised Learning Can Improve Model Robustness and Uncertainty,
    NeurIPS 2019, arXiv 1906.12340. Needs a backbone trained with `training=rotpred`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("rotations",), pool="mean")
    reference: ClassVar[str] = "Hendrycks et al., NeurIPS 2019, arXiv 1906.12340"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p = torch.log_softmax(x.logits.double(), dim=1)
        divergence = -math.log(log_p.shape[1]) - log_p.mean(dim=1)
        turns = torch.log_softmax(x.map("rotations").view(-1, _TURNS, _TURNS).double(), dim=2)
        misjudged = -turns.diagonal(dim1=1, dim2=2).mean(dim=1)
        return ((misjudged - divergence) / math.log(2)).float()
