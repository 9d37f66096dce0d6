"""What methods that learn from outliers share: the outliers of a batch, and being unsure of them."""

from torch import Tensor

from openbench.training.base import Batch


def outliers_of(batch: Batch) -> Tensor:
    """Return the outliers (m, channels, h, w) of a batch.

    Raises:
        TypeError: there are none; the loop gives them to methods with `uses_outliers`.
    """
    if batch.outliers is None:
        raise TypeError("the loss needs Batch.outliers — found None — the method must declare uses_outliers = True")
    return batch.outliers


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (m, c) against equal shares of all classes: −(1/c) Σ_k log p_k."""
    return (logits.logsumexp(dim=1) - logits.mean(dim=1)).mean()
