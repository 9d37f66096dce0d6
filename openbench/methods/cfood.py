"""Concentration-free outlier factor."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from openbench.config.constraints import Seed, Share
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import row_normalise, sorted_rows, training

_ENTRIES = 2**24  # of distances handled at a time


@dataclass
class CFOOD(Method):
    """Share of neighbours that references must take in before enough of them count the sample as a neighbour.

    score(x) = the smallest κ of a grid at which at least a share `share` of references i has ‖f̂ − f̂_i‖ ≤ the distance
    of i to its κm-th nearest of the other references, f̂ = f/‖f‖; 1 if there is none. m references are drawn from
    training samples.

    Args:
        alpha: share of training samples drawn, in (0, 1]; .1 by default. The fit costs the square of the number of
            references: of 1.28 million features of 2,048, an hour of one processor at .1, under a minute at .01.
        share: share of references, in (0, 1]; .01 by default.
        seed: of the draw.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, or fewer than two references.

    Reference: Angiulli et al., CF-OOD: Concentration-Free Density Estimation for Reliable Out-of-Distribution
    Detection, 2026; the measure is Angiulli, CFOF, ACM TKDD 2020, arXiv 1901.04992. Grid of 230 values as in OpenOOD's
    `cfood`: steps of .001 to .1, of .004938 to .5, of .01 to .99; so scores tie. OpenOOD's draw is not seeded.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Angiulli et al., 2026; CFOF: Angiulli, TKDD 2020, arXiv 1901.04992"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"share"})

    alpha: Share = 0.1
    share: Share = 0.01
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Draw references from training features (n, d); learn the distances to their own neighbours."""
        train = training(train, "CFOOD")
        m = int(self.alpha * len(train))
        self.require(m >= 2, "alpha", f"at least {2 / len(train):.3g} for {len(train)} samples: two references")
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))[:m].sort().values
        self.references_ = row_normalise(train.features[drawn].double())
        self.squares_ = self.references_.square().sum(dim=1)
        values = np.concatenate(
            [np.linspace(0.001, 0.1, 100), np.linspace(0.105, 0.5, 81), np.linspace(0.51, 0.99, 49)]
        )
        # Of values that ask for the same neighbour the first stays.
        places, first = np.unique((values * m - 1).astype(np.int64), return_index=True)
        self.grid_ = torch.from_numpy(np.append(values[first], 1.0)).float()
        size, radii = max(1, _ENTRIES // m), []
        for part, squares in zip(torch.split(self.references_, size), torch.split(self.squares_, size), strict=True):
            distances = sorted_rows(_squared_distances(part, self.references_, squares, self.squares_))
            radii.append(distances[:, places + 1])  # the first is to itself
        self.radii_ = torch.cat(radii)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        radii, grid = self.learnt("radii_").to(x.features.device), self.grid_.to(x.features.device)
        references, squares = (t.to(x.features.device) for t in (self.references_, self.squares_))
        # Rounding must not ask for one reference more than the share names.
        enough = max(1, int(np.ceil(self.share * len(references) - 1e-9)))
        scores = []
        for part in torch.split(row_normalise(x.features.double()), max(1, _ENTRIES // len(references))):
            # For each reference the first grid value whose ball holds the sample; the `enough`-th smallest decides.
            first = torch.searchsorted(radii, _squared_distances(references, part, squares, part.square().sum(dim=1)))
            scores.append(grid[first.kthvalue(enough, dim=0).values])
        return torch.cat(scores)


def _squared_distances(a: Tensor, b: Tensor, a_squares: Tensor, b_squares: Tensor) -> Tensor:
    """(n, m) between rows of a (n, d) and of b (m, d), whose squared lengths are (n,) and (m,)."""
    return torch.addmm(b_squares, a, b.T, alpha=-2).add_(a_squares[:, None]).clamp_(min=0)
