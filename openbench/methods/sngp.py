"""Dempster–Shafer uncertainty of logits that shrink with their variance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Field, Request
from openbench.methods._bases import SoftmaxMethod


@dataclass
class SNGP(SoftmaxMethod):
    """Dempster–Shafer uncertainty of the mean-field logits of a Gaussian process.

    score(x) = C/(C + Σ_c exp m_c), m_c = z_c/√(1 + λσ²_c), σ² the posterior variance of the logits z.

    Args:
        factor: λ ≥ 0; π/8 for posterior means of probabilities. The larger it is, the more distance counts; the
            authors' code has 25 on CIFAR-10, for another scale of σ².

    Raises:
        MethodError: a negative factor.

    Reference: Liu et al., Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via Distance
    Awareness, NeurIPS 2020, arXiv 2006.10108. Needs a backbone trained with `training=sngp`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("variance",), pool="mean")
    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv 2006.10108"

    factor: NonNegative = math.pi / 8

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32, in (0, 1]; larger = more OOD."""
        means = self._class_logits(x)
        return torch.sigmoid(math.log(means.shape[1]) - torch.logsumexp(means, dim=1)).float()

    def _class_logits(self, x: FeatureSet) -> Tensor:
        # One variance may stand for all classes.
        return x.logits.double() / (1 + self.factor * x.map("variance").double()).sqrt()
