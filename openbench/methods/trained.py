"""Scores of outputs that a network was trained to have."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import Count, Decay, NonNegative, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, SoftmaxMethod
from openbench.errors import MethodError
from openbench.methods._stats import Learning, max_softmax

Uncertainty = Literal["msp", "entropy", "disagreement"]
_TURNS = 4


@dataclass
class ConfBranch(Method):
    """Negative confidence of a network trained with a confidence branch.

    score(x) = −u, u = w·f + b the branch's output before the sigmoid: the ranking of −σ(u), without its ties near 1.

    Reference: DeVries & Taylor, Learning Confidence for Out-of-Distribution Detection in Neural Networks, 2018,
    arXiv 1802.04865. Needs a backbone trained with `training=conf_branch`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("confidence",), pool="mean")
    reference: ClassVar[str] = "DeVries & Taylor, 2018, arXiv 1802.04865"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.map("confidence")[:, 0]


@dataclass
class CSI(SoftmaxMethod):
    """Negative maximum softmax probability of logits averaged over four turns of the image.

    score(x) = −max_c softmax(¼ Σ_r j_{c,r}(x turned by r))_c, j_{c,r} the logit for "class c, turned by r".

    Reference: Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances,
    NeurIPS 2020, arXiv 2007.08176; CSI-ens. Needs a backbone trained with `training=csi`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("turned",), pool="mean")
    reference: ClassVar[str] = "Tack et al., NeurIPS 2020, arXiv 2007.08176"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -max_softmax(self._class_logits(x))

    def _class_logits(self, x: FeatureSet) -> Tensor:
        return x.map("turned")


@dataclass
class Dropout(Learning):
    """Negative maximum of the softmax probabilities, averaged over classifiers with dropped features.

    score(x) = −max_c (1/K) Σ_k softmax(W(m_k∘f)/(1 − p) + b)_c, m_k ∈ {0, 1}ᵈ with P(0) = p.

    The masks are drawn once, for all samples: scores then depend on neither batch nor order.

    Args:
        passes: K ≥ 1; 5 in OpenOOD, more lowers the noise of the draw.
        probability: p in [0, 1); 0.5, that of training.
        seed: of the masks.

    Raises:
        MethodError: no pass, or a probability out of range.

    Reference: Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016, arXiv 1506.02142; dropout before the
    last layer alone, which needs no pass through the network. OpenOOD averages logits, and draws new masks for every
    image. Meant for a backbone trained with `training=dropout`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)
    reference: ClassVar[str] = "Gal & Ghahramani, ICML 2016, arXiv 1506.02142"

    passes: Count = 5
    probability: Decay = 0.5
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Keep the head and draw the masks (K, d)."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.rand(self.passes, head.weight.shape[1], generator=generator)
        self.masks_ = (drawn >= self.probability).float() / (1 - self.probability)
        self.head_ = head

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features, masks = x.features, self.learnt("masks_")
        total = torch.zeros(len(features), self.head_.num_classes, device=features.device)
        for mask in masks.to(features.device):
            total += torch.softmax(self.head_(features * mask), dim=1)
        return -(total / self.passes).amax(dim=1)


@dataclass
class Ensemble(Method):
    """Uncertainty of p̄ = (1/M) Σ_m softmax(z_m), the mean prediction of M networks.

    score(x) = log((1 − max_c p̄_c)/max_c p̄_c), which ranks as −max_c p̄_c does; or −Σ_c p̄_c log p̄_c (`entropy`);
    or (1/M) Σ_m KL(p_m ‖ p̄), how far the members are from p̄ (`disagreement`). In float64: nothing ties at p̄ = 1.

    For `backbone=ensemble`. That network puts out averaged logits, as in OpenOOD: for these use `method=msp`.

    Args:
        uncertainty: `msp`, `entropy` or `disagreement`.

    Raises:
        MethodError: an unknown uncertainty, or one class only.

    Reference: Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles, NeurIPS 2017, arXiv 1612.01474. Its disagreement is the sum over members, here the mean.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("members",))
    reference: ClassVar[str] = "Lakshminarayanan et al., NeurIPS 2017, arXiv 1612.01474"

    uncertainty: Uncertainty = "msp"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p, log_mean = self._log_probabilities(x)
        if self.uncertainty == "msp":
            top, index = log_mean.max(dim=1, keepdim=True)
            others = log_mean.scatter(1, index, -torch.inf)
            return (torch.logsumexp(others, dim=1) - top[:, 0]).float()
        if self.uncertainty == "entropy":
            return -(log_mean.exp() * log_mean).sum(dim=1).float()
        return (log_p.exp() * (log_p - log_mean[:, None])).sum(dim=2).mean(dim=1).float()

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − p̄, (n, c) float32."""
        return (1 - self._log_probabilities(x)[1].exp()).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return p̄, (n, c)."""
        return 1 - scores

    def _log_probabilities(self, x: FeatureSet) -> tuple[Tensor, Tensor]:
        """Return log softmax(z_m) (n, M, c) and log p̄ (n, c), float64."""
        log_p = torch.log_softmax(x.map("members")[..., 0].double(), dim=2)
        if log_p.shape[2] < 2:
            raise MethodError("Ensemble: found 1 class, whose probability is always 1 — two or more are needed")
        return log_p, torch.logsumexp(log_p, dim=1) - math.log(log_p.shape[1])


@dataclass
class MCD(Method):
    """L1 distance of the probabilities of two classifiers on the same features.

    score(x) = Σ_c |softmax(z)_c − softmax(z₂)_c|.

    Reference: Yu & Aizawa, Unsupervised Out-of-Distribution Detection by Maximum Classifier Discrepancy, ICCV 2019,
    arXiv 1908.04951. Needs a backbone trained with `training=mcd`.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("second_head",), pool="mean"
    )
    reference: ClassVar[str] = "Yu & Aizawa, ICCV 2019, arXiv 1908.04951"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return (x.logits.softmax(dim=1) - x.map("second_head").softmax(dim=1)).abs().sum(dim=1)


@dataclass
class MOS(Method):
    """Minimum others score: an ID image is not an "other" to at least one group.

    score(x) = min_g log p_g(others): the ranking of min_g p_g(others), without its ties near 0 and 1.

    Reference: Huang & Li, MOS: Towards Scaling Out-of-Distribution Detection for Large Semantic Space, CVPR 2021,
    arXiv 2105.01879. Needs a backbone trained with `training=mos`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("others",), pool="mean")
    reference: ClassVar[str] = "Huang & Li, CVPR 2021, arXiv 2105.01879"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return x.map("others").amin(dim=1)


@dataclass
class RotPred(Method):
    """Mean cross-entropy of four rotations less the divergence of class probabilities from uniform, in bits.

    score(x) = ¼ Σ_r −log₂ softmax(v_r)_r − KL(u‖softmax(z)), v_r the rotation logits of the image turned r times;
    KL(u‖p) = −log₂ C − mean_c log₂ p_c.

    Reference: Hendrycks et al., Using Self-Supervised Learning Can Improve Model Robustness and Uncertainty,
    NeurIPS 2019, arXiv 1906.12340. Needs a backbone trained with `training=rotpred`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("rotations",), pool="mean")
    reference: ClassVar[str] = "Hendrycks et al., NeurIPS 2019, arXiv 1906.12340"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p = torch.log_softmax(x.logits.double(), dim=1)
        divergence = -math.log(log_p.shape[1]) - log_p.mean(dim=1)
        turns = torch.log_softmax(x.map("rotations").view(-1, _TURNS, _TURNS).double(), dim=2)
        misjudged = -turns.diagonal(dim1=1, dim2=2).mean(dim=1)
        return ((misjudged - divergence) / math.log(2)).float()


@dataclass
class SNGP(SoftmaxMethod):
    """Dempster–Shafer uncertainty of the mean-field logits of a Gaussian process.

    score(x) = C/(C + Σ_c exp m_c), m_c = z_c/√(1 + λσ²_c), σ² the posterior variance of the logits z.

    Args:
        factor: λ ≥ 0; π/8 for posterior means of probabilities. The larger it is, the more distance counts; the
            authors' code has 25 on CIFAR-10, for another scale of σ².

    Raises:
        MethodError: a negative factor.

    Reference: Liu et al., Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via Distance
    Awareness, NeurIPS 2020, arXiv 2006.10108. Needs a backbone trained with `training=sngp`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("variance",), pool="mean")
    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv 2006.10108"

    factor: NonNegative = math.pi / 8

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32, in (0, 1]; larger = more OOD."""
        means = self._class_logits(x)
        return torch.sigmoid(math.log(means.shape[1]) - torch.logsumexp(means, dim=1)).float()

    def _class_logits(self, x: FeatureSet) -> Tensor:
        # One variance may stand for all classes.
        return x.logits.double() / (1 + self.factor * x.map("variance").double()).sqrt()


@dataclass
class WeightedEnergy(Method):
    """Free energy with a weight for each class, which a network trained with virtual outliers learnt.

    score(x) = −log Σ_c max(w_c, 0) exp z_c.

    Reference: Du et al., VOS: Learning What You Don't Know by Virtual Outlier Synthesis, ICLR 2022, arXiv 2202.01197;
    `WeightedEBO` of pytorch-ood. Needs a backbone trained with `training=vos`, whose regulariser learns w. Of
    classifiers the authors' own code scores the energy without weights (`method=energy`), and says that the weights of
    training make it worse in testing.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("weighted_energy",), pool="mean")
    reference: ClassVar[str] = "Du et al., ICLR 2022, arXiv 2202.01197"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.map("weighted_energy")[:, 0]
