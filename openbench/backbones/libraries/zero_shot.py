"""A vision–language model's two towers as a backbone: images give features, prompts give embeddings in their space."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from openbench.backbones.base import Outputs
from openbench.backbones.heads.prompts import PromptLearning
from openbench.backbones.libraries.patches import patch_source
from openbench.backbones.libraries.tokenised import tokenised, tokens_and_cut
from openbench.backbones.network import NetworkBackbone, evaluating, state_sha256
from openbench.core.request import Field, Request
from openbench.core.texts import Tower
from openbench.digest import digest
from openbench.errors import ConfigError, NotApplicableError

_VERSION = 1  # raised when embeddings of equal weights and prompts change
_CLASSES = 64  # prompts with learnt vectors in a pass


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
            found = self.model.encode_text(tokenised(self.tokenizer, prompts).to(self.device))
        return functional.normalize(found.float(), dim=-1).cpu()

    @property
    def width(self) -> int:
        """Of the vectors that stand for tokens.

        Raises:
            NotApplicableError: the tower's tokens cannot be replaced by vectors.
        """
        return int(self._tokens.weight.shape[1])

    @property
    def scale(self) -> float:
        """By which cosines are multiplied in the model's softmax."""
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
        if k + 3 > tokens.shape[1]:  # the start, one token of the name at least, and the end
            raise ConfigError(
                f"open_clip's {self.name}: {k} vectors — allowed: up to {tokens.shape[1] - 3}, since a prompt has "
                f"{tokens.shape[1]} tokens — choose a smaller prompt_learning.context"
            )
        start, first = tokens[:, :1], tokens[:1, 1:2]
        if bool((start == first).any()) or bool((tokens[:, 1 : 1 + k] != first).any()):
            raise self._fixed()
        if cut is not None:
            raise ConfigError(
                f"open_clip's {self.name}: {k} vectors and the class name {names[cut]!r} are too long for its text "
                f"tower — allowed: up to {tokens.shape[1]} tokens, start and end among them — choose a smaller "
                "prompt_learning.context, or a shorter name in backbone.classes"
            )

        parts = torch.split(tokens, _CLASSES)
        if len(parts) == 1 or not torch.is_grad_enabled():
            return torch.cat([self._embedded(context, part) for part in parts])
        # What a backward pass needs of a thousand prompts takes tens of gigabytes: it is computed again, part by part.
        return torch.cat([checkpoint(self._embedded, context, part, use_reentrant=False) for part in parts])

    def _embedded(self, context: Tensor, tokens: Tensor) -> Tensor:
        """Unit embeddings (m, d) of tokens (m, length), vectors (k, width) in place of those after the start."""
        k = len(context)

        def replaced(_: nn.Module, __: tuple[Any, ...], found: Tensor) -> Tensor:
            vectors = context.to(found.dtype).expand(len(found), -1, -1)
            return torch.cat([found[:, :1], vectors, found[:, 1 + k :]], dim=1)

        hook = self._tokens.register_forward_hook(replaced)
        try:
            with evaluating(self.model):
                return functional.normalize(self.model.encode_text(tokens.to(self.device)).float(), dim=-1)
        finally:
            hook.remove()

    @property
    def _tokens(self) -> nn.Embedding:
        """The module that makes vectors of tokens."""
        found = getattr(getattr(self.model, "text", self.model), "token_embedding", None)
        if not isinstance(found, nn.Embedding):
            raise self._fixed()
        return found

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
        return patch_source(self._module.visual) is not None

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names, with features of patches where it names them.

        Raises:
            NotApplicableError: a layer that this network does not have, or patches of an image tower of another kind.
        """
        if Field.PATCHES not in request.fields:
            return super().outputs(images, request)
        source = patch_source(self._module.visual)
        if source is None:
            raise NotApplicableError(
                f"backbone '{self.name}': its image tower is a {type(self._module.visual).__name__} without a known "
                "projection of patches — choose a method that reads features, or one of CLIP's own architectures"
            )
        found: list[Tensor] = []
        hook = source.module.register_forward_pre_hook(lambda _, inputs: found.append(source.project(inputs[0])))
        try:
            outputs = super().outputs(images, request)
        finally:
            hook.remove()
        # With an input step, the pass that is read comes last.
        return replace(outputs, patches=functional.normalize(found[-1].detach().float(), dim=-1).half())

    def to(self, device: torch.device) -> Self:
        """Move the network and its text towers; return self."""
        for tower in self.text_towers.values():
            tower.to(device)
        return super().to(device)
