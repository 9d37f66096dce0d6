"""Scores from gradients: of the input, of the last layer, of prototypes."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import NonNegative, Positive
from openbench.core import FeatureSet, Field, Head, LiveBackbone, LiveMethod, Method, Perturb, Request
from openbench.errors import MethodError
from openbench.methods import _stats as stats
from openbench.methods._bank import Bank

Form = Literal["logit", "softmax"]
Scale = Literal["log_odds", "probability"]
Confidence = Literal["msp", "entropy"]


@dataclass
class ODIN(Method):
    """Odds against the top class at high temperature after a gradient step on the input.

    score(x) = log Σ_{c≠ŷ} exp((z_c − z_ŷ)/T) − log(C − 1) with z = z(x̃), x̃ = x − ε sign(∇ₓ CE(z/T, ŷ))/σ. It is
    log((1 − p)/p), p = max softmax(z(x̃)/T), up to a constant.

    Args:
        temperature: T > 0; the paper's default is 1000.
        epsilon: ε ≥ 0 in pixel units of [0, 1]; the paper's default is .0014.
        scale: `log_odds` keeps every digit, at p ≈ 1 (T = 1) as at p ≈ 1/C (T = 1000), and ranks as the probability
            does, so AUROC, AUPR and FPR are those of exact probabilities; `probability` is 1/C − max p, the published
            scale up to a constant, for metrics along a threshold axis (AUTC), and ties where p rounds to 1.

    Raises:
        MethodError: a temperature that is not positive, a negative step, an unknown scale; one class only.

    Reference: Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks,
    ICLR 2018, arXiv 1706.02690.
    """

    step: ClassVar[Perturb] = Perturb()
    needs: ClassVar[Request] = Request(perturb=step)
    reference: ClassVar[str] = "Liang et al., ICLR 2018, arXiv 1706.02690"

    version: ClassVar[int] = 2  # log odds instead of probabilities

    temperature: Positive = 1000.0
    epsilon: NonNegative = 0.0014
    scale: Scale = "log_odds"

    @property
    def request(self) -> Request:
        """The logits at the input perturbed with this T and ε."""
        step = replace(self.step, temperature=float(self.temperature), epsilon=float(self.epsilon))
        return replace(self.needs, perturb=step)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        if self.scale == "probability":
            return stats.softmax_shortfall(x.logits, self.temperature)
        return stats.log_odds_against_top(x.logits, self.temperature)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the same for each class instead of the top one, (n, c) float32."""
        if self.scale == "log_odds":
            return stats.log_odds_by_class(x.logits, self.temperature)
        p = torch.softmax(x.logits.double() / self.temperature, dim=1)
        return (1 / p.shape[1] - p).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return softmax(z/T), (n, c)."""
        return stats.of_log_odds(scores) if self.scale == "log_odds" else 1 / scores.shape[1] - scores


@dataclass
class IODIN(ODIN):
    """Odds against the top class at high temperature after moving the most sensitive input element.

    score(x) = log Σ_{c≠ŷ} exp((z_c − z_ŷ)/T) − log(C − 1) with z = z(x̃); x̃ differs from x in the one element with the
    largest |gradient|, by −ε sign(∇ₓ CE(z/T, ŷ))/σ. It is log((1 − p)/p), p = max softmax(z(x̃)/T), up to a constant.

    Args:
        temperature: T > 0; 1000 by default.
        epsilon: ε ≥ 0 in pixel units of [0, 1]; .0014 by default.
        scale: `log_odds` keeps every digit, at p ≈ 1 (T = 1) as at p ≈ 1/C (T = 1000), and ranks as the probability
            does, so AUROC, AUPR and FPR are those of exact probabilities; `probability` is 1/C − max p, the published
            scale up to a constant, for metrics along a threshold axis (AUTC), and ties where p rounds to 1.

    Raises:
        MethodError: a temperature that is not positive, a negative step, an unknown scale; one class only.

    Reference: Regmi, Image-based Outlier Synthesis With Training Data (ASCOOD), CVPR 2026, arXiv 2411.10794, whose code
    brought it to OpenOOD; temperature and step as ODIN: Liang et al., ICLR 2018, arXiv 1706.02690.
    """

    step: ClassVar[Perturb] = Perturb(kind="peak")
    needs: ClassVar[Request] = Request(perturb=step)
    reference: ClassVar[str] = (
        "i-ODIN of ASCOOD: Regmi, CVPR 2026, arXiv 2411.10794, after Liang et al., ICLR 2018, arXiv 1706.02690"
    )


@dataclass
class GODIN(Method):
    """Negative largest logit of an input perturbed to increase it.

    score(x) = −max_c h_c(x̃), x̃ = x + ε sign(∇ₓ max_c h_c)/σ.

    Args:
        epsilon: ε ≥ 0 in pixel units of [0, 1]; .0025 by default, searched on ID data in the paper.
        form: `logit` as in the paper, or `softmax`, −max_c softmax(h(x̃))_c, as published numbers were made.

    Raises:
        MethodError: a negative step or an unknown form.

    Reference: Hsu et al., Generalized ODIN: Detecting Out-of-Distribution Image Without Learning From
    Out-of-Distribution Data, CVPR 2020, arXiv 2002.11297. Meant for a backbone trained with `training=godin`, whose
    logits are h.
    """

    needs: ClassVar[Request] = Request(perturb=Perturb(1.0, 0.0025, "logit"))
    reference: ClassVar[str] = "Hsu et al., CVPR 2020, arXiv 2002.11297"

    epsilon: NonNegative = 0.0025
    form: Form = "logit"

    @property
    def request(self) -> Request:
        """The logits at the input perturbed by this ε."""
        return replace(self.needs, perturb=Perturb(1.0, float(self.epsilon), "logit"))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        values = x.logits if self.form == "logit" else torch.softmax(x.logits, dim=1)
        return -values.amax(dim=1)


@dataclass
class PRO(LiveMethod):
    """Largest uncertainty met on a short walk over the input that raises it; OOD inputs lose confidence sooner.

    score(x) = max_{t=0…K} u(x_t), x_0 = x, x_{t+1} = x_t + ε sign(∇ₓ u(x_t)), with u = log((1 − p)/p) of
    p = max softmax(z/T), which ranks and rises as 1 − p does, or u = entropy of softmax(z/T).

    Args:
        confidence: `msp` (PRO-MSP; with T tuned, PRO-MSP-T) or `entropy` (PRO-ENT).
        epsilon: ε ≥ 0, length of a step in units of the normalised input, as published; ε·σ in pixel units.
        steps: K ≥ 0; each costs a forward and a backward pass. 1 to 7 in the paper's search.
        temperature: T > 0; 1 in PRO-MSP and PRO-ENT.

    Raises:
        MethodError: a hyper-parameter out of range; one class only.
        NotApplicableError: the backbone has no network.

    Reference: Chen, Yeh, Mou, Gu, Leveraging Perturbation Robustness to Enhance Out-of-Distribution Detection, CVPR
    2025, arXiv 2503.18784. ε and K are searched in the paper, over the grid of `pro.yaml`; the defaults are what the
    authors found for PRO-MSP on CIFAR-10, and .003 and 1 what their code starts from. Their code descends on max p
    itself: once p rounds to 1, its float32 gradient is 0 and the walk stands still. The log odds have the same
    direction of descent and a gradient that never vanishes. Gradients with respect to the logits are taken in float64,
    up to a positive factor per image, which does not change their sign.
    """

    reference: ClassVar[str] = "Chen et al., CVPR 2025, arXiv 2503.18784"

    confidence: Confidence = "msp"
    epsilon: NonNegative = 0.001
    steps: Annotated[int, Ge(0)] = 3
    temperature: Positive = 1.0

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        x = images.detach()
        with backbone.frozen() as network:
            worst = torch.full((len(x),), -torch.inf, device=x.device)
            for _ in range(self.steps):
                uncertainty, gradient = self._climb(network, x)
                worst = torch.maximum(worst, uncertainty)
                x = x + self.epsilon * gradient.sign()
            with torch.no_grad():
                return torch.maximum(worst, self._uncertainty(network(x)))

    def _climb(self, network: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u(x) (n,) and ∇ₓ u up to a positive factor per image."""
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            logits: Tensor = network(x)
            z = logits.detach().double().requires_grad_(True)
            uncertainty = self._uncertainty(z)
            (by_logits,) = torch.autograd.grad(uncertainty.sum(), z)
            largest = by_logits.abs().amax(dim=1, keepdim=True)
            by_logits = by_logits / torch.where(largest > 0, largest, 1)
            (gradient,) = torch.autograd.grad(logits, x, by_logits.to(logits.dtype))
        return uncertainty.detach(), gradient

    def _uncertainty(self, logits: Tensor) -> Tensor:
        """Return u (n,) float32."""
        if self.confidence == "msp":
            return stats.log_odds_against_top(logits, self.temperature)
        log_p = torch.log_softmax(logits.double() / self.temperature, dim=1)
        return -(log_p.exp() * log_p).sum(dim=1).float()


@dataclass
class GradNorm(Method):
    """Negative L1 norm of the last weight's gradient of Σ_c −log softmax(z/T)_c.

    score(x) = −‖f‖₁ · Σ_c |C p_c − 1| / T: the gradient is the outer product of (C p − 1)/T and f, so its L1 norm is
    the product of theirs and no backward pass is needed.

    Args:
        temperature: T > 0; the paper's default is 1.
        mean: divide by the number of classes, so that scores of models with different C compare, as in the re-benchmark
            (OpenReview VkPuKTKH2Gx). Within one model nothing changes; `thresholds` shows both from either run.

    Raises:
        MethodError: a temperature that is not positive.

    Reference: Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild,
    NeurIPS 2021, arXiv 2110.00218.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))
    reference: ClassVar[str] = "Huang et al., NeurIPS 2021, arXiv 2110.00218"

    temperature: Positive = 1.0
    mean: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes = x.logits.shape[1]
        p = stats.softmax(x.logits / self.temperature)
        residual = p.mul_(classes).sub_(1).abs_().sum(dim=1) / self.temperature
        # |f| summed: torch's vector norm of order 1 takes three times as long on a CPU, |f| of all rows twice.
        length = torch.cat([rows.abs().sum(dim=1) for rows in torch.split(x.features, stats.BLOCK)])
        norm = length * residual
        return -(norm / classes if self.mean else norm)


@dataclass
class GradUncertainty(Method):
    """Negative squared norm of the last layer's gradient of −Σ_c log softmax(z)_c, the cost of a label of all ones.

    score(x) = −‖C p − 1‖² (‖f‖² + 1): the gradient of the weight is the outer product of C p − 1 and f, that of the
    bias is C p − 1, so that no backward pass is needed. A uniform prediction has none.

    Reference: Lee & AlRegib, Gradients as a Measure of Uncertainty in Neural Networks, ICIP 2020, arXiv 2008.08030. The
    paper trains a classifier of ID and OOD images on the squared norms of all layers; here, as in pytorch-ood's
    `GradUncertainty` with the last layer's parameters, the norm itself is the score, and its sign is turned.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))
    reference: ClassVar[str] = "Lee & AlRegib, ICIP 2020, arXiv 2008.08030"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        residual = stats.softmax(x.logits).mul_(x.logits.shape[1]).sub_(1).square().sum(dim=1)
        return -residual * (x.features.square().sum(dim=1) + 1)


@dataclass
class GROOD(stats.Learning):
    """Squared distance between the sample's gradient and the nearest one of a training sample.

    score(x) = min_i ‖g(x) − g(x_i)‖², g(x) = π_o (f − o)/‖f − o‖, π = softmax over k of −‖f − p_k‖, p_k the class means
    and o their mean, i over correctly classified training samples.

    g is the gradient of the cross-entropy of π and the predicted class with respect to the OOD prototype o.

    Raises:
        MethodError: no training split, no sample that is classified correctly, or NaN.

    Reference: ElAraby et al., GROOD: GRadient-Aware Out-of-Distribution Detection, TMLR 2025, arXiv 2312.14427. The
    OOD prototype is the authors' option `use_proto_mean`, the one that needs no images: they prefer the mean feature of
    OOD validation images, which `fit` never sees here, or of mixed ID images. Neighbours are exact (authors: four of
    a hundred lists).
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LOGITS, Field.LABELS)
    reference: ClassVar[str] = "ElAraby et al., TMLR 2025, arXiv 2312.14427"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn prototypes from features (n, d) and labels, then gradients of samples that logits (n, c) get right."""
        means = stats.class_means(train, train.logits.shape[1])
        present = torch.bincount(train.labels.cpu(), minlength=len(means)).to(means.device) > 0
        prototypes = means[present]
        self.prototypes_ = torch.cat([prototypes, prototypes.mean(dim=0, keepdim=True)])
        pulls = torch.cat([self._pull(rows.features)[:, 0].cpu() for rows in train.batches()])
        right = torch.cat([(rows.logits.argmax(dim=1) == rows.labels).cpu() for rows in train.batches()])
        correct = right.nonzero()[:, 0]
        self.bank_ = _Gradients(train.features, correct, pulls[correct], self.prototypes_[-1].cpu())
        if not len(self.bank_):
            raise MethodError(f"GROOD.fit: none of {len(train)} training samples is classified correctly")

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("bank_")
        origin = self.prototypes_[-1].to(x.features.device)
        gradients = self._pull(x.features) * (x.features.double() - origin)
        return Bank(self.bank_).kth_squared_distance(gradients, 1).float()

    def _pull(self, features: Tensor) -> Tensor:
        """π_o/‖f − o‖ (n, 1) float64, the factor of f − o in g; 0 where a feature is the OOD prototype itself."""
        prototypes = self.prototypes_.to(features.device)
        distances = torch.cdist(features.double(), prototypes)
        share, length = torch.softmax(-distances, dim=1)[:, -1:], distances[:, -1:]
        return torch.where(length > 0, share / length, 0.0)


@dataclass(frozen=True)
class _Gradients:
    """Gradients of training samples, made when they are read: stored, they would be as large as the features.

    Args:
        features: (n, d), memory-mapped or not.
        kept: (m,) rows that count.
        pulls: (m,) π_o/‖f − o‖ of these.
        origin: o (d,).
    """

    features: Tensor
    kept: Tensor
    pulls: Tensor
    origin: Tensor

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Gradients `index`, (k, d) float64."""
        return self.pulls[index, None] * (self.features[self.kept[index]].double() - self.origin)
