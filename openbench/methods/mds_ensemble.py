"""Mahalanobis distances of several layers, weighed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.constraints import NonNegative, NotEmpty
from openbench.core.composite import Composite
from openbench.core.method import Method
from openbench.core.request import Request
from openbench.errors import MethodError
from openbench.methods._layer_mds import LayerMDS, SteppedLayerMDS


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
    stages; its distances are halved and not divided by the rank, which α takes up. Its regression is penalised by
    cross-validation on raw distances, here by a fixed unit penalty on standardised ones, with both sides weighed alike.
    OpenOOD's postprocessor reads the stem alone (`method=mds_ensemble_openood`).
    """

    needs: ClassVar[Request] = LayerMDS.needs
    reference: ClassVar[str] = "Lee et al., NeurIPS 2018, arXiv 1807.03888"

    layers: Annotated[Sequence[str], NotEmpty()] | None = None
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
        """Refuse weights that are still to be found; distances bring their unit with them."""
        if self.weights == "logistic":
            raise MethodError(
                "MDSEnsemble: weights=logistic are found on ID and OOD validation while tuning — run with "
                "tune=validation, or give weights=equal or one number per layer"
            )
        return self

    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the layers' distances (n,) float32; larger = more OOD."""
        names = list(self.fitted_parts)
        weights = [1 / len(names)] * len(names) if isinstance(self.weights, str) else list(self.weights)
        if len(weights) != len(names):
            raise MethodError(f"MDSEnsemble: {len(weights)} weights for {len(names)} layers — one per layer expected")
        total = torch.stack([scores[name].double() for name in names], dim=1) @ torch.tensor(
            weights, dtype=torch.float64, device=scores[names[0]].device
        )
        return total.float()
