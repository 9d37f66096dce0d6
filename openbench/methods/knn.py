"""Distance to the k-th nearest training feature."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Request
from openbench.digest import OMIT_IF_DEFAULT
from openbench.methods._bank import Bank, inverse_lengths
from openbench.methods._stats import Learning, on_training, row_normalise

Index = Literal["exact", "faiss_flat", "ivf", "hnsw"]
Precision = Literal["float32", "float16"]
_FAISS_CHUNK = 32768  # features added to faiss' index at a time


@dataclass
class KNN(Learning):
    """Squared distance to the k-th nearest training feature on the unit sphere.

    score(x) = ‖f̂ − f̂₍k₎‖², f̂ = f/‖f‖, f̂₍k₎ the k-th nearest of the normalised training features.

    Args:
        k: which neighbour; 50 by default, the paper uses 50 (CIFAR-10), 200 (CIFAR-100), 1000 (ImageNet).
        index: `exact` searches by blocked matrix products; `faiss_flat` is faiss' exact index; `ivf` (√n lists, of
            which `probes` are searched) and `hnsw` (32 links) are approximate. A query for which they find fewer than
            k neighbours is searched exactly.
        probes: lists searched by `ivf`.
        normalise: whether features are brought to unit length, as in the paper. Without it the score is ‖f − f₍k₎‖²,
            the distance of classical outlier detection (Ramaswamy et al., SIGMOD 2000); for tables, whose rows have
            lengths that count.
        precision: of the stored training features, and of faiss' indices in memory; `float16` takes half the space and
            changes scores in the fourth digit or so. It needs features of unit length.

    Raises:
        MethodError: k < 1, an unknown index or precision, or fewer than k training samples.

    Reference: Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022, arXiv 2204.06507.
    """

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = "Sun et al., ICML 2022, arXiv 2204.06507"

    version: ClassVar[int] = 3  # a training feature of zeros is at distance 1 of every direction

    k: Count = 50
    index: Index = "exact"
    probes: Count = 16
    normalise: bool = field(default=True, metadata={OMIT_IF_DEFAULT: True})
    precision: Precision = field(default="float32", metadata={OMIT_IF_DEFAULT: True})

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.normalise or self.precision == "float32", "precision", "float32 where normalise is False")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the training features (n, d), memory-mapped as they are; or build faiss' index."""
        n = len(train)
        self.require(self.k <= n, "k", f"1 to {n}, the number of training samples")
        self.bank_ = train.features
        if self.precision == "float16":  # as they are, they may be beyond its largest number
            self.bank_ = torch.cat([row_normalise(x.features).cpu().half() for x in train.batches(_FAISS_CHUNK)])
        self.labels_ = train.labels.cpu() if Field.LABELS in train else None
        # Products of plain features lose digits to a common offset: the mean is taken off first.
        self.centre_ = None if self.normalise else self.bank_.mean(dim=0).cpu()
        self.inverse_ = inverse_lengths(self.bank_) if self.normalise else None
        self.faiss_: Any = None if self.index == "exact" else self._build_faiss(train)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("bank_")
        queries = self._placed(x.features)
        return self._farthest(self._among(), queries, self._search(queries))

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the squared distance to the k-th nearest training feature of each class, (n, c) float32.

        Exact whatever the index. A class with fewer than k samples is judged by its farthest, one with none is +inf.
        """
        self.learnt("bank_")
        if self.labels_ is None:
            return None
        queries = self._placed(x.features)
        by_class = queries.new_full((len(queries), int(self.labels_.max()) + 1), float("inf"))
        for y in range(by_class.shape[1]):
            members = torch.nonzero(self.labels_ == y)[:, 0]
            if len(members):
                bank = self._among(members)
                by_class[:, y] = self._farthest(bank, queries, bank.nearest(queries, min(self.k, len(members))))
        return by_class

    def neighbours(self, x: FeatureSet) -> Tensor:
        """Return the indices (n, k) of the k nearest training samples, the nearest first to rounding."""
        self.learnt("bank_")
        return self._search(self._placed(x.features))

    def _placed(self, features: Tensor) -> Tensor:
        """Features as they are searched: on the unit sphere, or around the mean of training."""
        return row_normalise(features) if self.centre_ is None else features - self.centre_.to(features.device)

    def _among(self, rows: Tensor | slice = slice(None)) -> Bank:
        """Training features as they are searched: all, or some rows."""
        inverse: Tensor | None = getattr(self, "inverse_", None)  # detectors of earlier versions lack it
        return Bank(self.bank_[rows], self.normalise, self.centre_, None if inverse is None else inverse[rows])

    def _farthest(self, bank: Bank, queries: Tensor, index: Tensor) -> Tensor:
        """Squared distances (n,) to the farthest of the bank's rows `index` (n, k)."""
        # Products of unit vectors tell which it is; of others, rounding may leave it open, and all are measured.
        return bank.squared_distances(queries, index[:, -1:] if self.normalise else index).amax(dim=1)

    def _search(self, queries: Tensor) -> Tensor:
        """Rows (n, k) of the k nearest, the nearest first."""
        bank = self._among()
        if self.faiss_ is None:
            return bank.nearest(queries, self.k)
        _, rows = self.faiss_.search(queries.cpu().contiguous().numpy(), self.k)
        index = torch.from_numpy(rows).to(queries.device)
        # An approximate index may find fewer than k, −1 then stands for "none": these few are searched exactly.
        short = (index < 0).any(dim=1)
        if bool(short.any()):
            index[short] = bank.nearest(queries[short], self.k)
        return index

    def _build_faiss(self, train: FeatureSet) -> Any:
        import faiss

        d, n = train.features.shape[1], len(train)
        lists = max(1, round(n**0.5))
        storage = "Flat" if self.precision == "float32" else "SQfp16"
        recipe = {"faiss_flat": storage, "ivf": f"IVF{lists},{storage}", "hnsw": f"HNSW32,{storage}"}[self.index]
        built: Any = faiss.index_factory(d, recipe, faiss.METRIC_L2)
        if not built.is_trained:
            # faiss' own k-means wants about 40 points per list and is deterministic for given points.
            sample = np.random.default_rng(0).permutation(n)[: 64 * lists]
            points = train.features[torch.from_numpy(np.sort(sample))]
            built.train(self._placed(points).float().numpy())
        if self.index == "ivf":
            built.nprobe = min(self.probes, lists)
        for rows in train.batches(_FAISS_CHUNK):
            built.add(self._placed(rows.features).cpu().float().contiguous().numpy())
        if self.index == "hnsw":
            built.hnsw.efSearch = max(2 * self.k, 64)
        return built
