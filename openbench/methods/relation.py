"""Neural relation graph."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import training

_BANK_CHUNK = 2048
_QUERY_CHUNK = 512  # whose relations to a chunk of the bank, 4 MiB, stay near the processor


@dataclass
class Relation(Method):
    """Negative sum of a sample's relations to all training samples.

    score(x) = −Σ_i [r_i > threshold] r_i^power, r_i = max(cos(f, f_i), 0) · ⟨p, p_i⟩, p = softmax(z), i over training
    samples.

    Args:
        power: ≥ 0; 1 by default.
        threshold: relations up to it count as none; .03 by default.

    Raises:
        MethodError: a hyper-parameter out of range, or no training split.

    Reference: Kim et al., Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data,
    NeurIPS 2023, arXiv 2301.12321.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Kim et al., NeurIPS 2023, arXiv 2301.12321"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"power"})

    power: NonNegative = 1.0
    threshold: NonNegative = 0.03

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep training features (n, d) and logits (n, c) where they are."""
        train = training(train, "Relation")
        self.features_, self.logits_ = train.features, train.logits
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features, logits = self.learnt("features_"), self.learnt("logits_")
        unit, p = _unit(x.features), torch.softmax(x.logits, dim=1)
        total = torch.zeros(len(unit), dtype=torch.float64, device=unit.device)
        for start in range(0, len(features), _BANK_CHUNK):
            bank = _unit(features[start : start + _BANK_CHUNK].to(unit.device))
            bank_p = torch.softmax(logits[start : start + _BANK_CHUNK].to(unit.device), dim=1)
            for low in range(0, len(unit), _QUERY_CHUNK):
                part = slice(low, low + _QUERY_CHUNK)
                relation = by_rows(unit[part], bank).mul_(by_rows(p[part], bank_p))
                # Small relations, and negative ones, become exact zeros.
                relation = functional.threshold(relation, self.threshold, 0.0, inplace=True)
                total[part] += self._raised(relation).sum(dim=1)
        return -total.float()

    def _raised(self, relation: Tensor) -> Tensor:
        """Relations to the power, in place; power 0 counts the ones above 0."""
        if self.power == 0:
            return relation.sign_()
        return relation if self.power == 1 else relation.pow_(self.power)


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(dim=1, keepdim=True) + 1e-10).sqrt()
