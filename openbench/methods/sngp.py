"""Dempster–Shafer uncertainty of logits that shrink with their variance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.request import Field, Request


@dataclass
class SNGP(Method):
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
        means = self._means(x)
        return torch.sigmoid(math.log(means.shape[1]) - torch.logsumexp(means, dim=1)).float()

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax of the mean-field logits, (n, c) float32."""
        return (1 - torch.softmax(self._means(x), dim=1)).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the softmax of the mean-field logits, (n, c)."""
        return 1 - scores

    def _means(self, x: FeatureSet) -> Tensor:
        # One variance may stand for all classes.
        return x.logits.double() / (1 + self.factor * x.map("variance").double()).sqrt()
