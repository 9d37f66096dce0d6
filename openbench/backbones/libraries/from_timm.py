"""timm's classifiers as backbones: released weights with their data settings, your own weights, or untrained."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, get_args

import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench import _compat
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import HeadKind
from openbench.backbones.checkpoints import find_weights, read_weights
from openbench.backbones.device import Precision
from openbench.backbones.libraries.presets import chosen_classes, chosen_preprocess, crop_preprocess, stages
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.errors import CheckpointError, ConfigError, did_you_mean

Tokens = Literal["cls", "patch_mean", "cls+patch_mean", "cls_last4", "cls_last4+patch_mean"]
INSIDE = "vit."  # what the names of the transformer's weights begin with


def timm_model(
    name: str,
    model: str,
    *,
    pretrained: bool = False,
    checkpoint: str | None = None,
    sha256: str | None = None,
    num_classes: Annotated[int, Ge(0)] | None = None,
    preprocess: Preprocess | Literal["preset"] | None = None,
    precision: Precision = "fp32",
    compile: bool = False,
    head: HeadKind | None = None,
    tokens: Tokens | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkBackbone:
    """Return a timm classifier as a backbone.

    Args:
        name: what users type after `backbone=`.
        model: timm's name, with the weights' tag if wanted, e.g. `vit_small_patch16_224.augreg_in1k`.
        pretrained: load the weights that timm publishes under this name (from its cache, else downloaded).
        checkpoint: file with your own weights instead, searched in the data roots.
        sha256: the hash that this file must have.
        num_classes: c; the weights' where they are released, else the benchmark's; 0 = no classifier, features only.
        preprocess: `preset` = timm's data settings of the model; null = the benchmark's.
        precision: see NetworkBackbone.
        compile: see NetworkBackbone.
        head: a classifier to fit on the features, in place of one of its own: `linear_probe`, `nearest_mean`, `knn`.
        tokens: which tokens of a vision transformer are the features, in place of what the model pools: `cls`,
            `patch_mean`, `cls_last4`, or one of the first and the second joined by `+`; it has no classifier then.
        options: further arguments of timm.create_model, e.g. {pad_type: same}.

    Raises:
        ConfigError: unknown model, a classifier that is not linear, or one beside `head` or `tokens`.
        CheckpointError: weights that are missing, cannot be had, or do not fit.
    """
    timm = _compat.library("timm")
    if not timm.is_model(model.split(".")[0]):
        raise ConfigError(
            f"backbone '{name}': timm has no model '{model}'{did_you_mean(model, timm.list_models())} — "
            "timm.list_models() names them all"
        )
    if pretrained and checkpoint is not None:
        raise ConfigError(f"backbone '{name}': pretrained and checkpoint both given — choose one")
    settings = timm.get_pretrained_cfg(model).to_dict()
    published = settings.get("num_classes", 1000)
    where = f"backbone '{name}'"
    given = dict(options or {})
    own = head is None and tokens is None
    classes = chosen_classes(num_classes, published, pretrained) if own else 0
    make = partial(timm.create_model, model, pretrained=False, num_classes=classes, **given)
    backbone = NetworkBackbone(
        name if tokens is None else f"{name}_{tokens}",
        f"timm {model.split('.')[0]}, {classes} classes, {sorted(given.items())}"
        + (f", tokens {tokens}" if tokens else ""),
        make if tokens is None else partial(with_tokens, make, tokens, where),
        anatomy if tokens is None else anatomy_of_tokens,  # type: ignore[arg-type]
        preprocess=chosen_preprocess(preprocess, _preset(timm, settings, preprocess, where), where),
        precision=precision,
        compile=compile,
        rename=str if tokens is None else INSIDE.__add__,
    )
    backbone.head_to_fit = head
    if checkpoint is not None and classes:
        return backbone.load(find_weights(checkpoint), sha256)
    if checkpoint is not None:
        file = find_weights(checkpoint)
        return backbone.load_state(_without(settings.get("classifier"), read_weights(file, sha256)), f"'{file}'")
    if not pretrained:
        return backbone
    return backbone.load_state(_published(timm, model, {**given, "num_classes": classes}), f"of timm's '{model}'")


def _without(classifier: str | Sequence[str] | None, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without those of the classifier that a file may hold and a network without one does not have."""
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    return {key: value for key, value in state.items() if not key.startswith(tuple(f"{name}." for name in names))}


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
        raise ConfigError(
            f"timm's {type(module).__name__}: its classifier is {type(head).__name__} — one nn.Linear expected, since "
            "methods need logits = W·features + b — choose another model"
        )
    return Anatomy(names[id(head)], *stages(module, prefix))


def _preset(timm: Any, settings: Mapping[str, Any], wanted: object, where: str) -> Preprocess | None:
    """The model's own preprocessing; looked up only if asked for, since some presets cannot be expressed."""
    if wanted != "preset":
        return None
    return crop_preprocess(timm.data.resolve_data_config(pretrained_cfg=dict(settings)), where)


def _published(timm: Any, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        state: dict[str, Any] = timm.create_model(model, pretrained=True, **options).state_dict()
    except Exception as error:  # huggingface_hub raises many kinds, from several packages
        raise CheckpointError(
            f"weights of timm's '{model}' cannot be had — {type(error).__name__}: {str(error)[:200]} — fetch the file "
            "elsewhere, put it into a data root and set checkpoint=weights/<file> with pretrained=false"
        ) from error
    return state


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


def anatomy_of_tokens(module: TokenFeatures) -> Anatomy:
    """Return where the parts of a network of tokens are."""
    return Anatomy("head", *stages(module.vit, INSIDE))
