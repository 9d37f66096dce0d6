"""Which tokens of a timm vision transformer are its features, named as their papers do."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.libraries.stages import stages
from openbench.errors import ConfigError

Tokens = Literal["cls", "patch_mean", "cls+patch_mean", "cls_last4", "cls_last4+patch_mean"]
INSIDE = "vit."  # what the names of the transformer's weights begin with


class TokenFeatures(nn.Module):
    """A vision transformer whose features are tokens side by side, each after the final normalisation.

    `cls` is the class token of the last block, `cls_last4` those of the last four blocks, `patch_mean` the mean of the
    last block's patch tokens; register tokens are left out.

    Reference: Caron et al., ICCV 2021, arXiv 2104.14294 (cls_last4, and cls+patch_mean); Oquab et al., TMLR 2024,
        arXiv 2304.07193 (these and cls_last4+patch_mean).
    """

    def __init__(self, vit: nn.Module, tokens: Tokens) -> None:
        super().__init__()
        self.vit, self.tokens = vit, tokens
        self.head = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) to features (n, d)."""
        last = 4 if "cls_last4" in self.tokens else 1
        found = self.vit.forward_intermediates(  # type: ignore[operator]
            images, indices=last, norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        # Without a class token there are patches alone.
        layers = [layer if isinstance(layer, tuple) else (layer, None) for layer in found]
        parts = [prefix[:, 0] for _, prefix in layers] if "cls" in self.tokens else []
        parts += [layers[-1][0].mean(dim=1)] * ("patch_mean" in self.tokens)
        features: Tensor = self.head(torch.cat(parts, dim=1))
        return features


def with_tokens(vit: Any, tokens: Tokens, where: str) -> TokenFeatures:
    """Return a transformer with the chosen tokens as features.

    Args:
        vit: made by timm, without a classifier.
        tokens: which.
        where: the backbone, for messages.

    Raises:
        ConfigError: it is not a transformer, or lacks a class token or enough blocks.
    """
    blocks, chosen = getattr(vit, "blocks", None), ", ".join(get_args(Tokens))
    if blocks is None or not hasattr(vit, "forward_intermediates") or not hasattr(vit, "num_prefix_tokens"):
        raise ConfigError(
            f"{where}: tokens={tokens} — {type(vit).__name__} has no tokens — {chosen} are for vision transformers — "
            "leave tokens null for the features that the model pools itself"
        )
    if "cls" in tokens and getattr(vit, "cls_token", None) is None:
        raise ConfigError(
            f"{where}: tokens={tokens} — this model has no class token — allowed: patch_mean, or null for the features "
            "that the model pools itself"
        )
    if "cls_last4" in tokens and len(blocks) < 4:
        raise ConfigError(f"{where}: tokens={tokens} — the model has {len(blocks)} blocks — 4 are needed")
    return TokenFeatures(vit, tokens)


def anatomy(module: TokenFeatures) -> Anatomy:
    """Return where the parts of such a network are."""
    return Anatomy("head", *stages(module.vit, INSIDE))
