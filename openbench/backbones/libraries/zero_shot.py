"""A vision–language model's two towers as a backbone: images give features, prompts give embeddings in their space."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.network import NetworkBackbone, evaluating, state_sha256
from openbench.core.texts import Tower
from openbench.digest import digest

_VERSION = 1  # raised when embeddings of equal weights and prompts change


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
        """Return unit embeddings (m, d) float32 of m texts, on the CPU."""
        with evaluating(self.model), torch.no_grad():
            found = self.model.encode_text(self.tokenizer(list(prompts)).to(self.device))
        return functional.normalize(found.float(), dim=-1).cpu()

    def to(self, device: torch.device) -> None:
        """Move the tower."""
        self.model.to(device)
        self.device = device


class ZeroShotBackbone(NetworkBackbone):
    """An image tower with a head made of text, and the text towers that can make others."""

    def with_texts(self, towers: dict[Tower, OpenClipText]) -> Self:
        """Keep the text towers, which move with the network; return self."""
        for tower in towers.values():
            # The image tower is this network's by now: a second copy would double the memory.
            tower.model.visual = nn.Identity()
            tower.to(self.device)
        self.text_towers = MappingProxyType(dict(towers))
        return self

    def to(self, device: torch.device) -> Self:
        """Move the network and its text towers; return self."""
        for tower in self.text_towers.values():
            tower.to(device)
        return super().to(device)
