"""A vision–language model's two towers as a backbone: images give features, prompts give embeddings in their space."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from openbench.backbones.base import Outputs
from openbench.backbones.checkpoints import apply_weights
from openbench.backbones.heads.prompts import PromptLearning
from openbench.backbones.network import NetworkBackbone, evaluating, state_sha256
from openbench.core.request import Field, Request, Tower
from openbench.digest import digest
from openbench.errors import ConfigError, NotApplicableError

_VERSION = 1  # raised when embeddings of equal weights and prompts change
_CLASSES = 64  # prompts with learnt vectors in a pass
_SHOWN = 100  # letters of a prompt in a message
_PROMPT = "prompt_no"
_NEGATED = ("transformer_no.", "token_embedding_no.", "positional_embedding_no", "ln_final_no.", "text_projection_no")


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
        with evaluating(self.model), torch.no_grad():
            embeddings = self.model.encode_text(tokenised(self.tokenizer, prompts).to(self.device))
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
            raise ConfigError(
                f"open_clip's {self.name}: {k} vectors and the class name {names[cut]!r} exceed its {tokens.shape[1]} "
                "tokens — choose a smaller prompt_learning.context, or a shorter name in backbone.classes"
            )
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
            raise NotApplicableError(
                f"backbone '{self.name}': its image tower is a {type(self.network.visual).__name__} without a known "
                "projection of patches — choose a method that reads features, or one of CLIP's own architectures"
            )
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


def tokenised(tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """Return the tokens (m, context) of whole prompts.

    Args:
        tokenizer: open_clip's, which cuts what is too long without a word.
        prompts: m texts.

    Raises:
        ConfigError: a prompt is longer than the text tower's context.
    """
    tokens, cut = tokens_and_cut(tokenizer, prompts)
    if cut is not None:
        prompt = prompts[cut] if len(prompts[cut]) <= _SHOWN else f"{prompts[cut][:_SHOWN]}…"
        raise ConfigError(f"prompt {prompt!r} is too long for the text tower ({tokens.shape[1]} tokens) — shorten it")
    return tokens


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
