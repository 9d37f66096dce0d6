"""Deviation of Gram matrices from the range that the predicted class has in training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Interval, MinLen
from torch import Tensor

from openbench.config.constraints import Fraction, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError
from openbench.methods._stats import max_softmax, predictions, training, true_labels

Form = Literal["paper", "openood"]

_ROWS = 512  # Gram rows of a deep network take 150 kB per sample
_TINY = 1e-6  # in |bound + 1e-6|, as published


@dataclass
class Gram(Method):
    """How far row sums of Gram matrices of all orders leave the range of the predicted class, summed over layers.

    score(x) = (1/p̂) Σ_ℓ δ_ℓ(x)/E[δ_ℓ], δ_ℓ = Σ_{j,p} [relu(m − g) / |m| + relu(g − M) / |M|]; g_{ℓ,j,p} is the signed
    p-th root of row sum j of the Gram matrix of order p of layer ℓ, m and M are its least and largest value in training
    for class ŷ, p̂ = max softmax(z), and E is taken over training samples that shaped neither m nor M.

    Args:
        layers: neutral names of the layers read; None is every stage of the network.
        powers: orders p = 1 … P, P ≤ 10; 10 in the paper, 5 in OpenOOD. Up to five are cached in half the space.
        form: `paper` takes ranges over training samples by predicted class and E over δ_ℓ/p̂, as the authors' code;
            `openood` takes ranges by true class and E over δ_ℓ.
        held_out: share of training samples, in (0, 1), that serve E; drawn independently with `seed`, at least one.
        seed: of that draw.

    Raises:
        MethodError: a hyper-parameter out of range; fewer than two training samples; a label outside the classes.

    Reference: Sastry & Oore, Detecting Out-of-Distribution Examples with Gram Matrices, ICML 2020, arXiv 1912.12510.
    The authors read every convolution and activation and take E over a tenth of the test set; OpenOOD reads them too,
    and draws another tenth of the training set in each run. Here layers are the stages, whose row sums alone are
    cached, and the draw is seeded. A class without training samples takes the range of all classes. Gram rows of the
    training set are not stored. Samples that stay within all ranges tie at 0; with few channels there are
    many of these.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.MAPS, Field.LOGITS, Field.LABELS}),
        fit_on=Role.ID_TRAIN,
        layers=("stage1", "stage2", "stage3", "stage4"),
        pool="gram10",
    )
    reference: ClassVar[str] = "Sastry & Oore, ICML 2020, arXiv 1912.12510"

    layers: Annotated[Sequence[str], MinLen(1)] | None = None
    powers: Annotated[int, Interval(ge=1, le=10)] = 10
    form: Form = "paper"
    held_out: Fraction = 0.1
    seed: Seed = 0

    @property
    def request(self) -> Request:
        """The reduced maps of the layers chosen, in as many orders as are read."""
        layers = self.needs.layers if self.layers is None else tuple(self.layers)
        return replace(self.needs, layers=layers, pool="gram" if self.powers <= 5 else "gram10")

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn ranges per class, layer, row and order, then each layer's mean deviation over the held-out part."""
        train = training(train, "Gram")
        held_out = _drawn(len(train), self.held_out, self.seed)
        classes = train.logits.shape[1]
        of = predictions if self.form == "paper" else true_labels
        self._learn_ranges(_rows(train, ~held_out), classes, of)
        sums = torch.zeros(len(self.low_), dtype=torch.float64, device=train.device)
        for rows in _rows(train, held_out):
            deviations = self._deviations(rows)
            if self.form == "paper":
                deviations = deviations / max_softmax(rows.logits).double()[:, None]
            sums += deviations.sum(dim=0)
        # 1e-7 as published: on a layer that no held-out sample leaves, any deviation counts much, but finitely.
        self.scale_ = sums / int(held_out.sum()) + 1e-7
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return self._scored(x, lambda rows, scale: (self._deviations(rows) / scale).sum(dim=1, keepdim=True))[:, 0]

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the same with the ranges of each class in place of the predicted one's, (n, c) float32.

        Takes c times as long as the scores.
        """
        return self._scored(
            x, lambda rows, scale: torch.stack([(d / scale).sum(dim=1) for d in self._deviations_by_class(rows)], dim=1)
        )

    def _scored(self, x: FeatureSet, totals: Callable[[FeatureSet, Tensor], Tensor]) -> Tensor:
        """Totals (m, k) of batches, divided by p̂, (n, k) float32; `totals` takes a batch and the layers' scales."""
        scale, scores = self.learnt("scale_").to(x.logits.device), []
        for rows in x.batches(_ROWS):
            scores.append((totals(rows, scale) / max_softmax(rows.logits).double()[:, None]).float())
        return torch.cat(scores)

    def _learn_ranges(self, batches: Iterator[FeatureSet], classes: int, of: Callable[[FeatureSet], Tensor]) -> None:
        """Keep the least and largest values (classes, channels · powers) of each layer, in one pass over all layers."""
        low: dict[str, Tensor] = {}
        high: dict[str, Tensor] = {}
        for rows in batches:
            index = of(rows)[:, None]
            for layer in self.request.layers:
                g = self._flat(rows, layer)
                if layer not in low:
                    low[layer] = g.new_full((classes, g.shape[1]), torch.inf)
                    high[layer] = -low[layer]
                low[layer].scatter_reduce_(0, index.expand_as(g), g, "amin")
                high[layer].scatter_reduce_(0, index.expand_as(g), g, "amax")
        if not low:
            raise MethodError("Gram.fit: no training sample is left for ranges — lower held_out")
        self.low_, self.high_ = low, high
        for layer, least in low.items():
            empty = least > high[layer]
            low[layer] = torch.where(empty, least.amin(dim=0), least)
            high[layer] = torch.where(empty, high[layer].amax(dim=0), high[layer])

    def _deviations(self, rows: FeatureSet) -> Tensor:
        """δ (n, layers) float64 of a batch, against the ranges of its predicted classes."""
        predicted, deviations = rows.logits.argmax(dim=1), []
        for layer, low in self.low_.items():
            g = self._flat(rows, layer)
            deviations.append(_outside(g, *(bounds.to(g.device)[predicted] for bounds in (low, self.high_[layer]))))
        return torch.stack(deviations, dim=1)

    def _deviations_by_class(self, rows: FeatureSet) -> Iterator[Tensor]:
        """Yield δ (n, layers) float64 of a batch against the ranges of each class in turn."""
        flat = {layer: self._flat(rows, layer) for layer in self.low_}
        for y in range(rows.logits.shape[1]):
            ranges = {layer: (self.low_[layer][y], self.high_[layer][y]) for layer in flat}
            parts = [_outside(g, *(bound.to(g.device) for bound in ranges[layer])) for layer, g in flat.items()]
            yield torch.stack(parts, dim=1)

    def _flat(self, rows: FeatureSet, layer: str) -> Tensor:
        return rows.map(layer)[:, :, : self.powers].flatten(1)


def _outside(g: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Return (n,) float64 how far rows g leave the ranges from `below` to `above`, relative to these, summed."""
    outside = (below - g).relu() / (below + _TINY).abs() + (g - above).relu() / (above + _TINY).abs()
    return outside.double().sum(dim=1)


def _drawn(n: int, share: float, seed: int) -> Tensor:
    """Return which of n samples are held out, (n,) bool: each with probability `share`, at least one."""
    draw = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    chosen = draw < share
    chosen[draw.argmin()] = True
    return chosen


def _rows(x: FeatureSet, chosen: Tensor) -> Iterator[FeatureSet]:
    """Yield the chosen rows, read in order and a few at a time."""
    for start, rows in enumerate(x.batches(_ROWS)):
        part = chosen[start * _ROWS : start * _ROWS + len(rows)]
        if bool(part.any()):
            yield rows[part.to(x.device)]
