"""How feature maps are reduced while they are extracted, so that no map needs to be stored whole."""

import torch
from torch import Tensor

from openbench.core.request import Pool

GRAM_POWERS = {"gram": 5, "gram10": 10}  # largest p per reduction


def reduce_map(maps: Tensor, pool: Pool) -> Tensor:
    """Return the reduction of maps (n, c, h, w), float32, never a view of the argument.

    `none` (n, c, h, w) · `mean`, `max` (n, c) over positions · `gram` (n, c, 5), `gram10` (n, c, 10), see
    `gram_rows`.
    """
    if pool in GRAM_POWERS:
        return gram_rows(maps, GRAM_POWERS[pool])
    if pool == "mean":
        return maps.float().mean(dim=(2, 3))
    if pool == "max":
        return maps.float().amax(dim=(2, 3))
    return maps.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def gram_rows(maps: Tensor, powers: int) -> Tensor:
    """Return the signed p-th roots of the row sums of the p-th order Gram matrices, (n, c, P) for p = 1 … P.

    With F (c, h·w) one sample's map and Fᵖ its elementwise power: g_p = Fᵖ(Fᵖ)ᵀ1 and root sign(g_p)·|g_p|^(1/p). The
    (c, c) matrix is never formed: its row sums are Fᵖ times the channel sum of Fᵖ.

    Args:
        maps: (n, c, h, w).
        powers: P; the paper reads 10, OpenOOD 5.

    Reference:
        Sastry, Oore: Detecting out-of-distribution examples with Gram matrices, ICML 2020, arXiv:1912.12510.
    """
    # The root magnifies what cancels in the sums, hence double precision where the device has it.
    precise = maps.float() if maps.device.type == "mps" else maps.double()
    flat = precise.flatten(2)
    # Twentieth powers overflow unless each sample is scaled; a scale s comes back as s² for every p.
    scale = flat.abs().amax(dim=(1, 2), keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    unit = flat / scale
    roots = []
    power = torch.ones_like(unit)
    for p in range(1, powers + 1):
        power = power * unit
        rows = torch.einsum("ncl,nl->nc", power, power.sum(dim=1))
        roots.append(rows.sign() * rows.abs().pow(1 / p))
    return (torch.stack(roots, dim=2) * scale.square()).float()
