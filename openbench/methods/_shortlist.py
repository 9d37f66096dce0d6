"""The few of many vectors that may be among the nearest to a query, told from a fraction of their numbers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openbench.methods._bank import Bank

_SMALLEST = 2**20  # numbers in a bank that is worth it: the whole product takes a tenth of a millisecond then
_WIDTHS = (16, 32, 64, 128)  # directions tried
_VARIED = 16_384  # vectors from which the directions are learnt
_TRIED = 16  # vectors that are looked for, to see how many candidates remain
_ROWS = 8192  # vectors made at a time
_MORE = 4  # times k vectors whose distances bound that of the k-th
_TERMS = 100  # roundings of an addend beside its product: float32 adds up in blocks
_SCATTERED = 4  # times as long to read a number of a row here and there as of rows that follow one another


@dataclass(frozen=True, eq=False)
class Shortlist:
    """A bank's vectors b as b̃ = (Pᵀ(b − μ), ‖(I − PPᵀ)(b − μ)‖): along a few directions, and how far off these.

    No two points are farther apart as they are seen than they are (Cauchy–Schwarz), so ‖q̃ − b̃‖ ≤ ‖q − b‖: a vector that
    is seen beyond k others is not among the k nearest. What remains is measured.

    Args:
        bank: read ahead.
        seen: (r + 1, m) float32, the vectors b̃ as columns.
        offset: (m,) minus half their squared lengths.
        directions: (d, r) float64, orthonormal: P.
        centre: (d,) float64: μ.
        longest: the length of the longest b̃.
    """

    bank: Bank
    seen: Tensor
    offset: Tensor
    directions: Tensor
    centre: Tensor
    longest: float

    @classmethod
    def of(cls, bank: Bank, k: int) -> "Shortlist | None":
        """Return the shortlist of a bank that is read ahead; None where searching all of it is not much slower.

        Args:
            bank: of float32 vectors on a CPU.
            k: which neighbour will be looked for.
        """
        vectors = bank.vectors
        if not isinstance(vectors, Tensor) or vectors.numel() < _SMALLEST or vectors.dtype != torch.float32:
            return None
        (m, d), best = vectors.shape, None
        least = m * d / 2
        some = vectors[:: max(1, m // _TRIED)][:_TRIED]
        widths = [width for width in _WIDTHS if 2 * width <= d]
        axes, centre = _directions(vectors, max(widths, default=0))
        blocks = [_along(rows, axes, centre) for rows in torch.split(vectors, _ROWS)] if widths else []
        for width in widths:
            seen = torch.cat([_seen(along[:, :width], squares).float() for along, squares in blocks])
            lengths = seen.double().square().sum(dim=1)
            longest = float(lengths.max().sqrt())
            made = cls(bank, seen.T.contiguous(), (-lengths / 2).float(), axes[:, :width], centre, longest)
            left = torch.tensor([len(made.candidates(row[None], k)) for row in some])
            numbers = m * (width + 1) + _SCATTERED * d * float(left.median())
            if numbers < least:
                least, best = numbers, made
        return best

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        """Return what `Bank.nearest` does, rows (n, k) in the bank, for few queries (n, d)."""
        return torch.cat([self._nearest(query[None], k) for query in queries])

    def candidates(self, query: Tensor, k: int) -> Tensor:
        """Return the rows (j,) of a bank among which the k nearest to one query (1, d) surely are."""
        seen = _seen(*_along(query, self.directions, self.centre))
        length = float(seen.norm())
        near = torch.addmv(self.offset, self.seen.T, seen[0].float())
        count = min(_MORE * k, len(near))
        first = torch.from_numpy(np.argpartition(near.numpy(), -count)[-count:])  # torch's topk takes thrice as long
        apart = self.bank.squared_distances(query, first[None])[0]
        farthest = float(apart.kthvalue(k).values)  # at least k are as near as this
        # float32 rounds a product of r + 1 numbers, its terms, and the distances measured by less than this in all.
        rounding = (len(self.seen) + _TERMS) * torch.finfo(torch.float32).eps / 2
        slack = rounding * (length + self.longest) ** 2
        # Products of tiny numbers are rounded to a multiple of a smallest number instead, or to zero.
        slack += (query.shape[1] + _TERMS) * torch.finfo(torch.float32).tiny
        return torch.nonzero(near >= (length**2 - farthest - slack) / 2)[:, 0]

    def _nearest(self, query: Tensor, k: int) -> Tensor:
        rows = self.candidates(query, k)
        if _SCATTERED * len(rows) > len(self.bank):
            return self.bank.nearest(query, k)
        half = None if self.bank.half is None else self.bank.half[rows]
        return rows[Bank(self.bank.vectors[rows], half=half).nearest(query, k)]


def _along(vectors: Tensor, directions: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Pᵀ(b − μ) (n, r) float64 of vectors b (n, d), and ‖b − μ‖² (n,)."""
    off = vectors.double() - centre
    return off @ directions, off.square().sum(dim=1)


def _seen(along: Tensor, squares: Tensor) -> Tensor:
    """b̃ (n, r + 1) float64 of Pᵀ(b − μ) and ‖b − μ‖²."""
    beside = (squares - along.square().sum(dim=1)).clamp(min=0).sqrt()
    return torch.cat([along, beside[:, None]], dim=1)


def _directions(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The directions (d, count) float64 in which some of the vectors vary most, and their mean (d,)."""
    some = vectors[:: max(1, len(vectors) // _VARIED)].double()
    centre = some.mean(dim=0)
    scatter = (some - centre).T @ (some - centre)
    return torch.linalg.eigh(scatter).eigenvectors.flip(dims=[1])[:, :count].contiguous(), centre
