"""Exact nearest neighbours by Euclidean distance, at full precision also where samples repeat."""

import torch
from torch import Tensor

_BLOCK = 512


def nearest(queries: Tensor, bank: Tensor, k: int, own: bool = False) -> tuple[Tensor, Tensor]:
    """Return distances (n, k) float64, ascending, and rows of the bank (n, k) of the k nearest to each query.

    Args:
        queries: (n, d).
        bank: (m, d) on the same device.
        k: at most m; at most m − 1 if `own`.
        own: the queries are the bank, and no row is its own neighbour.
    """
    found = []
    for start in range(0, len(queries), _BLOCK):
        part = queries[start : start + _BLOCK].double()
        apart = torch.cdist(part, bank.double())
        if own:
            rows = torch.arange(len(part), device=part.device)
            apart[rows, rows + start] = torch.inf
        index = apart.topk(k, dim=1, largest=False).indices
        # cdist rounds: copies of a sample come out a little apart. Differences do not.
        exact = (bank[index].double() - part[:, None]).norm(dim=2)
        ordered, place = exact.sort(dim=1, stable=True)
        found.append((ordered, index.gather(1, place)))
    return torch.cat([d for d, _ in found]), torch.cat([i for _, i in found])


def subset(n: int, most: int | None, seed: int) -> Tensor | None:
    """Return `most` of n rows in ascending order, drawn without replacement; None if that is all of them."""
    if most is None or n <= most:
        return None
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:most]
    return drawn.sort().values
