"""Features of image patches in the space of CLIP's image features: the last attention with its mixing left out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class PatchSource:
    """Where in an image tower the features of patches come from.

    Args:
        module: whose input they are made of.
        project: makes features (n, p, d) of that input.
    """

    module: nn.Module
    project: Callable[[Tensor], Tensor]


def patch_source(visual: Any) -> PatchSource | None:
    """Return where an open_clip image tower has its patches; None for towers of other kinds.

    In a transformer the last block sees each token alone: its value instead of the attention's mixture, then the
    residual, the block's MLP, the final normalisation and the projection. In CLIP's ResNet the attention pooling does:
    each position's value, projected.

    Reference:
        Zhou et al.: Extract free dense labels from CLIP, ECCV 2022, arXiv:2112.01071 (values); Miyai et al.: LoCoOp,
        NeurIPS 2023, arXiv:2306.01293, and GL-MCM, IJCV 2025, arXiv:2304.04521, whose released towers keep the last
        block's residual and MLP.
    """
    pool: Any = getattr(visual, "attnpool", None)
    if all(isinstance(getattr(pool, part, None), nn.Linear) for part in ("v_proj", "c_proj")):
        return PatchSource(pool, lambda maps: pool.c_proj(pool.v_proj(maps.flatten(2).transpose(1, 2))))
    blocks: Any = getattr(getattr(visual, "transformer", None), "resblocks", None)
    usual = blocks is not None and isinstance(getattr(blocks[-1], "attn", None), nn.MultiheadAttention)
    if not usual or getattr(visual, "attn_pool", None) is not None or not hasattr(visual, "ln_post"):
        return None
    return PatchSource(blocks[-1], lambda tokens: _projected(visual, blocks[-1], tokens))


def _projected(visual: Any, block: Any, tokens: Tensor) -> Tensor:
    """The patch tokens behind the last block without mixing, normalised and projected, (n, p, d)."""
    x = tokens if visual.transformer.batch_first else tokens.transpose(0, 1)
    width, attention = x.shape[-1], block.attn
    with torch.no_grad():
        bias = None if attention.in_proj_bias is None else attention.in_proj_bias[2 * width :]
        values = functional.linear(block.ln_1(x), attention.in_proj_weight[2 * width :], bias)
        x = x + block.ls_1(attention.out_proj(values))
        x = x + block.ls_2(block.mlp(block.ln_2(x)))
        x = visual.ln_post(x)[:, 1:]  # without the class token
        projected: Tensor = x if visual.proj is None else x @ visual.proj
    return projected
