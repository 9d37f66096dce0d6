"""Nearest-neighbour guidance of the energy."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count, Seed, Share
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import balanced_draw, row_normalise, training

_OPENOOD_BATCH = 200


@dataclass
class NNGuide(Method):
    """Negative energy confidence, weighted by how near and how confident the closest training samples are.

    score(x) = −E(z) · mean of the k largest ⟨f̂, f̂_i⟩ E(z_i), E(z) = log Σ_c exp z_c, f̂ = f/‖f‖, i over a bank of
    training samples.

    Args:
        k: neighbours, cut to the size of the bank; 100 by default.
        alpha: share of the training samples in the bank, in (0, 1]; .01 by default, at least k samples.
        bank: `balanced` draws equally many samples of each class, by `seed`; `first` takes them in the order of the
            manifest up to a whole batch of 200, as OpenOOD did for CIFAR-10, where they are all cats.
        seed: of the balanced draw.

    Raises:
        MethodError: a hyper-parameter out of range, or no training split.

    Reference: Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023, arXiv 2309.14888.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN
    )
    reference: ClassVar[str] = "Park et al., ICCV 2023, arXiv 2309.14888"

    k: Count = 100
    alpha: Share = 0.01
    bank: Literal["balanced", "first"] = "balanced"
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Choose the bank and keep its guidance f̂_i E(z_i), (m, d)."""
        train = training(train, "NNGuide")
        rows = train[self._chosen(train)]
        energy: Tensor = torch.logsumexp(rows.logits, dim=1, keepdim=True)
        self.guides_ = row_normalise(rows.features) * energy
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        guides = self.learnt("guides_").to(x.features.device)
        similarity = by_rows(row_normalise(x.features), guides)
        guidance = similarity.topk(min(self.k, len(guides)), dim=1, sorted=False).values.mean(dim=1)
        return -torch.logsumexp(x.logits, dim=1) * guidance

    def _chosen(self, train: FeatureSet) -> Tensor:
        n = len(train)
        if self.bank == "first":
            whole = (int(self.alpha * n / _OPENOOD_BATCH) + 1) * _OPENOOD_BATCH
            return torch.arange(min(whole, n))
        size = min(n, max(round(self.alpha * n), self.k))
        return balanced_draw(train.labels, size, self.seed)
