"""Which classes belong together: given, or found by clustering class means."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Count
from openbench.errors import ConfigError

Groups = Count | Annotated[Sequence[Annotated[Sequence[Annotated[int, Ge(0)]], MinLen(1)]], MinLen(1)]


def checked(groups: Groups) -> Groups:
    """Return groups as a number, or as tuples of classes, each class in one of them.

    Raises:
        ConfigError: a class twice.
    """
    if isinstance(groups, int):
        return groups
    made = tuple(tuple(members) for members in groups)
    flat = [k for members in made for k in members]
    if len(set(flat)) < len(flat):
        raise ConfigError(f"MOS.groups — found {made!r} — allowed: a list of lists of class numbers, each class once")
    return made


def assignment(groups: Groups, num_classes: int) -> Tensor:
    """Return each class's group (c,) int64; all zero where groups are yet to be found.

    Raises:
        ConfigError: the groups are not those of `num_classes` classes.
    """
    if isinstance(groups, int):
        if groups > num_classes:
            raise ConfigError(f"training.groups — found {groups} for {num_classes} classes — allowed: 1 to that number")
        return torch.zeros(num_classes, dtype=torch.int64)
    flat = sorted(k for members in groups for k in members)
    if flat != list(range(num_classes)):
        odd = sorted(set(flat) ^ set(range(num_classes)))
        raise ConfigError(
            f"training.groups — found {len(flat)} classes up to {flat[-1]}, the benchmark has {num_classes}; missing "
            f"or unknown: {', '.join(map(str, odd[:8]))}{'…' if len(odd) > 8 else ''} — allowed: every class from 0 to "
            f"{num_classes - 1} in one group"
        )
    places = torch.empty(num_classes, dtype=torch.int64)
    for number, members in enumerate(groups):
        places[list(members)] = number
    return places


def clustered(means: NDArray[np.float64], groups: int, seed: int) -> Tensor:
    """Return the k-means cluster (c,) int64 of each class mean (c, d); groups are numbered by their lowest class."""
    # Imported here, since it takes half a second and other trainings do not need it.
    from sklearn.cluster import KMeans

    found = KMeans(groups, n_init=10, random_state=seed % 2**32).fit(means).labels_
    order = {int(label): number for number, label in enumerate(dict.fromkeys(found.tolist()))}
    return torch.tensor([order[int(label)] for label in found])
