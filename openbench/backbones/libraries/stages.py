"""The stages of a timm network, from what timm itself says about it."""

from torch import nn

from openbench.backbones.anatomy import Layout, choose_stages


def stages(module: nn.Module, prefix: str = "") -> tuple[dict[str, str], Layout, int]:
    """Return the stages of a timm network, their layout and the number of tokens before the patches."""
    info = [(prefix + part["module"], part["reduction"]) for part in getattr(module, "feature_info", None) or ()]
    if not info:
        return {}, "nchw", 0
    if len({reduction for _, reduction in info}) == 1:
        return choose_stages(info), "tokens", int(getattr(module, "num_prefix_tokens", 0))
    return choose_stages(info), "nhwc" if getattr(module, "output_fmt", "") == "NHWC" else "nchw", 0
