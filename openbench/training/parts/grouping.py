"""Groups of images that lie close together in feature space, and what a group says about its members."""

import torch
from torch import Tensor
from torch.nn import functional

_ROUNDS = 20
# As a share of the largest variance: directions below it are rounding errors, which whitening would magnify.
_RANK = 1e-10


def whitened(features: Tensor, dims: int) -> Tensor:
    """Return features in their first principal directions, each scaled to variance 1, then every row to unit length.

    Args:
        features: (n, d).
        dims: directions kept at most; fewer where the features span fewer.

    Returns:
        (n, min(dims, rank)) float32.
    """
    centred = features.double() - features.double().mean(dim=0)
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    count = min(dims, max(1, int((variance > _RANK * variance[-1]).sum())))
    scale = variance[-count:].clamp(min=torch.finfo(variance.dtype).tiny).rsqrt()
    return functional.normalize(centred @ directions[:, -count:] * scale, dim=1).float()


def k_means(points: Tensor, count: int, seed: int) -> Tensor:
    """Return the group (n,) int64 of each point by Lloyd's algorithm, 20 rounds on all points.

    Args:
        points: (n, d).
        count: groups, at most n.
        seed: of the first centres.
    """
    import faiss

    array = points.cpu().float().contiguous().numpy()
    # By default faiss would use 256 points per group only, and complain about fewer than 39.
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": max(1, len(array))}
    found = faiss.Kmeans(array.shape[1], count, niter=_ROUNDS, seed=seed, **limits)
    found.train(array)
    return torch.from_numpy(found.index.search(array, 1)[1][:, 0])


def pure_labels(groups: Tensor, labels: Tensor, purity: float) -> Tensor:
    """Return for each member (n,) the label that more than a share `purity` of its group has, or −1.

    Args:
        groups: (n,).
        labels: (n,), −1 where there is none; counts as a separate label.
        purity: in [0.5, 1], so that at most one label has it.
    """
    width = int(labels.max()) + 2
    table = torch.bincount(groups * width + labels + 1, minlength=(int(groups.max()) + 1) * width).view(-1, width)
    most, label = table.max(dim=1)
    return torch.where(most > purity * table.sum(dim=1), label - 1, -1)[groups]


def balancing(groups: Tensor) -> Tensor:
    """Return the weight of each member (n,): 1/√size of its group, over the mean of that over groups with members."""
    sizes = torch.bincount(groups).double()
    weights = sizes.clamp(min=1).rsqrt()
    return (weights / weights[sizes > 0].mean())[groups].float()
