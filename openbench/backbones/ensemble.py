"""Ensembles of networks: features side by side, logits averaged, the members' logits as a layer."""

import copy
from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy, tapping
from openbench.backbones.checkpoints import find_weights
from openbench.backbones.network import NetworkBackbone
from openbench.errors import ConfigError

MEMBERS = "members"  # the layer of all members' logits, (n, m, c, 1)


class Ensemble(NetworkBackbone):
    """Networks of one kind, trained independently; its weights are random until all members are trained.

    Features are the members' side by side (n, m·d) and the head averages their classifiers, so that logits are the
    mean of the members' logits and linear in the features: every method works on it as on one network.

    Args:
        name: how it is called in records.
        members: at least two, of one architecture and preprocessing; the ensemble is trained where all of them are.
    """

    def __init__(self, name: str, members: Sequence[NetworkBackbone]) -> None:
        self.members, first = tuple(members), members[0]
        super().__init__(
            name,
            f"mean of {len(members)}: {first.architecture}",
            lambda: _Mean([copy.deepcopy(member.module()) for member in members], first.anatomy),
            lambda _: Anatomy("head", {MEMBERS: "each"}),
            preprocess=first.preprocess,
            precision=first.precision,
        )
        if all(member.trained for member in members):
            self.load_state(self.module().state_dict(), f"of the members of '{name}'")

    @property
    def made_of(self) -> tuple[object, ...]:
        """What makes any network, and the members."""
        return (*super().made_of, *self.members)

    def of(self, members: Sequence[NetworkBackbone]) -> "Ensemble":
        """Return the ensemble of this name with other, trained members, on their device."""
        return Ensemble(self.name, members).to(members[0].device)


class _Mean(nn.Module):
    """Images to the mean of the members' logits, as one linear head on their features side by side."""

    def __init__(self, members: Sequence[nn.Module], anatomy: Anatomy) -> None:
        super().__init__()
        self.anatomy = anatomy
        self.members = nn.ModuleList(members)
        self.each = nn.Identity()
        heads = [anatomy.linear(member) for member in members]
        m, c, d = len(heads), heads[0].out_features, heads[0].in_features
        self.head = nn.Linear(m * d, c, device=heads[0].weight.device)
        with torch.no_grad():
            self.head.weight.copy_(torch.cat([head.weight for head in heads], dim=1) / m)
            biases: list[Tensor] = [head.weight.new_zeros(c) if head.bias is None else head.bias for head in heads]
            self.head.bias.copy_(torch.stack(biases).mean(dim=0))

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) to logits (n, c)."""
        features, logits = [], []
        for member in self.members:
            with tapping(member, self.anatomy, (), "none") as tapped:
                member(images)
            features.append(tapped.features)
            logits.append(tapped.logits)
        self.each(torch.stack(logits, dim=1)[..., None])  # type: ignore[arg-type]
        return self.head(torch.cat(features, dim=1))  # type: ignore[arg-type]


def ensemble(
    name: str, member: NetworkBackbone, *, members: Annotated[int, Ge(2)] = 5, weights: Sequence[str] | None = None
) -> Ensemble:
    """Return an ensemble whose members wait to be trained on the benchmark, each from its own seed.

    Args:
        name: what users type after `backbone=`; records call it by members and kind, e.g. `ensemble5_resnet18_cifar`.
        member: the network to train, without weights.
        members: how many, 2 or more; 5 in Lakshminarayanan et al.
        weights: a file of weights for each member, searched in the data roots; None: they are trained.

    Raises:
        ConfigError: a member that comes with weights, or a number of files other than `members`.
        CheckpointError: weights that are missing or do not fit.

    Reference:
        Lakshminarayanan, Pritzel, Blundell: Simple and scalable predictive uncertainty estimation using deep ensembles,
        NeurIPS 2017, arXiv:1612.01474. They average probabilities: see `method=ensemble`. The average of logits, which
        this network puts out, is OpenOOD's ensemble.
    """
    if member.trained:
        raise ConfigError(
            f"backbone '{name}': its member '{member.name}' comes with weights, so all members would be equal — choose "
            "one whose yaml says `weights: null`, and give files of weights, if there are, as backbone.weights"
        )
    if weights is not None and len(weights) != members:
        raise ConfigError(f"backbone '{name}': {len(weights)} files of weights for {members} members — one for each")
    copies = [copy.deepcopy(member) for _ in range(members)]
    for part, file in zip(copies, weights or (), strict=False):
        part.load(find_weights(file))
    return Ensemble(f"{name}{members}_{member.name}", copies)
