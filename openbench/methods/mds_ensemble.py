"""Mahalanobis distances of several layers, weighed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import MinLen
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import Composite, FeatureSet, Field, Head, LiveBackbone, LiveMethod, Method, Request, Role, by_rows
from openbench.core.search import SearchContext, Trial, Tuned, best_trial, grid, with_params
from openbench.errors import MethodError
from openbench.methods._bases import to_means
from openbench.methods._stats import moments, training, whitening
from openbench.metrics.curve import auroc

Distances = NDArray[np.float64]
NEEDS = Request(
    fields=frozenset({Field.MAPS, Field.LABELS}),
    fit_on=Role.ID_TRAIN,
    layers=("stage1", "stage2", "stage3", "stage4"),
    pool="mean",
)
_REFERENCE = "Lee et al., NeurIPS 2018, arXiv 1807.03888"


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
    def of(cls, train: FeatureSet | None, layer: str) -> "Clusters":
        """Learn them from the pooled map of a layer (n, d) and labels (n,), in float64."""
        where = f"MDSEnsemble at {layer}"
        m = moments(training(train, where), where, lambda rows: rows.map(layer))
        whiten, centre = whitening(m.within_covariance()), m.mean()
        return cls(centre.float(), whiten.float(), ((m.class_means() - centre) @ whiten).float())

    def distance(self, pooled: Tensor) -> Tensor:
        """Return d²(x)/r (n,), d the distance of vectors (n, d) to the nearest mean; to its own it is 1 on average."""
        white = by_rows(pooled - self.centre.to(pooled.device), self.whiten.to(pooled.device).T)
        nearest = to_means(white, self.means.to(pooled.device)).amin(dim=1)
        return (white.square().sum(dim=1) + nearest) / white.shape[1]


class _OfLayer(Method):
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

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and the shared covariance."""
        self.clusters_ = Clusters.of(train, self.layer)
        return self


@dataclass
class LayerMDS(_OfLayer):
    """Squared Mahalanobis distance of one layer's channel means to the nearest class, over the rank of the covariance.

    Args:
        layer: the layer measured.
        among: layers cached by the same pass: those of the other members of the ensemble.
    """

    layer: str
    among: Sequence[str]

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

    layer: str
    among: Sequence[str]
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

    needs: ClassVar[Request] = LayerMDS.needs
    reference: ClassVar[str] = "Lee et al., NeurIPS 2018, arXiv 1807.03888"

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
            raise MethodError(
                "MDSEnsemble: weights=logistic needs tune=validation — or give weights=equal or one number per layer"
            )
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
