"""What methods that learn from outliers share: the outliers of a batch."""

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
