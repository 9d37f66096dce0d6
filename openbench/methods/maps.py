"""Scores of maps of inner layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Interval, MinLen
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Count, Fraction, NonNegative, Positive, Seed
from openbench.core import STAGES, Composite, FeatureSet, Field, LiveBackbone, LiveMethod, Method, Request, by_rows
from openbench.core.search import SearchContext, Trial, Tuned, best_trial, grid, with_params
from openbench.errors import MethodError, NotApplicableError
from openbench.methods import _stats as stats
from openbench.metrics.curve import auroc

Form = Literal["paper", "openood"]

_ROWS = 512  # Gram rows of a deep network take 150 kB per sample
_TINY = 1e-6  # in |bound + 1e-6|, as published
Solver = Literal["exact", "power"]
Distances = NDArray[np.float64]
NEEDS = stats.on_training(Field.MAPS, Field.LABELS, layers=STAGES, pool="mean")
_REFERENCE = "Lee et al., NeurIPS 2018, arXiv 1807.03888"


@dataclass
class Gram(stats.Learning):
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

    needs: ClassVar[Request] = stats.on_training(Field.MAPS, Field.LOGITS, Field.LABELS, layers=STAGES, pool="gram10")
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

    def _learn(self, train: FeatureSet, head: None) -> None:
        """Learn ranges per class, layer, row and order, then each layer's mean deviation over the held-out part."""
        held_out = _drawn(len(train), self.held_out, self.seed)
        classes = train.logits.shape[1]
        of = stats.predictions if self.form == "paper" else stats.true_labels
        self._learn_ranges(_rows(train, ~held_out), classes, of)
        sums = torch.zeros(len(self.low_), dtype=torch.float64, device=train.device)
        for rows in _rows(train, held_out):
            (deviations,) = self._deviations(rows, (rows.logits.argmax(dim=1),))
            if self.form == "paper":
                deviations = deviations / stats.max_softmax(rows.logits).double()[:, None]
            sums += deviations.sum(dim=0)
        # 1e-7 as published: on a layer that no held-out sample leaves, any deviation counts much, but finitely.
        self.scale_ = sums / int(held_out.sum()) + 1e-7

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return self._scored(x, lambda rows: (rows.logits.argmax(dim=1),))[:, 0]

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the same with the ranges of each class in place of the predicted one's, (n, c) float32.

        Takes c times as long as the scores.
        """
        return self._scored(x, lambda rows: range(rows.logits.shape[1]))

    def _scored(self, x: FeatureSet, classes: Callable[[FeatureSet], Iterable[Tensor | int]]) -> Tensor:
        """Scores (n, k) float32 against the ranges of k classes of each batch: of one class, or of one a sample."""
        scale, scores = self.learnt("scale_").to(x.logits.device), []
        for rows in x.batches(_ROWS):
            totals = [(deviations / scale).sum(dim=1) for deviations in self._deviations(rows, classes(rows))]
            scores.append((torch.stack(totals, dim=1) / stats.max_softmax(rows.logits).double()[:, None]).float())
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

    def _deviations(self, rows: FeatureSet, classes: Iterable[Tensor | int]) -> Iterator[Tensor]:
        """Yield δ (n, layers) float64 of a batch against the ranges of each class, one for all samples or one each."""
        layers = [
            (self._flat(rows, layer), low.to(rows.device), self.high_[layer].to(rows.device))
            for layer, low in self.low_.items()
        ]
        for y in classes:
            yield torch.stack([_outside(g, low[y], high[y]) for g, low, high in layers], dim=1)

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


@dataclass
class RankFeat(LiveMethod):
    """Energy of the logits without the maps' largest singular component, which carries most of an OOD image.

    score(x) = −T log Σ_c exp(z̄_c/T), z̄ the mean over layers of the logits that follow from X − σ₁u₁v₁ᵀ in place of the
    layer's map X (c, h·w), one layer changed at a time.

    Args:
        layers: neutral names of the layers changed; None is the last two stages of the network, the paper's blocks 3
            and 4. Each costs a pass. After the last stage of a transformer with a class token nothing reads the map.
        temperature: T > 0; 1 in the paper.
        solver: `exact` takes v₁ from the eigenvectors of the smaller of XᵀX and XXᵀ; `power` iterates towards it, the
            paper's acceleration for large maps.
        iterations: of `power`, ≥ 1; 20 in the official code.

    Raises:
        MethodError: a hyper-parameter out of range.
        NotApplicableError: the backbone has no such layer, or no stages.

    Reference: Song, Sebe, Wang, RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection, NeurIPS 2022,
    arXiv 2209.08590. σ₁u₁v₁ᵀ = Xv₁v₁ᵀ, so no full decomposition is made; in float64. Power iterations start from one
    fixed draw instead of a new one for every batch, so scores repeat and do not depend on other samples.
    """

    reference: ClassVar[str] = "Song et al., NeurIPS 2022, arXiv 2209.08590"

    layers: Annotated[Sequence[str], MinLen(1)] | None = None
    temperature: Positive = 1.0
    solver: Solver = "exact"
    iterations: Count = 20

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        layers = self.layers or [name for name in backbone.layers if name in STAGES][-2:]
        if not layers:
            raise NotApplicableError(f"RankFeat: backbone '{backbone.name}' has no stages — choose another network")
        direction: Callable[[Tensor], Tensor] = self._iterated if self.solver == "power" else top_direction
        logits = []
        with backbone.frozen() as network, torch.no_grad():
            for layer in layers:
                with backbone.changing(layer, lambda maps: without_top(maps, direction)):
                    logits.append(network(images).double())
        mean = torch.stack(logits).mean(dim=0)
        return (-self.temperature * torch.logsumexp(mean / self.temperature, dim=1)).float()

    def _iterated(self, gram: Tensor) -> Tensor:
        """Return the direction (n, k, 1) that power iterations on XᵀX (n, k, k) reach."""
        start = torch.randn(gram.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        v = start.to(gram).expand(len(gram), -1, -1)
        for _ in range(self.iterations):
            moved = gram @ v
            norm = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
            # A map of zeros has no direction, and none is removed from it.
            v = moved / norm.clamp(min=torch.finfo(norm.dtype).tiny)
        return v


def without_top(maps: Tensor, direction: Callable[[Tensor], Tensor]) -> Tensor:
    """Return maps (n, c, h, w) less their largest rank-1 part σ₁u₁v₁ᵀ, each map seen as a matrix (c, h·w).

    Args:
        maps: not changed.
        direction: returns v₁ (n, k, 1) of Gram matrices (n, k, k).
    """
    x = maps.flatten(2).to(maps.dtype if maps.device.type == "mps" else torch.float64)
    # The smaller side holds the same σ₁: X v vᵀ = u uᵀ X.
    if x.shape[2] <= x.shape[1]:
        v = direction(x.transpose(1, 2) @ x)
        rest = x - (x @ v) @ v.transpose(1, 2)
    else:
        u = direction(x @ x.transpose(1, 2))
        rest = x - u @ (u.transpose(1, 2) @ x)
    return rest.view(maps.shape).to(maps.dtype)


def top_direction(gram: Tensor) -> Tensor:
    """Return the eigenvectors (n, k, 1) of the largest eigenvalues of symmetric matrices (n, k, k)."""
    return torch.linalg.eigh(gram).eigenvectors[:, :, -1:]


@dataclass(frozen=True)
class Clusters:
    """Class means and one covariance, ready to measure by.

    Args:
        centre: (d,) mean of all vectors.
        whiten: (d, r) with A Aᵀ = Σ⁺, r the rank.
        means: (k, r) class means in whitened coordinates.
    """

    centre: Tensor
    whiten: Tensor
    means: Tensor

    @classmethod
    def of(cls, train: FeatureSet, layer: str) -> "Clusters":
        """Learn them from the pooled map of a layer (n, d) and labels (n,), in float64."""
        where = f"MDSEnsemble at {layer}"
        m = stats.moments(train, where, lambda rows: rows.map(layer))
        whiten, centre = stats.whitening(m.within_covariance()), m.mean()
        return cls(centre.float(), whiten.float(), ((m.class_means() - centre) @ whiten).float())

    def distance(self, pooled: Tensor) -> Tensor:
        """Return d²(x)/r (n,), d the distance of vectors (n, d) to the nearest mean; to its own it is 1 on average."""
        white = by_rows(pooled - self.centre.to(pooled.device), self.whiten.to(pooled.device).T)
        nearest = stats.to_means(white, self.means.to(pooled.device)).amin(dim=1)
        return (white.square().sum(dim=1) + nearest) / white.shape[1]


@dataclass
class _OfLayer(stats.Learning):
    """Fits the class means and the shared covariance of one layer.

    Attributes:
        layer: the layer measured.
        among: all layers of the ensemble, cached by one pass over the training set.
    """

    needs: ClassVar[Request] = NEEDS
    reference: ClassVar[str] = _REFERENCE

    layer: str
    among: Sequence[str]

    @property
    def request(self) -> Request:
        """Channel means of all layers of the ensemble, unperturbed."""
        return replace(self.needs, layers=tuple(self.among))

    def _learn(self, train: FeatureSet, head: None) -> None:
        """Learn class means and the shared covariance."""
        self.clusters_ = Clusters.of(train, self.layer)


@dataclass
class LayerMDS(_OfLayer):
    """Squared Mahalanobis distance of one layer's channel means to the nearest class, over the rank of the covariance.

    Args:
        layer: the layer measured.
        among: layers cached by the same pass: those of the other members of the ensemble.
    """

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("clusters_")
        return self.clusters_.distance(x.map(self.layer))


@dataclass
class SteppedLayerMDS(_OfLayer, LiveMethod):
    """The same after a step of the input towards the nearest class: x̃ = x − ε sign(∇ₓ d²)/σ, sign(0) = +1.

    Args:
        layer: the layer measured, and whose distance the step shortens.
        among: layers cached by the same pass over the training set.
        epsilon: ε in pixel units of [0, 1].
    """

    epsilon: NonNegative

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        self.learnt("clusters_")
        with backbone.frozen() as network:
            with torch.enable_grad():
                x = images.detach().clone().requires_grad_(True)
                distance = self.clusters_.distance(self._pooled(x, network, backbone))
                (gradient,) = torch.autograd.grad(distance.sum(), x)
            std = torch.tensor(backbone.preprocess.std).to(images).view(1, -1, 1, 1)
            stepped = images - self.epsilon * torch.where(gradient >= 0, 1.0, -1.0) / std
            with torch.no_grad():
                return self.clusters_.distance(self._pooled(stepped, network, backbone))

    def _pooled(self, images: Tensor, network: torch.nn.Module, backbone: LiveBackbone) -> Tensor:
        """The layer's channel means (n, d) for images."""
        pooled: list[Tensor] = []

        def watch(maps: Tensor) -> Tensor:
            pooled.append(maps.float().mean(dim=(2, 3)))
            return maps

        with backbone.changing(self.layer, watch):
            network(images)
        return pooled[0]


@dataclass
class MDSEnsemble(Composite):
    """Weighted sum over layers of squared Mahalanobis distances of channel means to the nearest class.

    score(x) = Σ_ℓ α_ℓ min_c (f_ℓ − μ_{ℓc})ᵀ Σ_ℓ⁺ (f_ℓ − μ_{ℓc}) / r_ℓ, f_ℓ the means over positions of layer ℓ's map,
    Σ_ℓ its covariance around the class means, shared by all classes, and r_ℓ the rank of that: in every layer, training
    samples are 1 away from their own class on average.

    Args:
        layers: neutral names of the layers read; None is every stage of the network.
        weights: α; `equal`, one number per layer, or `logistic`: those of the logistic regression that tells ID
            validation from OOD validation, which tuning finds and records as numbers. It sees no test image.
        epsilon: ε ≥ 0 of the input step towards the nearest class, x̃ = x − ε sign(∇ₓ d²_ℓ)/σ, made for each layer
            apart; in pixel units of [0, 1]. 0 scores cached columns; otherwise each layer costs two passes and a
            gradient. The paper chooses among 0, .0005, .001, .0014, .002, .005, .01.

    Raises:
        MethodError: a hyper-parameter out of range; `logistic` without tuning.

    Reference: Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,
    NeurIPS 2018, arXiv 1807.03888. The paper's layers are the ends of the residual blocks and the stem, here the
    stages; its distances are halved and not divided by the rank, which α takes up. Its regression has a penalty found
    by cross-validation on raw distances, here a fixed unit penalty on standardised ones, and both sides weigh alike.
    OpenOOD's postprocessor reads the stem alone (`method=mds_ensemble_openood`).
    """

    needs: ClassVar[Request] = NEEDS
    reference: ClassVar[str] = _REFERENCE

    layers: Annotated[Sequence[str], MinLen(1)] | None = None
    weights: Literal["equal", "logistic"] | Sequence[float] = "equal"
    epsilon: NonNegative = 0.0

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        if self.layers is not None and not isinstance(self.weights, str):
            self.require(len(self.weights) == len(self.layers), "weights", f"{len(self.layers)} numbers, one per layer")

    @property
    def parts(self) -> Mapping[str, Method]:
        """One distance per layer."""
        layers = list(self.needs.layers if self.layers is None else self.layers)
        if self.epsilon == 0:
            return {layer: LayerMDS(layer, layers) for layer in layers}
        return {layer: SteppedLayerMDS(layer, layers, self.epsilon) for layer in layers}

    def learn(self, id_val: Mapping[str, Tensor]) -> Self:
        """Refuse weights that are still to be found; the distances need no scaling."""
        if self.weights == "logistic":
            raise MethodError("MDSEnsemble: weights=logistic needs tune=validation — or give equal, or numbers")
        return self

    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the layers' distances (n,) float32; larger = more OOD."""
        names = list(self.fitted_parts)
        weights = [1 / len(names)] * len(names) if isinstance(self.weights, str) else list(self.weights)
        if len(weights) != len(names):
            raise MethodError(f"MDSEnsemble: {len(weights)} weights for {len(names)} layers — give one for each layer")
        columns = torch.stack([scores[name].double() for name in names], dim=1)
        return (columns @ columns.new_tensor(weights)).float()

    def search(self, space: Mapping[str, Sequence[Any]], context: SearchContext) -> Tuned:
        """Return the setting of the highest AUROC (ties: the first tried), weights as numbers, and all trials.

        Distances are computed once for all weights; `logistic` stands for the weights that the regression finds.

        Raises:
            ConfigError: the space names something that is not a hyper-parameter.
            MethodError: no setting is feasible.
        """
        settings = grid(space, list(self.params()), type(self).__name__)
        trials: list[Trial] = []
        measured: dict[str, tuple[MDSEnsemble, Distances, Distances]] = {}
        for params in settings:
            others, weights = _but_weights(params), params.get("weights", self.weights)
            try:
                if others not in measured:
                    measured[others] = _measured(with_params(self, {**params, "weights": "equal"}), context)
                fitted, inside, outside = measured[others]
                weights = logistic_weights(inside, outside) if weights == "logistic" else weights
                chosen = {**params, "weights": weights if isinstance(weights, str) else list(weights)}
                weighted = fitted.with_weights(chosen["weights"])
                score = auroc(weighted.combine_columns(inside), weighted.combine_columns(outside))
                trials.append({"params": chosen, "auroc": score})
            except MethodError as error:
                trials.append({"params": params, "infeasible": str(error)})
            context.report(len(trials), len(settings), trials[-1])
        best = best_trial(self, trials)["params"]
        return Tuned(dict(best), trials, measured[_but_weights(best)][0].with_weights(best["weights"]))

    def with_weights(self, weights: str | Sequence[float]) -> Self:
        """Return the fitted layers with other weights."""
        weighted = with_params(self, {"weights": weights})
        weighted.parts_ = dict(self.fitted_parts)
        return weighted

    def combine_columns(self, distances: Distances) -> NDArray[np.float32]:
        """Return the weighted sum (n,) of distances (n, layers)."""
        columns = {name: torch.from_numpy(distances[:, i]) for i, name in enumerate(self.fitted_parts)}
        return self.combine(columns).numpy()


def logistic_weights(inside: Distances, outside: Distances) -> list[float]:
    """Return the weight (k,) of each of k distances in the logistic regression that tells ID from OOD samples.

    Distances are standardised over both sides, weights penalised by ½‖w‖² against the sum of losses, both sides weigh
    alike whatever their sizes, and the weights are those of distances as given.

    Args:
        inside: (n, k) of ID samples.
        outside: (m, k) of OOD samples.
    """
    from sklearn.linear_model import LogisticRegression

    x = np.concatenate([inside, outside])
    mean, std = x.mean(axis=0), x.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    y = np.repeat([0, 1], [len(inside), len(outside)])
    model = LogisticRegression(C=1.0, class_weight="balanced", tol=1e-8, max_iter=10000)
    return (model.fit((x - mean) / std, y).coef_[0] / std).tolist()


def _but_weights(params: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in params.items() if name != "weights"})


def _measured(method: MDSEnsemble, context: SearchContext) -> tuple[MDSEnsemble, Distances, Distances]:
    """Fit, and return the distances (n, layers) of both sides."""
    fitted: Any = context.fit(method)
    id_split, ood_splits = context.sides()
    inside, outside = (
        np.stack([context.scores(part, splits) for part in fitted.fitted_parts.values()], axis=1).astype(np.float64)
        for splits in ((id_split,), ood_splits)
    )
    return fitted, inside, outside
