"""Exact distances to neighbours in a bank that may be larger than memory."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from openbench.methods._stats import row_normalise

_BANK_CHUNK = 32768
_QUERY_CHUNK = 512


class Vectors(Protocol):
    """What a bank reads: a tensor, or what makes its rows when asked for them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Bank:
    """Vectors to search among.

    Args:
        vectors: (m, d), memory-mapped or not.
        unit: whether they are scaled to unit length when they are read.
    """

    vectors: Vectors
    unit: bool = False

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Vectors `index`, at unit length if asked for."""
        found = self.vectors[index]
        return row_normalise(found) if self.unit else found

    def kth_squared_distance(self, queries: Tensor, k: int) -> Tensor:
        """Return the squared Euclidean distance (n,) of each query (n, d) to its k-th nearest vector, 1 ≤ k ≤ m."""
        index = self._nearest(queries, k)
        kth = self[index.cpu()].to(queries)
        # ‖q‖² + ‖b‖² − 2qb loses digits for close neighbours; the difference itself does not.
        distance: Tensor = (queries - kth).square().sum(dim=1)
        return distance

    def _nearest(self, queries: Tensor, k: int) -> Tensor:
        """Index (n,) of the k-th nearest."""
        best = queries.new_empty(len(queries), 0)
        index = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for start in range(0, len(self), _BANK_CHUNK):
            block = self[slice(start, start + _BANK_CHUNK)].to(queries)
            near, place = _nearest_in(queries, block, min(k, len(block)))
            best, index = torch.cat([best, near], dim=1), torch.cat([index, place + start], dim=1)
            if best.shape[1] > k:
                best, chosen = best.topk(k, dim=1, largest=False, sorted=False)
                index = index.gather(1, chosen)
        farthest: Tensor = index.gather(1, best.argmax(dim=1, keepdim=True))[:, 0]
        return farthest


def _nearest_in(queries: Tensor, block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """‖b‖² − 2qb (n, k) and rows of the k nearest in `block`, unordered: ‖q‖² does not change their order."""
    lengths = block.square().sum(dim=1)
    found = []
    for part in torch.split(queries, _QUERY_CHUNK):
        found.append((lengths - 2 * part @ block.T).topk(k, dim=1, largest=False, sorted=False))
    return torch.cat([values for values, _ in found]), torch.cat([places for _, places in found])
