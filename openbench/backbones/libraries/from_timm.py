"""timm's classifiers as backbones, with released weights, your own, or random ones."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench import _compat
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import HeadKind
from openbench.backbones.device import Precision
from openbench.backbones.libraries.presets import (
    DEFAULT,
    PRESET,
    chosen_classes,
    chosen_preprocess,
    chosen_weights,
    crop_preprocess,
    fetching,
    load_file,
    stages,
)
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError, available

Tokens = Literal["cls", "patch_mean", "cls+patch_mean", "cls_last4", "cls_last4+patch_mean"]
INSIDE = "vit."  # what the names of the transformer's weights begin with


def timm_model(
    name: str,
    model: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    num_classes: Annotated[int, Ge(0)] | None = None,
    preprocess: Preprocess | Literal["preset"] | None = None,
    precision: Precision = "fp32",
    head: HeadKind | None = None,
    tokens: Tokens | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkBackbone:
    """Return a timm classifier as a backbone.

    Args:
        name: what users type after `backbone=`.
        model: timm's name, with the tag of its weights if wanted, e.g. `vit_small_patch16_224.augreg_in1k`.
        weights: the tag of released weights (from timm's cache, else downloaded), where `default` is the tag in the
            model's name or timm's own choice; or your own file; null = random weights.
        sha256: the hash that the file must have.
        num_classes: c; that of released weights, else the benchmark's; 0 = no classifier, features only.
        preprocess: `preset` = timm's data settings of the model; null = the benchmark's.
        precision: see NetworkBackbone.
        head: a classifier to fit on the features, in place of its own: `linear_probe`, `nearest_mean`, `knn`.
        tokens: which tokens of a vision transformer are the features, in place of what the model pools: `cls`,
            `patch_mean`, `cls_last4`, or one of the first and the second joined by `+`; it has no classifier then.
        options: further arguments of timm.create_model, e.g. {pad_type: same}.

    Raises:
        ConfigError: unknown model or weights, or a classifier that is not linear.
        CheckpointError: weights that are missing, cannot be loaded, or do not fit.
    """
    timm, where = _compat.library("timm"), f"backbone '{name}'"
    base, _, tag = model.partition(".")
    if not timm.is_model(base):
        raise ConfigError(f"{where}: timm has no model '{base}' — nearest: {available(timm.list_models(), base)}")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{base}.*")]
    chosen_weights(tag or None, tags, f"{where}: timm's {base}")
    source = chosen_weights(weights, [DEFAULT, *tags], f"{where}: timm's {base}")
    if isinstance(source, str) and source != DEFAULT:
        if tag not in ("", source):
            raise ConfigError(f"{where}: model '{model}' names weights other than '{weights}' — leave out one of them")
        tag = source
    full = f"{base}.{tag}" if tag else base
    published = timm.get_pretrained_cfg(full).to_dict()
    settings = dict(options or {})
    classes = 0
    if head is None and tokens is None:
        classes = chosen_classes(num_classes, published.get("num_classes", 1000), isinstance(source, str))
    make = partial(timm.create_model, full, pretrained=False, num_classes=classes, **settings)
    # Looked up only where it is needed, since some presets cannot be expressed.
    preset = None
    if preprocess == PRESET:
        preset = crop_preprocess(timm.data.resolve_data_config(pretrained_cfg=dict(published)), where)
    backbone = NetworkBackbone(
        name if tokens is None else f"{name}_{tokens}",
        f"timm {base}, {classes} classes, {sorted(settings.items())}" + (f", tokens {tokens}" if tokens else ""),
        make if tokens is None else partial(with_tokens, make, tokens, where),
        anatomy if tokens is None else lambda module: Anatomy("head", *stages(module.vit, INSIDE)),  # type: ignore[arg-type]
        preprocess=chosen_preprocess(preprocess, preset, where),
        precision=precision,
        rename=str if tokens is None else INSIDE.__add__,
    )
    backbone.head_to_fit = head
    if isinstance(source, Path):
        classifier = published.get("classifier") or ()
        dropped = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        return load_file(backbone, source, sha256, () if classes else dropped)
    if source is None:
        return backbone
    with fetching(f"timm's '{full}'"):
        released = timm.create_model(full, pretrained=True, num_classes=classes, **settings).state_dict()
    return backbone.load_state(released, f"of timm's '{full}'")


def anatomy(module: nn.Module, prefix: str = "") -> Anatomy:
    """Return where a timm classifier's parts are, from what timm itself says about it.

    Args:
        module: the classifier.
        prefix: of its dotted names, where it is part of a larger network.

    Raises:
        ConfigError: it has a classifier that is not a single linear one.
    """
    head = module.get_classifier()  # type: ignore[operator]
    names = {id(part): name for name, part in module.named_modules()}
    if not isinstance(head, nn.Linear | nn.Identity):
        raise ConfigError(f"timm's {type(module).__name__}: its classifier is {type(head).__name__}, not one nn.Linear")
    return Anatomy(names[id(head)], *stages(module, prefix))


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
        outputs = self.vit.forward_intermediates(  # type: ignore[operator]
            images, indices=last, norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        # Without a class token there are patches alone.
        layers = [layer if isinstance(layer, tuple) else (layer, None) for layer in outputs]
        parts = [prefix[:, 0] for _, prefix in layers] if "cls" in self.tokens else []
        parts += [layers[-1][0].mean(dim=1)] * ("patch_mean" in self.tokens)
        return self.head(torch.cat(parts, dim=1))


def with_tokens(make: Callable[[], Any], tokens: Tokens, where: str) -> "TokenFeatures":
    """Return a transformer with the chosen tokens as features.

    Args:
        make: returns the transformer as timm makes it, without a classifier.
        tokens: which.
        where: the backbone, for messages.

    Raises:
        ConfigError: it is not a transformer, or lacks a class token or enough blocks.
    """
    vit = make()
    blocks = getattr(vit, "blocks", None)
    problem = ""
    if blocks is None or not hasattr(vit, "forward_intermediates") or not hasattr(vit, "num_prefix_tokens"):
        problem = f"{type(vit).__name__} is not a vision transformer, so it has no tokens"
    elif "cls" in tokens and getattr(vit, "cls_token", None) is None:
        problem = "this model has no class token (allowed: patch_mean)"
    elif "cls_last4" in tokens and len(blocks) < 4:
        problem = f"the model has {len(blocks)} blocks, 4 are needed"
    if problem:
        raise ConfigError(f"{where}: tokens={tokens}: {problem} — or leave tokens null for the model's own pooling")
    return TokenFeatures(vit, tokens)
