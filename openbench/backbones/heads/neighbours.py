"""The classes of the nearest training features, as logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from openbench.core.features import FeatureSet

NEIGHBOURS, TEMPERATURE = 20, 0.07
_BANK = 32768  # training features compared at a time
_QUERIES = 1024


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """A weighted vote of the 20 training features of the largest cosine.

    Neighbour j votes for its class with exp(cos_j/0.07). Its logits are z_c = log((k·p_c + 1/C)/(k + 1)) with the share
    p_c of the votes: one further neighbour, spread evenly over the C classes, keeps them finite.

    Args:
        train: features (n, d), memory-mapped or not, and labels (n,).
        classes: C.

    Reference: Wu et al., CVPR 2018, arXiv 1805.01978; k and temperature of DINO and DINOv2's evaluation (Oquab et al.,
        TMLR 2024, arXiv 2304.07193).
    """

    train: FeatureSet
    classes: int

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d)."""
        return torch.cat([self._logits(rows) for rows in torch.split(features, _QUERIES)])

    def _logits(self, features: Tensor) -> Tensor:
        queries, labels = _unit(features), self.train.labels.to(features.device)
        k = min(NEIGHBOURS, len(self.train))
        near = features.new_empty(len(features), 0)
        voters = torch.empty(len(features), 0, dtype=torch.int64, device=features.device)
        for start in range(0, len(self.train), _BANK):
            bank = _unit(self.train.features[start : start + _BANK].to(features.device))
            found, place = (queries @ bank.T).topk(min(k, len(bank)), dim=1)
            near, voters = torch.cat([near, found], dim=1), torch.cat([voters, labels[place + start]], dim=1)
            near, kept = near.topk(min(k, near.shape[1]), dim=1)
            voters = voters.gather(1, kept)
        votes = torch.softmax(near / TEMPERATURE, dim=1)
        shares = torch.zeros(len(features), self.classes, device=features.device).scatter_add_(1, voters, votes)
        return torch.log((k * shares + 1 / self.classes) / (k + 1))


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1)
