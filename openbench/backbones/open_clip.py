"""open_clip's models as backbones: images give features, and prompts embeddings in their space: a zero-shot head."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from openbench import _compat, paths
from openbench.backbones.anatomy import Anatomy, choose_stages
from openbench.backbones.base import HeadKind, Outputs, Precision, PromptKind
from openbench.backbones.checkpoints import apply_weights, find_file, read_weights
from openbench.backbones.heads import PromptLearning
from openbench.backbones.libraries import chosen_preprocess, chosen_weights, crop_preprocess, fetching, stages
from openbench.backbones.network import NetworkBackbone, evaluating, state_sha256
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request, Tower, check_templates
from openbench.digest import digest
from openbench.errors import ConfigError, NotApplicableError, available, check_choice

_VERSION = 1  # raised when embeddings of equal weights and prompts change
_CLASSES = 64  # prompts with learnt vectors in a pass
_SHOWN = 100  # letters of a prompt in a message
_PROMPT = "prompt_no"
_NEGATED = ("transformer_no.", "token_embedding_no.", "positional_embedding_no", "ln_final_no.", "text_projection_no")
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


@dataclass
class OpenClipText:
    """The text side of an open_clip model.

    Args:
        model: open_clip's, with weights; its image tower is not used and may be gone.
        tokenizer: the model's.
        name: open_clip's name of the model.
        classes: the names of the ID classes in label order.
        templates: the prompts that the classifier was made with.
        device: where prompts are embedded.
    """

    model: Any
    tokenizer: Any
    name: str
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        """Digest the weights once."""
        weights = {k: v for k, v in self.model.state_dict().items() if not k.startswith("visual.")}
        self.digest = digest({"version": _VERSION, "model": self.name, "weights": state_sha256(weights)})

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Return unit embeddings (m, d) float32 of m texts, on the CPU.

        Raises:
            ConfigError: a text that is longer than the model's context.
        """
        tokens, cut = tokens_and_cut(self.tokenizer, prompts)
        if cut is not None:
            prompt = prompts[cut] if len(prompts[cut]) <= _SHOWN else f"{prompts[cut][:_SHOWN]}…"
            raise ConfigError(f"prompt {prompt!r} is too long for the tower ({tokens.shape[1]} tokens) — shorten it")
        with evaluating(self.model), torch.no_grad():
            embeddings = self.model.encode_text(tokens.to(self.device))
        return functional.normalize(embeddings.float(), dim=-1).cpu()

    @property
    def width(self) -> int:
        """The length of the vectors that stand for tokens.

        Raises:
            NotApplicableError: the tower's tokens cannot be replaced by vectors.
        """
        return int(self._tokens.weight.shape[1])

    @property
    def scale(self) -> float:
        """The factor of cosines in the model's softmax."""
        return float(self.model.logit_scale.detach().exp())

    def embed_context(self, context: Tensor) -> Tensor:
        """Return unit embeddings (c, d) of `[v1] … [vk] class.` for vectors (k, width), with gradients.

        Raises:
            NotApplicableError: prompts do not begin with a token of their own, so that vectors would replace words.
            ConfigError: the vectors and a class name do not fit in the model's context.
        """
        k, filler = len(context), "X"  # a token of its own in CLIP's vocabulary
        names = [name.replace("_", " ") for name in self.classes]
        tokens, cut = tokens_and_cut(self.tokenizer, [" ".join([filler] * k + [f"{name}."]) for name in names])
        if cut is not None:
            found = f"{k} vectors and the class name {names[cut]!r} exceed its {tokens.shape[1]} tokens"
            raise ConfigError(f"open_clip's {self.name}: {found} — choose a smaller prompt_learning.context")
        start, first = tokens[:, :1], tokens[:1, 1:2]
        if bool((start == first).any()) or bool((tokens[:, 1 : 1 + k] != first).any()):
            raise self._fixed()
        parts = torch.split(tokens, _CLASSES)
        if len(parts) == 1 or not torch.is_grad_enabled():
            return torch.cat([self._embedded(context, part) for part in parts])
        # What a backward pass needs of a thousand prompts takes tens of gigabytes: it is computed again, part by part.
        return torch.cat([checkpoint(self._embedded, context, part, use_reentrant=False) for part in parts])

    def _embedded(self, context: Tensor, tokens: Tensor) -> Tensor:
        """Unit embeddings (m, d) of tokens (m, length), vectors (k, width) in place of those after the start."""
        k = len(context)

        def replaced(_: nn.Module, __: tuple[Any, ...], rows: Tensor) -> Tensor:
            vectors = context.to(rows.dtype).expand(len(rows), -1, -1)
            return torch.cat([rows[:, :1], vectors, rows[:, 1 + k :]], dim=1)

        with self._tokens.register_forward_hook(replaced), evaluating(self.model):
            return functional.normalize(self.model.encode_text(tokens.to(self.device)).float(), dim=-1)

    @property
    def _tokens(self) -> nn.Embedding:
        """The module that makes vectors of tokens."""
        embedding = getattr(getattr(self.model, "text", self.model), "token_embedding", None)
        if not isinstance(embedding, nn.Embedding):
            raise self._fixed()
        return embedding

    def _fixed(self) -> NotApplicableError:
        return NotApplicableError(
            f"open_clip's {self.name}: its text tower's tokens cannot be replaced by learnt vectors — choose one of "
            "CLIP's own architectures, e.g. ViT-B-16, or backbone.head=null"
        )

    def to(self, device: torch.device) -> None:
        """Move the tower."""
        self.model.to(device)
        self.device = device


class ZeroShotBackbone(NetworkBackbone):
    """An image tower with a head made of text, and the text towers that can make others.

    Attributes:
        prompt_learning: how the prompts of `head_to_fit` are learnt.
    """

    prompt_learning = PromptLearning()

    def with_texts(self, towers: dict[Tower, OpenClipText]) -> Self:
        """Keep the text towers, which move with the network; return self."""
        for tower in towers.values():
            # The image tower is this network's by now: a second copy would double the memory.
            tower.model.visual = nn.Identity()
            tower.to(self.device)
        self.text_towers = MappingProxyType(dict(towers))
        return self

    @property
    def has_patches(self) -> bool:  # type: ignore[override]
        """Whether the image tower is of a kind whose patches can be projected."""
        return patch_source(self.network.visual) is not None

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names, with features of patches where it names them.

        Raises:
            NotApplicableError: a layer that this network does not have, or patches of an image tower of another kind.
        """
        if Field.PATCHES not in request.fields:
            return super().outputs(images, request)
        source = patch_source(self.network.visual)
        if source is None:
            lack = f"its image tower {type(self.network.visual).__name__} has no known projection of patches"
            raise NotApplicableError(f"backbone '{self.name}': {lack} — choose a method that reads features")
        projected: list[Tensor] = []
        part, project = source
        with part.register_forward_pre_hook(lambda _, inputs: projected.append(project(inputs[0]))):
            outputs = super().outputs(images, request)
        # With an input step, the pass that is read comes last.
        return replace(outputs, patches=functional.normalize(projected[-1].detach().float(), dim=-1).half())

    def to(self, device: torch.device) -> Self:
        """Move the network and its text towers; return self."""
        for tower in self.text_towers.values():
            tower.to(device)
        return super().to(device)


def patch_source(visual: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]] | None:
    """Return the part of an open_clip image tower whose input shows the patches, and what makes features of it.

    The features are (n, p, d). None for towers of other kinds.

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
        return pool, lambda maps: pool.c_proj(pool.v_proj(maps.flatten(2).transpose(1, 2)))
    blocks: Any = getattr(getattr(visual, "transformer", None), "resblocks", None)
    usual = blocks is not None and isinstance(getattr(blocks[-1], "attn", None), nn.MultiheadAttention)
    if not usual or getattr(visual, "attn_pool", None) is not None or not hasattr(visual, "ln_post"):
        return None
    return blocks[-1], lambda tokens: _projected(visual, blocks[-1], tokens)


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
        return x if visual.proj is None else x @ visual.proj


def tokens_and_cut(tokenizer: Any, prompts: Sequence[str]) -> tuple[Tensor, int | None]:
    """Return the tokens (m, context) of prompts, and the place of the first that is cut; None if all are whole.

    One more place for tokens changes nothing for a whole prompt and holds padding; if the prompt is cut, it holds a
    token, or moves the end. Padding cannot be told from other tokens otherwise: some tokenizers pad with their end.
    """
    tokens: Tensor = tokenizer(list(prompts))
    length = tokens.shape[1]
    longer: Tensor = tokenizer([*prompts, ""], context_length=length + 1)
    whole = (longer[:-1, :length] == tokens).all(dim=1) & (longer[:-1, length] == longer[-1, length])
    return tokens, None if bool(whole.all()) else int(whole.int().argmin())


def without_no(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of the model itself, and those of its `no` tower under the names of the first tower.

    CLIPN adds the mean of its learnt prompts (k, length, width) to the embeddings of all tokens. Positions are added to
    these too, so the mean becomes part of the positions. The second dictionary is empty where there is no such tower.

    Reference: Wang et al., ICCV 2023, arXiv:2308.12213; xmed-lab/CLIPN.
    """
    negated = {key: value for key, value in state.items() if key.startswith(_NEGATED)}
    plain = {key: value for key, value in state.items() if key not in negated and key != _PROMPT}
    renamed = {key.replace("_no", "", 1): value for key, value in negated.items()}
    if _PROMPT in state and "positional_embedding" in renamed:
        renamed["positional_embedding"] = renamed["positional_embedding"] + state[_PROMPT].mean(dim=0)
    return plain, renamed


def no_tower(model: Any, weights: Mapping[str, Tensor], where: str) -> Any:
    """Return a copy of a model whose text tower has other weights; its image tower is gone.

    Args:
        model: open_clip's.
        weights: of the text tower.
        where: their source, for messages.

    Raises:
        CheckpointError: weights are missing, or do not fit.
    """
    tower = copy.deepcopy(model)
    tower.visual = nn.Identity()
    rest = {key: value for key, value in tower.state_dict().items() if key.startswith("logit_")}
    apply_weights(tower, {**rest, **weights}, where)
    return tower


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
    if isinstance(source, str) and library.get_pretrained_cfg(model, source).get("quick_gelu"):
        # The activation of these weights; open_clip takes that of the model's name, and warns.
        model = f"{model.removesuffix('-quickgelu')}-quickgelu"
    names = class_names_of(library, where, classes, benchmark_classes)
    if not names or num_classes not in (None, len(names)):
        found = f"{len(names)} class names, needed: {num_classes or 'two or more'}"
        raise ConfigError(f"{where} has {found} — set backbone.classes to the names in label order")
    chosen = templates_of(library, where, templates)
    state = read_weights(source, sha256) if isinstance(source, Path) else None
    whole = _whole(library, model, source if isinstance(source, str) else None)
    second_tower: dict[str, Tensor] = {}
    if state is not None:
        state, second_tower = without_no(state)
        apply_weights(whole, state, f"'{source}'")
    settings, dim = library.get_model_preprocess_cfg(whole), library.get_model_config(model)["embed_dim"]
    backbone = ZeroShotBackbone(
        name,
        f"open_clip {model} zero-shot, {len(names)} classes",
        partial(_random, library, model, dim, len(names)),
        anatomy,
        preprocess=chosen_preprocess(preprocess, partial(_preset, settings, where), where),
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
    with _quiet():
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
    """Without open_clip's warning that a model has random weights, which is what was asked for.

    It logs by functions of `logging` that give the process a handler where it has none: messages would come twice.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    logging.root.addHandler(handler := logging.NullHandler())
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
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
        found = f"are names for ImageNet's classes, found {available(others) if others else 'no benchmark'}"
        raise ConfigError(f"{where}: classes '{classes}' {found} — leave backbone.classes null, or list the names")
    return tuple(cleaned[name] for name in benchmark)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
