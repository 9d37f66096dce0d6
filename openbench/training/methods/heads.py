"""Classifiers of another form, and further heads beside the classifier: GODIN, ARPL, ConfBranch, RotPred."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative, Positive
from openbench.training.base import Batch, Compat, EvalModel, TrainingMethod
from openbench.training.methods._parts import ROTATIONS, Branched, Extended, Turned, rotated


class UnitFeatures(Extended):
    """A network whose features are scaled to unit length before a linear head."""

    head: nn.Linear

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, _ = self.read(images)
        return self.head(functional.normalize(features, dim=1))


class Decomposed(Extended):
    """The network, cosine similarities h to class weights, and the temperature g = σ(BN(w·f + b))."""

    weight: nn.Parameter
    g: nn.Module

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h (n, c) and g (n, 1)."""
        features, _ = self.read(images)
        similarity = functional.normalize(features, dim=1) @ functional.normalize(self.weight, dim=1).T
        return similarity, self.g(features)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to h (n, c), which stands for the logits."""
        return self.parts(images)[0]


@dataclass(frozen=True)
class GODIN(TrainingMethod):
    """CE(h/g, y) with h_k the cosine of features and class weights, g in (0, 1) a temperature from the features.

    The evaluated network has unit features and, exactly, h as their linear head without bias; the score does not use g.
    The class weights get no weight decay.

    Args:
        compat: `openood` keeps the learning rate of the class weights at its highest throughout, since the scheduler
            there drives only the other optimiser; `paper` decays it with all others.

    Reference:
        Hsu et al.: Generalized ODIN: detecting out-of-distribution image without learning from out-of-distribution
        data, CVPR 2020, arXiv:2002.11297; DeConf-C.
    """

    compat: Compat = "paper"

    reference: ClassVar[str] = "Hsu et al., CVPR 2020, arXiv:2002.11297"
    scorer: ClassVar[str] = "godin"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Decomposed:
        """Return the network with h and g in place of its own classifier."""
        weight = nn.init.kaiming_normal_(torch.empty(num_classes, feature_dim), nonlinearity="relu")
        g = nn.Sequential(nn.Linear(feature_dim, 1), nn.BatchNorm1d(1), nn.Sigmoid())
        return Decomposed(model, weight=nn.Parameter(weight), g=g)

    def parameter_groups(self, model: Decomposed) -> list[dict[str, Any]]:
        """Return all parameters but those of the unused classifier; class weights without weight decay."""
        rest = [p for p in super().parameter_groups(model)[0]["params"] if p is not model.weight]
        constant = self.compat == "openood"
        return [{"params": rest}, {"params": [model.weight], "weight_decay": 0.0, "lr_constant": constant}]

    def loss(self, model: Decomposed, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of h/g."""
        similarity, temperature = model.parts(batch.images)
        return batch.cross_entropy(similarity / temperature)

    def eval_model(self, model: Decomposed) -> EvalModel:
        """Return unit features with the unit class weights as their head."""
        c, d = model.weight.shape
        head = nn.Linear(d, c, bias=False)
        head.weight = nn.Parameter(functional.normalize(model.weight, dim=1))
        return UnitFeatures(model.network, head=head).evaluated(head=head)


class Reciprocal(Extended):
    """The network, one reciprocal point per class, and the learnt radius."""

    points: nn.Parameter
    radius: nn.Parameter

    def distances(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits l_k = ‖f − P_k‖²/d − f·P_k and their first part, both (n, c)."""
        features, _ = self.read(images)
        square = torch.cdist(features.float(), self.points.float(), compute_mode="donot_use_mm_for_euclid_dist")
        square = square.square() / features.shape[1]
        return square - features.float() @ self.points.float().T, square

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.distances(images)[0]


@dataclass(frozen=True)
class ARPL(TrainingMethod):
    """CE(l, y) + λ · mean max(0, ‖f − P_y‖²/d − R + 1), l_k = ‖f − P_k‖²/d − f·P_k.

    The evaluated head is linear, W_k = −(1 + 2/d)P_k, b_k = ‖P_k‖²/d, which is l without ‖f‖²/d. That term is the same
    for every class, so probabilities are exact, and with them MSP, the paper's score. Energies and maximum logits are
    not those of l.

    Args:
        weight: λ ≥ 0; 0.1.

    Reference:
        Chen et al.: Adversarial reciprocal points learning for open set recognition, TPAMI 2021, arXiv:2103.00953;
        without confusing samples.
    """

    weight: NonNegative = 0.1

    reference: ClassVar[str] = "Chen et al., TPAMI 2021, arXiv:2103.00953"
    separable: ClassVar[bool] = True
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Reciprocal:
        """Return the network with reciprocal points in place of its own classifier."""
        points = nn.Parameter(0.1 * torch.randn(num_classes, feature_dim))
        return Reciprocal(model, points=points, radius=nn.Parameter(torch.zeros(())))

    def loss(self, model: Reciprocal, batch: Batch) -> Tensor:
        """Return the cross-entropy of the logits and the penalty of points too far out."""
        logits, square = model.distances(batch.images)
        to_true = square.gather(1, batch.labels[:, None])[:, 0]
        penalty = functional.relu(to_true - model.radius + 1).mean()
        return functional.cross_entropy(logits, batch.labels) + self.weight * penalty

    def eval_model(self, model: Reciprocal) -> EvalModel:
        """Return the network with the linear head that has the same probabilities."""
        points, d = model.points, model.points.shape[1]
        return model.with_head(-(1 + 2 / d) * points, points.square().sum(dim=1) / d)


_STEP = 0.01


@dataclass(frozen=True)
class ConfBranch(TrainingMethod):
    """NLL(p′, y) + λ·mean(−log c), p′ = c·p + (1 − c)·onehot(y) for a random half of the images, p for the others.

    c = σ(w·f + b). After each step λ is divided by 1.01 if the confidence loss is under the budget, else by 0.99.

    Args:
        weight: λ at the start; 0.1.
        budget: β, what the mean confidence loss is steered to; 0.3.
        epsilon: probabilities are kept this far from 0 and 1; 1e-12.

    Reference:
        DeVries, Taylor: Learning confidence for out-of-distribution detection in neural networks, 2018,
        arXiv:1802.04865.
    """

    weight: Positive = 0.1
    budget: Positive = 0.3
    epsilon: Positive = 1e-12

    reference: ClassVar[str] = "DeVries, Taylor, 2018, arXiv:1802.04865"
    scorer: ClassVar[str] = "conf_branch"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Branched:
        """Return the network with a confidence branch, and the present weight of its loss."""
        return Branched(model, "confidence", nn.Linear(feature_dim, 1), weight=torch.tensor(self.weight))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move λ by one step."""
        features, logits = model.read(batch.images)
        doubt = model.branches["confidence"](features)[:, 0].float()
        # −log σ(u) = softplus(−u): exact where σ(u) rounds to 0.
        price = functional.softplus(-doubt).mean()
        answer = logits.float().softmax(dim=1).gather(1, batch.labels[:, None])[:, 0]
        hinted = torch.rand(len(doubt), generator=batch.info.generator).to(doubt.device) < 0.5
        trust = torch.where(hinted, doubt.sigmoid(), 1.0)
        helped = trust * answer + (1 - trust)
        loss = -helped.clamp(self.epsilon, 1.0).log().mean() + model.weight.clone() * price
        model.weight.div_(torch.where(price.detach() < self.budget, 1 + _STEP, 1 - _STEP))
        return loss

    def eval_model(self, model: Any) -> EvalModel:
        """Return the network with the output `confidence` (n, 1), before the sigmoid."""
        return model.evaluated("branches.confidence")


@dataclass(frozen=True)
class RotPred(TrainingMethod):
    """CE(z, y) + λ · CE of four rotation logits over all four turns of each image.

    Args:
        weight: λ ≥ 0; 1 in OpenOOD.

    Reference:
        Hendrycks et al.: Using self-supervised learning can improve model robustness and uncertainty, NeurIPS 2019,
        arXiv:1906.12340. There the rotation loss has weight ½ and perturbed images; this is OpenOOD's form.
    """

    weight: NonNegative = 1.0

    reference: ClassVar[str] = "Hendrycks et al., NeurIPS 2019, arXiv:1906.12340"
    scorer: ClassVar[str] = "rotpred"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Turned:
        """Return the network with a rotation head."""
        return Turned(model, "rotation", ROTATIONS, feature_dim, output="rotations")

    def loss(self, model: Turned, batch: Batch) -> Tensor:
        """Return the loss of all four turns of a batch in one pass."""
        n = len(batch.images)
        features, logits = model.read(rotated(batch.images))
        turns = torch.arange(ROTATIONS, device=logits.device).repeat_interleave(n)
        rotation_loss = functional.cross_entropy(model.of_turned(features), turns)
        return batch.cross_entropy(logits[:n]) + self.weight * rotation_loss

    def eval_model(self, model: Turned) -> EvalModel:
        """Return the network with the output `rotations` (n, 16): for each turn its four logits; five passes."""
        return model.evaluated("rotations")
