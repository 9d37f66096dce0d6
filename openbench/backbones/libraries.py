"""Classifiers of timm and torchvision as backbones, with released weights, your own, or random ones."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench import _compat, paths
from openbench.backbones.anatomy import Anatomy, Layout, choose_stages, last_linear, output_sides
from openbench.backbones.base import HeadKind, Precision
from openbench.backbones.checkpoints import SUFFIXES, find_weights, read_weights
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError, available

DEFAULT = "default"  # weights: the ones that the library takes where it is given no name
Tokens = Literal["cls", "patch_mean", "cls+patch_mean", "cls_last4", "cls_last4+patch_mean"]
INSIDE = "vit."  # what the names of the transformer's weights begin with
_FILTERS = ("nearest", "bilinear", "bicubic")
_CONTAINERS = ("features", "trunk_output", "blocks")
_PUBLISHED_CLASSES = 1000


def chosen_preprocess(
    preprocess: Preprocess | Literal["preset"] | None, preset: Callable[[], Preprocess], where: str
) -> Preprocess:
    """Return the preset, which some libraries cannot express, if the config says so, else the preprocessing it gives.

    Raises:
        ConfigError: no preprocessing, or another word.
    """
    if isinstance(preprocess, Preprocess):
        return preprocess
    if preprocess == "preset":
        return preset()
    raise ConfigError(f"{where}.preprocess: found {preprocess!r} — allowed: 'preset', or a node with a Preprocess")


def chosen_classes(num_classes: int | None, published: int, released: bool) -> int:
    """Return the number of classes: the published one for released weights, else the config's; 0 stays 0.

    Released weights keep their classes whatever the benchmark has: a method that reads features needs none of them.
    """
    return published if num_classes is None or (released and num_classes) else num_classes


def chosen_weights(weights: str | None, names: Iterable[str], where: str) -> str | Path | None:
    """Return the released name or the file that `weights` stands for; None = random weights.

    Raises:
        ConfigError: neither a released name nor the path of a file.
        CheckpointError: the file does not exist.
    """
    released = list(names)
    if weights is None or weights in released:
        return weights
    if "/" in weights or Path(weights).suffix in SUFFIXES:
        return find_weights(weights)
    allowed = f"a released name ({available(released, weights)}), a file ({', '.join(SUFFIXES)}), or null"
    raise ConfigError(f"{where} has no weights '{weights}' — allowed: {allowed} for random weights")


def load_file(
    backbone: NetworkBackbone, file: Path, sha256: str | None, without: Sequence[str] = ()
) -> NetworkBackbone:
    """Load a file of weights and return the backbone.

    Args:
        backbone: receives the weights.
        file: a state dict.
        sha256: the hash that the file must have; None = any.
        without: names of the classifiers in the file that the network does not have.
    """
    dropped = tuple(f"{name}." for name in without)
    state = {key: value for key, value in read_weights(file, sha256).items() if not key.startswith(dropped)}
    return backbone.load_state(_on_grid(state, getattr(backbone.network, "vit", backbone.network)), f"'{file}'")


def _on_grid(state: dict[str, Tensor], vit: Any) -> dict[str, Tensor]:
    """Weights of a file, position embeddings (1, t, d) resampled to a transformer's grid as timm does for released."""
    old, new, grid = state.get("pos_embed"), getattr(vit, "pos_embed", None), ()
    if old is not None and new is not None and old.shape != new.shape and old.shape[::2] == new.shape[::2]:
        grid = getattr(getattr(vit, "patch_embed", None), "grid_size", ())
    prefix = new.shape[1] - math.prod(grid) if grid else 0
    if not grid or math.isqrt(max(0, old.shape[1] - prefix)) ** 2 != old.shape[1] - prefix:
        return state
    resample = _compat.library("timm").layers.resample_abs_pos_embed
    return state | {"pos_embed": resample(old, grid, num_prefix_tokens=prefix)}


@contextmanager
def fetching(what: str) -> Iterator[None]:
    """Say what to do where released weights cannot be loaded.

    Raises:
        CheckpointError: they cannot.
    """
    try:
        yield
    except Exception as error:  # huggingface_hub raises many kinds, from several packages
        way = "fetch the file elsewhere, put it into a data root and set backbone.weights=weights/<file>"
        raise CheckpointError(f"weights of {what} cannot be loaded ({error!r:.200}) — {way}") from error


def crop_preprocess(settings: Mapping[str, Any], where: str) -> Preprocess:
    """Return the Preprocess of timm's data settings: input_size, crop_pct, crop_mode, interpolation, mean, std.

    Raises:
        ConfigError: an input that is not square, or a crop mode or filter that Preprocess cannot express.
    """
    height, width = settings["input_size"][-2:]
    mode, interpolation = settings.get("crop_mode", "center"), settings["interpolation"]
    if height != width or mode not in ("center", "squash") or interpolation not in _FILTERS:
        found = f"input {height}×{width}, crop mode '{mode}', filter '{interpolation}'"
        raise ConfigError(f"{where}: its preset ({found}) cannot be expressed — give preprocess explicitly")
    scaled = math.floor(height / settings.get("crop_pct", 1.0))
    resize = scaled if mode == "center" else (scaled, scaled)
    return Preprocess(resize, height, tuple(settings["mean"]), tuple(settings["std"]), interpolation)


def stages(module: nn.Module, prefix: str = "") -> tuple[dict[str, str], Layout, int]:
    """Return the stages of a timm network, their layout and the number of tokens before the patches."""
    info = [(prefix + part["module"], part["reduction"]) for part in getattr(module, "feature_info", None) or ()]
    if not info:
        return {}, "nchw", 0
    if len({reduction for _, reduction in info}) == 1:
        return choose_stages(info), "tokens", int(getattr(module, "num_prefix_tokens", 0))
    return choose_stages(info), "nhwc" if getattr(module, "output_fmt", "") == "NHWC" else "nchw", 0


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

    def preset() -> Preprocess:
        return crop_preprocess(timm.data.resolve_data_config(pretrained_cfg=dict(published)), where)

    backbone = NetworkBackbone(
        name if tokens is None else f"{name}_{tokens}",
        f"timm {base}, {classes} classes, {sorted(settings.items())}" + (f", tokens {tokens}" if tokens else ""),
        (lambda: _with_linear(make())) if tokens is None else lambda: TokenFeatures(make(), tokens, where),
        timm_anatomy if tokens is None else lambda module: Anatomy("head", *stages(module.vit, INSIDE)),  # type: ignore[arg-type]
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


def _with_linear(module: Any) -> nn.Module:
    """A timm network; its classifier is nn.Linear where timm's is a 1×1 convolution of pooled features, as of BiT."""
    old: Any = getattr(module, "head", None)
    if getattr(old, "use_conv", False):
        pool, layers = old.global_pool.pool_type, _compat.library("timm").layers
        module.head = layers.ClassifierHead(module.num_features, module.num_classes, pool, module.drop_rate)
    return module


def timm_anatomy(module: nn.Module) -> Anatomy:
    """Return where a timm classifier's parts are, from what timm itself says about it.

    Raises:
        ConfigError: it has a classifier that is not a single linear one.
    """
    head = module.get_classifier()  # type: ignore[operator]
    names = {id(part): name for name, part in module.named_modules()}
    if not isinstance(head, nn.Linear | nn.Identity):
        raise ConfigError(f"timm's {type(module).__name__}: its classifier is {type(head).__name__}, not one nn.Linear")
    return Anatomy(names[id(head)], *stages(module))


class TokenFeatures(nn.Module):
    """A vision transformer whose features are tokens side by side, each after the final normalisation.

    `cls` is the class token of the last block, `cls_last4` those of the last four blocks, `patch_mean` the mean of the
    last block's patch tokens; register tokens are left out.

    Reference: Caron et al., ICCV 2021, arXiv 2104.14294 (cls_last4, and cls+patch_mean); Oquab et al., TMLR 2024,
        arXiv 2304.07193 (these and cls_last4+patch_mean).
    """

    def __init__(self, vit: Any, tokens: Tokens, where: str) -> None:
        """Check that it has the tokens.

        Args:
            vit: the transformer as timm makes it, without a classifier.
            tokens: which.
            where: the backbone, for messages.

        Raises:
            ConfigError: it is not a transformer, or lacks a class token or enough blocks.
        """
        super().__init__()
        self.vit, self.tokens = vit, tokens
        self.head = nn.Identity()
        blocks, problem = getattr(vit, "blocks", None), ""
        if blocks is None or not hasattr(vit, "forward_intermediates") or not hasattr(vit, "num_prefix_tokens"):
            problem = f"{type(vit).__name__} is not a vision transformer, so it has no tokens"
        elif "cls" in tokens and getattr(vit, "cls_token", None) is None:
            problem = "this model has no class token (allowed: patch_mean)"
        elif "cls_last4" in tokens and len(blocks) < 4:
            problem = f"the model has {len(blocks)} blocks, 4 are needed"
        if problem:
            raise ConfigError(f"{where}: tokens={tokens}: {problem} — or leave tokens null for the model's own pooling")

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) to features (n, d)."""
        last = 4 if "cls_last4" in self.tokens else 1
        outputs = self.vit.forward_intermediates(
            images, indices=last, norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        # Without a class token there are patches alone.
        layers = [layer if isinstance(layer, tuple) else (layer, None) for layer in outputs]
        parts = [prefix[:, 0] for _, prefix in layers] if "cls" in self.tokens else []
        parts += [layers[-1][0].mean(dim=1)] * ("patch_mean" in self.tokens)
        return self.head(torch.cat(parts, dim=1))


def torchvision_model(
    name: str,
    model: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["preset"] | None = None,
    precision: Precision = "fp32",
    head: HeadKind | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkBackbone:
    """Return a torchvision classifier as a backbone.

    Args:
        name: what users type after `backbone=`.
        model: torchvision's name, e.g. `resnet50`.
        weights: torchvision's name of released weights, e.g. `IMAGENET1K_V1` or `default` (from the data roots,
            `weights/<file>`, else torch hub's cache, else downloaded); or your own file; null = random weights.
        sha256: the hash that the file must have; released files are also checked against the digits in their name.
        num_classes: c; that of released weights, else the benchmark's.
        preprocess: `preset` = as torchvision publishes the model; null = the benchmark's.
        precision: see NetworkBackbone.
        head: a classifier to fit on the features, in place of its own: `linear_probe`, `nearest_mean`, `knn`.
        options: further arguments of torchvision's constructor.

    Raises:
        ConfigError: unknown model or weights.
        CheckpointError: weights that are missing or do not fit.
    """
    models, where = _compat.library("torchvision").models, f"backbone '{name}'"
    known = models.list_models(module=models)
    if model not in known:
        raise ConfigError(f"{where}: torchvision has no classifier '{model}' — nearest: {available(known, model)}")
    published = models.get_model_weights(model)
    names = {**published.__members__, DEFAULT: published.DEFAULT}
    source = chosen_weights(weights, names, where)
    files = {one.url.rsplit("/", 1)[-1]: one for one in published}  # your own may be a released one
    released = names[source] if isinstance(source, str) else files.get(getattr(source, "name", ""))
    crop = chosen_preprocess(preprocess, partial(_preset, released or published.DEFAULT), where)
    settings = dict(options or {})
    # What torchvision itself sets with released weights.
    if released is not None and model in ("googlenet", "inception_v3"):
        settings.setdefault("transform_input", True)
    if released is not None and published.__name__.startswith("ViT_"):
        settings.setdefault("image_size", released.meta["min_size"][0])
    classes = chosen_classes(num_classes, _PUBLISHED_CLASSES, released is not None) if head is None else 0
    make = partial(models.get_model, model, weights=None, num_classes=classes or _PUBLISHED_CLASSES, **settings)

    def headless() -> nn.Module:
        module = make()
        module.set_submodule(last_linear(module), nn.Identity())
        return module

    backbone = NetworkBackbone(
        name,
        f"torchvision {model}, {classes} classes, {sorted(settings.items())}",
        headless if head else make,
        partial(torchvision_anatomy, p=crop, kind=nn.Identity if head else nn.Linear),
        preprocess=crop,
        precision=precision,
        rename=_renamed,
    )
    backbone.head_to_fit = head
    if source is None:
        return backbone
    file = source if isinstance(source, Path) else released_file(names[source].url)
    return load_file(backbone, file, sha256, (backbone.anatomy.head,) if head else ())


def torchvision_anatomy(module: nn.Module, p: Preprocess, kind: type[nn.Module] = nn.Linear) -> Anatomy:
    """Return where a torchvision classifier's parts are; without stages where its layout is not known.

    Args:
        module: the classifier.
        p: how images reach it.
        kind: of its classifier, the last module of this kind: nn.Identity where it has none.
    """
    models = _compat.library("torchvision").models
    head = last_linear(module, kind)
    if isinstance(module, models.VisionTransformer):
        blocks = [f"encoder.layers.{name}" for name, _ in module.encoder.layers.named_children()]
        return Anatomy(head, choose_stages([(block, 1) for block in blocks]), "tokens", prefix_tokens=1)
    children = dict(module.named_children())
    if "layer1" in children:
        return Anatomy(head, {f"stage{i}": f"layer{i}" for i in range(1, 5) if f"layer{i}" in children})
    layout: Layout = "nhwc" if isinstance(module, models.SwinTransformer) else "nchw"
    for container in _CONTAINERS:
        if container in children:
            parts = [f"{container}.{part}" for part, _ in children[container].named_children()]
            with suppress(RuntimeError):  # images that the network does not take: its `width` says so
                sides = output_sides(module, parts, (p.channels, p.crop, p.crop), layout)
                return Anatomy(head, choose_stages(list(zip(parts, sides, strict=True))), layout)
    return Anatomy(head)


def _renamed(key: str) -> str:
    """A key of a file as torchvision names it now: released DenseNets and vision transformers have older names."""
    key = re.sub(r"(denselayer\d+\.(?:norm|conv))\.(?=[12]\.)", r"\1", key)
    return key.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")


def released_file(url: str) -> Path:
    """Return the local file of released weights, downloaded only if neither a data root nor hub's cache has it.

    Raises:
        CheckpointError: no network, or content that does not begin with the hash digits in the file's name.
    """
    file_name = url.rsplit("/", 1)[-1]
    cached = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    path = next((place for place in paths.places(f"weights/{file_name}") if place.exists()), cached)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with fetching(f"torchvision at {url}"):
            torch.hub.download_url_to_file(url, str(path))
    stated = re.search(r"-([0-9a-f]{8,})\.", file_name)
    if stated is not None and not (sha256 := file_sha256(path)).startswith(stated[1]):
        found = f"have SHA-256 {sha256}, expected {stated[1]}… by the file's name"
        raise CheckpointError(f"weights '{path}' {found} — delete the file and fetch it again")
    return path


def _preset(weights: Any) -> Preprocess:
    p = weights.transforms()
    return Preprocess(p.resize_size[0], p.crop_size[0], tuple(p.mean), tuple(p.std), p.interpolation.value)
