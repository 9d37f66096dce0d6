"""What scores of an input perturbed by a gradient step share: their temperature, step and scale."""

from typing import Literal

import torch
from torch import Tensor

from openbench.methods._stats import log_odds_against_top, log_odds_by_class, of_log_odds, softmax_shortfall

Scale = Literal["log_odds", "probability"]


def shortfall(logits: Tensor, temperature: float, scale: Scale) -> Tensor:
    """Return how far p = max softmax(z/T) is from 1 (n,) float32: as log((1 − p)/p) up to a constant, or 1/C − p."""
    if scale == "probability":
        return softmax_shortfall(logits, temperature)
    return log_odds_against_top(logits, temperature)


def shortfall_by_class(logits: Tensor, temperature: float, scale: Scale) -> Tensor:
    """Return the odds against each class, or 1/C − softmax(z/T), (n, c) float32, on the scale of `shortfall`."""
    if scale == "log_odds":
        return log_odds_by_class(logits, temperature)
    p = torch.softmax(logits.double() / temperature, dim=1)
    return (1 / p.shape[1] - p).float()


def probabilities_by_class(scores: Tensor, scale: Scale) -> Tensor:
    """Return softmax(z/T) (n, c) of class scores on the scale of `shortfall`."""
    return of_log_odds(scores) if scale == "log_odds" else 1 / scores.shape[1] - scores
