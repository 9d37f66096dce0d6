"""Outlier degree in the subspace where a sample's reference set is tight."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from annotated_types import Ge
from scipy.sparse import csr_matrix
from torch import Tensor

from openbench.config.constraints import Count, Fraction, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._bank import Bank
from openbench.methods._stats import drawn, training

_BLOCK = 512


@dataclass
class SOD(Method):
    """Distance to the mean of the reference set, in the features in which that set varies little.

    score(x) = √( Σ_{j∈S} (f_j − μ_j)² / |S| ), S = {j : σ_j² < α mean_i σ_i²}; μ, σ² of the l training samples
    that share most of their k nearest training samples with x. 0 if S is empty.

    Args:
        k: neighbours that are compared; 20 by default, as in PyOD.
        l: samples in the reference set; 10 by default, as in PyOD.
        alpha: α; 0.8 in the paper.
        max_train: number of training samples to draw without replacement, at most; None takes all.
        seed: of that draw.

    Raises:
        MethodError: a hyper-parameter out of range, not more than k training samples, or features that are not finite.

    Reference: Kriegel, Kröger, Schubert & Zimek, Outlier Detection in Axis-Parallel Subspaces of High Dimensional
    Data, PAKDD 2009. Of training samples that share equally many neighbours with x the nearest are taken; PyOD takes
    those that its sort happens to put last. PyOD's `decision_function`, from which ADBench's figures come, forgets the
    training samples and takes reference sets from the batch that it scores. Here they are training samples and each
    sample is scored by itself.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Kriegel et al., PAKDD 2009"

    k: Count = 20
    l: Count = 10  # noqa: E741 - the paper's name
    alpha: Fraction = 0.8
    max_train: Annotated[int, Ge(2)] | None = 10_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.l <= self.k, "l", "1 to k")

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep training features (n, d) and the neighbours of each, (n, k)."""
        bank = drawn(training(train, "SOD"), self.max_train, self.seed).features
        self.require(self.k < len(bank), "k", f"1 to {len(bank) - 1}, one less than the training samples")
        self.bank_ = bank
        self.neighbours_ = Bank(bank).nearest(bank.double(), self.k, own=True).cpu()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        neighbours = self.learnt("neighbours_")
        bank = self.bank_.to(x.features.device)
        lists = _incidence(neighbours, len(bank)).T.tocsr()
        scores = []
        for start in range(0, len(x), _BLOCK):
            part = x.features[start : start + _BLOCK]
            reference = bank[self._reference(part, bank, lists)].double()
            mean, variance = reference.mean(dim=1), reference.var(dim=1, correction=0)
            tight = variance < self.alpha * variance.mean(dim=1, keepdim=True)
            squared = (part.double() - mean).square() * tight
            scores.append((squared.sum(dim=1) / tight.sum(dim=1).clamp(min=1)).sqrt())
        return torch.cat(scores).float()

    def _reference(self, part: Tensor, bank: Tensor, lists: csr_matrix) -> Tensor:
        """Rows of the bank (n, l) that share most neighbours with samples (n, d), the nearest first among equals."""
        neighbours = _incidence(Bank(bank).nearest(part.double(), self.k).cpu(), len(bank))
        shared = torch.from_numpy((neighbours @ lists).toarray()).to(part.device)
        distances = torch.cdist(part.double(), bank.double())
        return (shared - distances / (1 + distances)).topk(self.l, dim=1).indices


def _incidence(index: Tensor, columns: int) -> csr_matrix:
    """Rows of ones where `index` (n, k) points to, (n, columns)."""
    n, k = index.shape
    ends = np.arange(0, n * k + 1, k)
    return csr_matrix((np.ones(n * k), index.reshape(-1).numpy(), ends), shape=(n, columns))
