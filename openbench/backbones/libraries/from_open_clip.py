"""open_clip's models as zero-shot classifiers: text embeddings are the head, so every method works on them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench import _compat, paths
from openbench.backbones.anatomy import Anatomy, choose_stages
from openbench.backbones.base import HeadKind, PromptKind
from openbench.backbones.checkpoints import apply_weights, find_file, read_weights
from openbench.backbones.device import Precision
from openbench.backbones.heads.prompts import PromptLearning
from openbench.backbones.libraries.presets import chosen_preprocess, chosen_weights, crop_preprocess, fetching, stages
from openbench.backbones.libraries.zero_shot import OpenClipText, ZeroShotBackbone, no_tower, without_no
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.core.request import Tower, check_templates
from openbench.errors import ConfigError, available, check_choice

DEFAULT_TEMPLATES = ("a photo of a {}.",)
OPENAI = "openai_imagenet"
# What open_clip calls the published prompts: the 80 of CLIP's ImageNet figures, and the 7 best of them.
_TEMPLATES = {OPENAI: "OPENAI_IMAGENET_TEMPLATES", "simple_imagenet": "SIMPLE_IMAGENET_TEMPLATES"}
# CLIP's prompts for CIFAR-10 and CIFAR-100, in the order in which they were published.
_CIFAR = "openai_cifar"
_KINDS = ("", "blurry ", "black and white ", "low contrast ", "high contrast ", "bad ", "good ")
_CIFAR_TEMPLATES = tuple(
    template
    for article in ("a", "the")
    for template in (
        *(f"a {kind}photo of {article} {{}}." for kind in _KINDS),
        *(f"a photo of {article} {size} {{}}." for size in ("small", "big")),
    )
)


class ZeroShot(nn.Module):
    """Image tower, L2 normalisation, and a linear head that holds the scaled text embeddings.

    Features are unit vectors; logits are scale · cosine(image, text) (+ the model's logit bias, if it has one).
    """

    def __init__(self, visual: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.visual = visual
        self.head = nn.Linear(feature_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) to logits (n, c)."""
        return self.head(functional.normalize(self.visual(images), dim=-1))


def open_clip_model(
    name: str,
    model: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    classes: Sequence[str] | str | None = None,
    templates: Sequence[str] | str = DEFAULT_TEMPLATES,
    benchmark_classes: Sequence[str] | None = None,
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["preset"] | None = "preset",
    precision: Precision = "fp32",
    head: HeadKind | PromptKind | None = None,
    prompt_learning: PromptLearning | None = None,
) -> NetworkBackbone:
    """Return an open_clip model as a zero-shot classifier of named classes.

    Args:
        name: what users type after `backbone=`.
        model: open_clip's name, e.g. `ViT-B-32`.
        weights: open_clip's tag of released weights, e.g. `laion2b_s34b_b79k` (from its cache, else downloaded); or a
            file with the whole model's weights, and those of CLIPN's second text tower, if it has one; null = random
            weights, without a text tower.
        sha256: the hash that the file must have.
        classes: class names in label order, underscores read as spaces; the benchmark's where the yaml leaves it null;
            `openai_imagenet` = the names that CLIP's authors cleaned.
        templates: prompts with one `{}` for the class name; their normalised embeddings are averaged.
            `openai_imagenet` = the 80 published ones, `simple_imagenet` = 7 of them, `openai_cifar` = CIFAR's 18; or a
            text file with one a line.
        benchmark_classes: for which of ImageNet's classes the cleaned names are wanted; null = the benchmark's.
        num_classes: must equal the number of classes if given.
        preprocess: `preset` = open_clip's for these weights.
        precision: see NetworkBackbone.
        head: `coop` or `locoop` = a classifier of prompts learnt on ID training features; `linear_probe`,
            `nearest_mean` or `knn` = one fitted on the features of the image tower; null = that of the templates.
        prompt_learning: how these are learnt; null = as in the papers.

    Raises:
        ConfigError: unknown model, weights or names, no classes, a template without `{}`, or a prompt that is longer
            than the model's context.
        CheckpointError: weights that are missing, cannot be loaded, or do not fit.
    """
    library, where = _compat.library("open_clip"), f"backbone '{name}'"
    if model not in (known := library.list_models()):
        raise ConfigError(f"{where}: open_clip has no model '{model}' — nearest: {available(known, model)}")
    source = chosen_weights(weights, library.list_pretrained_tags_by_model(model), f"{where}: open_clip's {model}")
    names = class_names_of(library, where, classes, benchmark_classes)
    if not names or num_classes not in (None, len(names)):
        raise ConfigError(
            f"{where} has {len(names)} class names, needed: {num_classes or 'two or more'} — set backbone.classes to "
            "the names in label order"
        )
    chosen = templates_of(library, where, templates)
    state = read_weights(source, sha256) if isinstance(source, Path) else None
    whole = _whole(library, model, source if isinstance(source, str) else None)
    second_tower: dict[str, Tensor] = {}
    if state is not None:
        state, second_tower = without_no(state)
        apply_weights(whole, state, f"'{source}'")
    settings = library.get_model_preprocess_cfg(whole)
    dim = library.get_model_config(model)["embed_dim"]
    backbone = ZeroShotBackbone(
        name,
        f"open_clip {model} zero-shot, {len(names)} classes",
        partial(_random, library, model, dim, len(names)),
        anatomy,
        preprocess=chosen_preprocess(preprocess, _preset(settings, where), where),
        precision=precision,
    )
    backbone.head_to_fit, backbone.prompt_learning = head, prompt_learning or PromptLearning()
    if source is None:
        if head is not None:
            raise ConfigError(f"{where}: head={head} is fitted on features, and weights is null — name weights")
        return backbone
    text = OpenClipText(whole, _tokenizer(model), model, names, tuple(chosen))
    weight, bias = text_head(text)
    visual = {f"visual.{key}": value for key, value in whole.visual.state_dict().items()}
    backbone.load_state({**visual, "head.weight": weight, "head.bias": bias}, f"of open_clip's '{model}'")
    towers: dict[Tower, OpenClipText] = {"text": text}
    if second_tower:
        towers["no"] = replace(text, model=no_tower(whole, second_tower, f"'{source}', its `no` tower"))
    return backbone.with_texts(towers)


def text_head(text: OpenClipText) -> tuple[Tensor, Tensor]:
    """Return weight (c, d) and bias (c,) of the zero-shot head: exp(logit scale) × unit mean prompt embeddings.

    Args:
        text: the model's text side, with its classes and templates.

    Raises:
        ConfigError: a prompt that is longer than the model's context.

    Reference:
        Radford et al.: Learning transferable visual models from natural language supervision, ICML 2021,
        arXiv:2103.00020.
    """
    prompts = [[template.format(name.replace("_", " ")) for template in text.templates] for name in text.classes]
    rows = [functional.normalize(text.embed(of_class).mean(dim=0), dim=-1) for of_class in prompts]
    weight, shift = torch.stack(rows) * text.model.logit_scale.detach().exp(), getattr(text.model, "logit_bias", None)
    return weight, torch.zeros(len(rows)) if shift is None else shift.detach().float().expand(len(rows)).clone()


def anatomy(module: nn.Module) -> Anatomy:
    """Return where the parts of a ZeroShot network are; without stages where the image tower's layout is not known."""
    visual: Any = module.visual
    if hasattr(visual, "trunk"):
        return Anatomy("head", *stages(visual.trunk, "visual.trunk."))
    if hasattr(visual, "layer1"):
        return Anatomy("head", {f"stage{i}": f"visual.layer{i}" for i in range(1, 5)})
    blocks = getattr(getattr(visual, "transformer", None), "resblocks", None)
    if blocks is None:
        return Anatomy("head")
    names = [(f"visual.transformer.resblocks.{name}", 1) for name, _ in blocks.named_children()]
    layout: Literal["tokens", "tokens_first"] = "tokens" if visual.transformer.batch_first else "tokens_first"
    return Anatomy("head", choose_stages(names), layout, prefix_tokens=1)


@lru_cache(maxsize=4)
def _tokenizer(model: str) -> Any:
    """open_clip's tokenizer of a model: reading its vocabulary takes longer than building a small model."""
    return _compat.library("open_clip").get_tokenizer(model)


def _whole(library: Any, model: str, pretrained: str | None) -> Any:
    with _quiet(), fetching(f"open_clip's {model} '{pretrained}'") if pretrained else nullcontext():
        return library.create_model(model, pretrained=pretrained).eval()


def _random(library: Any, model: str, dim: int, classes: int) -> ZeroShot:
    with _quiet():
        return ZeroShot(library.create_model(model, pretrained=None, pretrained_text=False).visual, dim, classes)


def _preset(settings: dict[str, Any], where: str) -> Preprocess:
    size, mode = settings["size"], settings["resize_mode"]
    timms = {"input_size": (size, size) if isinstance(size, int) else size, "crop_mode": "center"}
    return crop_preprocess(settings | timms | ({"crop_mode": mode} if mode != "shortest" else {}), where)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without open_clip's warning that a model has random weights, which is what was asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def templates_of(library: Any, where: str, templates: Sequence[str] | str) -> list[str]:
    """Return the templates that a config lists or names, each with one `{}`.

    Args:
        library: open_clip.
        where: the backbone, for messages.
        templates: a list; `openai_imagenet` (80), `simple_imagenet` (7) or `openai_cifar` (18); or the path of a text
            file with one template a line, absolute or below the working folder or a data root.

    Raises:
        ConfigError: an unknown name, no template, or one without exactly one `{}`.

    Reference:
        Radford et al.: Learning transferable visual models from natural language supervision, ICML 2021,
        arXiv:2103.00020; the prompts and class names are in its released code.
    """
    if isinstance(templates, str) and not templates.endswith(".txt"):
        check_choice(f"{where}: templates", templates, (*_TEMPLATES, _CIFAR))
        if templates == _CIFAR:
            return list(_CIFAR_TEMPLATES)
        return [template("{}") for template in getattr(library, _TEMPLATES[templates])]
    if isinstance(templates, str):
        path = find_file(templates, f"{where}: templates", ConfigError)
        templates = _lines(path.read_text(encoding="utf-8-sig"))
    if not templates:
        raise ConfigError(f"{where}: templates are empty — give at least one, with {{}} for the class name")
    check_templates(templates, where)
    return list(templates)


def class_names_of(
    library: Any, where: str, classes: Sequence[str] | str | None, benchmark: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the class names for the prompts in label order.

    Args:
        library: open_clip.
        where: the backbone, for messages.
        classes: the names; or `openai_imagenet`: the names that CLIP's authors cleaned, for the benchmark's classes.
        benchmark: the classes of the benchmark in label order; read for `openai_imagenet`.

    Raises:
        ConfigError: an unknown name, or classes that are not ImageNet's.
    """
    if not isinstance(classes, str):
        return tuple(classes or ())
    check_choice(f"{where}: classes", classes, (OPENAI,))
    # Both lists are in the order of the WordNet ids, which is that of the labels.
    imagenet = _lines((paths.manifest_dir() / "imagenet1k" / "classes.txt").read_text(encoding="utf-8"))
    cleaned = dict(zip(imagenet, library.IMAGENET_CLASSNAMES, strict=True))
    others = [name for name in benchmark or () if name not in cleaned]
    if others or not benchmark:
        raise ConfigError(
            f"{where}: classes '{classes}' are names for ImageNet's classes, found "
            f"{available(others) if others else 'no benchmark'} — leave backbone.classes null for the benchmark's own "
            "names, or list the names in label order"
        )
    return tuple(cleaned[name] for name in benchmark)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
