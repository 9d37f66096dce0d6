"""Exact nearest neighbours by Euclidean distance, in a bank that may be larger than memory."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from openbench.core import by_rows
from openbench.methods._stats import BLOCK, row_normalise

# Vectors (m, d), the halves of their squared lengths, and the inverse lengths that scale products (None: 1).
_Block = tuple[Tensor, Tensor, Tensor | None]
_BANK_CHUNK = 32768
_QUERY_CHUNK = 512
_ENTRIES = 2**24  # of differences handled at a time
_GROUP = 16  # columns of which the largest is looked at first


class Vectors(Protocol):
    """The vectors of a bank: a tensor, or an object that makes its rows on request."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Bank:
    """Vectors to search among, in the precision and on the device of the queries.

    Args:
        vectors: (m, d), memory-mapped or not.
        unit: whether they are scaled to unit length when they are read.
        origin: (d,) subtracted when they are read, since products lose digits to a common offset; None subtracts
            nothing.
        inverse: (m,) one over the length of each vector, see `inverse_lengths`: where `unit`, products with few queries
            are divided by it, which takes less time than to scale all vectors.
    """

    vectors: Vectors
    unit: bool = False
    origin: Tensor | None = None
    inverse: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def nearest(self, queries: Tensor, k: int, own: bool = False) -> Tensor:
        """Return rows (n, k) of the k nearest to each query (n, d), the nearest first, to the rounding of products.

        Args:
            queries: (n, d), where the vectors are when they are read.
            k: 1 to m; to m − 1 if `own`.
            own: whether the queries are the vectors themselves; a vector is then not its own neighbour.
        """
        near = queries.new_empty(len(queries), 0)
        index = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for start in range(0, len(self), _BANK_CHUNK):
            block = self._block(slice(start, start + _BANK_CHUNK), queries)
            values, place = _nearest_in(block, queries, k, start if own else None)
            near, index = torch.cat([near, values], dim=1), torch.cat([index, place + start], dim=1)
            if start:
                near, chosen = near.topk(min(k, near.shape[1]), dim=1)
                index = index.gather(1, chosen)
        return index

    def nearest_exactly(self, queries: Tensor, k: int, own: bool = False) -> Tensor:
        """Return the same rows (n, k) in the order of their distances, free of the products' rounding."""
        index = self.nearest(queries, k, own)
        return index.gather(1, self.squared_distances(queries, index).sort(dim=1, stable=True).indices)

    def squared_distances(self, queries: Tensor, index: Tensor) -> Tensor:
        """Return squared Euclidean distances (n, k) of queries (n, d) to rows `index` (n, k).

        ‖q‖² + ‖b‖² − 2qb loses digits for close neighbours; the difference itself does not.
        """
        k, d = index.shape[1], queries.shape[1]
        rows = max(1, _ENTRIES // (k * d))
        squares = []
        for q, places in zip(torch.split(queries, rows), torch.split(index, rows), strict=True):
            b = self._read(places.reshape(-1).cpu(), queries).view(len(q), k, d)
            squares.append((q[:, None] - b).square().sum(dim=2))
        return torch.cat(squares)

    def kth_squared_distance(self, queries: Tensor, k: int) -> Tensor:
        """Return the squared distance (n,) of each query (n, d) to its k-th nearest vector, 1 ≤ k ≤ m."""
        return self.squared_distances(queries, self.nearest(queries, k)[:, -1:])[:, 0]

    def _block(self, rows: slice, like: Tensor) -> _Block:
        if self.inverse is None or len(like) > _QUERY_CHUNK:
            read = self._read(rows, like)
            # Squares of all rows at once would fill memory as large as the block.
            half = torch.cat([part.square().sum(dim=1) for part in torch.split(read, BLOCK)]) / 2
            return read, half, None
        inverse = self.inverse[rows].to(like)
        return self.vectors[rows].to(like), torch.where(inverse > 0, 0.5 / inverse, 0), inverse

    def _read(self, index: slice | Tensor, like: Tensor) -> Tensor:
        rows = self.vectors[index].to(like)
        rows = rows if self.origin is None else rows - self.origin.to(like)
        return row_normalise(rows) if self.unit else rows


def inverse_lengths(vectors: Tensor) -> Tensor | None:
    """Return one over the length of each vector (m, d), 0 for one of zeros; None where that is beyond float32."""
    lengths = torch.cat([torch.linalg.vector_norm(rows.float(), dim=1) for rows in torch.split(vectors, _BANK_CHUNK)])
    inverse = torch.where(lengths > 0, 1 / lengths, 0)
    return inverse if bool((torch.isfinite(inverse) & torch.isfinite(lengths)).all()) else None


def _nearest_in(of: _Block, queries: Tensor, k: int, own: int | None) -> tuple[Tensor, Tensor]:
    """q·b − ‖b‖²/2 and rows (n, min(k, m)) of a block (m, d) for which it is largest, in this order.

    It falls as the distance grows, as ‖q‖² is the same for all. `own` is the query which the first row of the block is.
    """
    block, half, inverse = of
    # In single precision malloc keeps the memory of a quarter's products, 16 MiB, for those of the next.
    quick = block.device.type == "cpu" and block.dtype == torch.float32
    rows = max(1, _QUERY_CHUNK // 4) if quick else _QUERY_CHUNK
    parts = []
    for low, part in enumerate(torch.split(queries, rows)):
        near = by_rows(part, block, -half)
        near = near if inverse is None else near.mul_(inverse)
        if own is not None:
            near.diagonal(low * rows - own).fill_(-torch.inf)
        parts.append(_largest(near, min(k, len(block))) if quick else near.topk(min(k, len(block)), dim=1))
    return torch.cat([values for values, _ in parts]), torch.cat([places for _, places in parts])


def _largest(near: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row (n, m) and their columns, (n, k), in this order.

    If they are few, only the groups of columns with the k largest maxima are searched: an entry outside them is not
    larger than any of these. The columns of a group are m/16 apart, so that maxima are taken of long runs at once.
    """
    m = near.shape[1]
    if 4 * k * _GROUP > m:
        return near.topk(k, dim=1)
    step = m // _GROUP
    whole = step * _GROUP
    maxima = near[:, :whole].view(len(near), _GROUP, step).amax(dim=1)
    best = maxima.topk(k, dim=1, sorted=False).indices
    columns = (best[:, None] + torch.arange(0, whole, step)[:, None]).flatten(1)
    columns = torch.cat([columns, torch.arange(whole, m).expand(len(near), -1)], dim=1)
    values, chosen = near.gather(1, columns).topk(k, dim=1)
    return values, columns.gather(1, chosen)
