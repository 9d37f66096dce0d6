"""Scores of the logits alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Count, Positive
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, SoftmaxMethod
from openbench.errors import MethodError
from openbench.methods import _stats as stats

_LEAST = torch.finfo(torch.float64).min
_ROWS = 1024  # whose temporaries stay near the processor with ImageNet's classes
_SHIFT = 10_000.0  # libmr's translation of the tail, with which published models were fitted
_LARGEST_SHAPE = 1e12


@dataclass
class MLS(Method):
    """Negative maximum logit.

    score(x) = −max_c z_c.

    Reference: Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022,
    arXiv 1911.11132.
    """

    reference: ClassVar[str] = "Hendrycks et al., ICML 2022, arXiv 1911.11132"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.logits.amax(dim=1)


@dataclass
class Energy(Method):
    """Free energy: the negative scaled log-sum-exp of the logits.

    score(x) = −T log Σ_c exp(z_c / T).

    Args:
        temperature: T > 0; the paper's default is 1.

    Raises:
        MethodError: a temperature that is not positive.

    Reference: Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020, arXiv 2010.03759.
    """

    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv 2010.03759"

    temperature: Positive = 1.0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        if self.temperature == 1:
            return torch.logsumexp(x.logits, dim=1).neg()
        return -self.temperature * torch.logsumexp(x.logits / self.temperature, dim=1)


@dataclass
class Entropy(Method):
    """Entropy of the softmax probabilities, in nats.

    score(x) = −Σ_c p_c log p_c, p = softmax(z).

    Reference: Chan et al., Entropy Maximization and Meta Classification for Out-of-Distribution Detection in Semantic
    Segmentation, ICCV 2021, arXiv 2012.06575; `Entropy` of pytorch-ood. A probability that underflows counts as
    0 log 0 = 0 (pytorch-ood: NaN), and sums are made in float64, in which entropies near 0 keep their order.
    """

    reference: ClassVar[str] = "Chan et al., ICCV 2021, arXiv 2012.06575"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p = stats.log_softmax(x.logits.double())
        return -(log_p.exp() * log_p).sum(dim=1).float()


@dataclass
class GEN(Method):
    """Generalised entropy of the largest softmax probabilities.

    score(x) = Σ_{c among the M largest} p_c^γ (1 − p_c)^γ, p = softmax(z).

    Args:
        gamma: γ > 0; .1 by default, as in the paper.
        top: M ≥ 1, cut to the number of classes; 100 by default, as in the paper.
        exact: False computes p and 1 − p in float32 as published numbers were: where p rounds to 1 its term drops out.
            True takes γ (log p + log(1 − p)) in float64, with 1 − p from the other classes.

    Raises:
        MethodError: γ or M out of range.

    Reference: Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023.
    """

    reference: ClassVar[str] = "Liu et al., CVPR 2023"

    gamma: Positive = 0.1
    top: Count = 100
    exact: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        m = min(self.top, x.logits.shape[1])
        if self.exact:
            return self._exact(x.logits, m)
        p = stats.softmax(x.logits)
        p = p if m == p.shape[1] else p.topk(m, dim=1, sorted=False).values
        # One power of the product: powers take longer than all else.
        return (p * (1 - p)).pow_(self.gamma).sum(dim=1)

    def _exact(self, logits: Tensor, m: int) -> Tensor:
        z = stats.sorted_rows(logits).flip(1).double()
        log_p = torch.log_softmax(z, dim=1)
        # Only the largest p can round to 1; its complement is the sum of all others.
        log_rest = torch.log1p(-log_p.exp())
        log_rest[:, 0] = torch.logsumexp(log_p[:, 1:], dim=1)
        return torch.exp(self.gamma * (log_p + log_rest))[:, :m].sum(dim=1).float()


@dataclass
class KLM(stats.Learning):
    """Divergence from the nearest class template of softmax probabilities.

    score(x) = min_k KL(p ‖ T_k), T_k the mean softmax of ID validation samples predicted as class k.

    Raises:
        MethodError: no ID validation split.

    Reference: Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022,
    arXiv 1911.11132. A class that no sample is predicted as has a one-hot template, infinitely far from everything
    else, as in OpenOOD. All is float64: in float32, as there, the most confident samples differ by rounding only.
    Templates are kept as logarithms: where a probability underflows, the divergence from them is large, not infinite.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS}), fit_on=Role.ID_VAL)
    reference: ClassVar[str] = "Hendrycks et al., ICML 2022, arXiv 1911.11132"
    version: ClassVar[int] = 2  # float64 softmax

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Average the softmax of ID validation logits (n, c) per predicted class, as logarithms."""
        classes = train.logits.shape[1]
        largest = torch.full((classes, classes), _LEAST, dtype=torch.float64, device=train.device)
        sums, counts = torch.zeros_like(largest), torch.zeros_like(largest[:, :1])
        for rows in train.batches():
            log_p = stats.log_softmax(rows.logits.double())
            predicted = log_p.argmax(dim=1)
            known = largest
            largest = known.scatter_reduce(0, predicted[:, None].expand_as(log_p), log_p, "amax")
            sums *= (known - largest).exp()  # sums are of p divided by the largest
            sums.index_add_(0, predicted, (log_p - largest[predicted]).exp_())
            counts += torch.bincount(predicted, minlength=classes)[:, None]
        one_hot = torch.eye(classes, dtype=sums.dtype, device=sums.device)
        self.log_templates_ = torch.where(counts > 0, largest + (sums / counts).log(), one_hot.log())

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_templates = self.learnt("log_templates_").to(x.logits.device)
        log_p = stats.log_softmax(x.logits.double())
        p = log_p.exp()
        empty = log_templates.isneginf()
        cross = p @ torch.where(empty, 0.0, log_templates).T  # over the support of the templates
        if bool(empty.any()):
            cross = cross.masked_fill(p @ empty.double().T > 0, -torch.inf)  # mass outside: KL is infinite
        negative_entropy: Tensor = (p * log_p).sum(dim=1)
        return (negative_entropy - cross.amax(dim=1)).float()


@dataclass
class TempScaling(stats.Learning, SoftmaxMethod):
    """Negative maximum softmax probability at the temperature that calibrates ID validation.

    score(x) = −max_c softmax(z/T)_c, T minimising the mean negative log-likelihood of ID validation labels.

    Args:
        solver: `lbfgs` takes 50 LBFGS iterations with step .01 from T = 1.5, which may stop short of the optimum:
            this made the published numbers; `converged` solves the one-dimensional problem (convex in 1/T).

    Raises:
        MethodError: a temperature that is not positive or finite came out.

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv 1706.04599.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.LABELS}), fit_on=Role.ID_VAL)
    reference: ClassVar[str] = "Guo et al., ICML 2017, arXiv 1706.04599"

    solver: Literal["lbfgs", "converged"] = "lbfgs"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Find the temperature on ID validation logits (n, c) and labels (n,)."""
        solve = _lbfgs if self.solver == "lbfgs" else _converged
        temperature = solve(list(train.batches(_ROWS)), len(train))
        if not (np.isfinite(temperature) and temperature > 0):
            raise MethodError(f"TempScaling: solver={self.solver} ends at T = {temperature} — use solver=converged")
        self.temperature_ = torch.tensor(temperature, dtype=torch.float32)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -stats.max_softmax(self._class_logits(x))

    def _class_logits(self, x: FeatureSet) -> Tensor:
        return x.logits / self.learnt("temperature_").to(x.logits.device)


def _lbfgs(batches: Sequence[FeatureSet], n: int) -> float:
    with torch.enable_grad():
        temperature = torch.full((1,), 1.5, device=batches[0].logits.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

        def closure() -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros((), device=temperature.device)
            for rows in batches:  # gradients add up
                loss = functional.cross_entropy(rows.logits / temperature, rows.labels) * (len(rows) / n)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total

        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return float(temperature.detach())


def _converged(batches: Sequence[FeatureSet], n: int) -> float:
    def loss(log_inverse: float) -> float:
        scaled = ((rows.logits.double() * float(np.exp(log_inverse)), rows.labels) for rows in batches)
        return sum(float(functional.cross_entropy(z, labels, reduction="sum")) for z, labels in scaled) / n

    # From T = 1/1000 to 1000; beyond, the classifier is either always right or no better than chance.
    return float(np.exp(-minimize_scalar(loss, bounds=(-6.91, 6.91), method="bounded", options={"xatol": 1e-10}).x))


@dataclass
class OpenMax(stats.Learning):
    """Log-odds of the unknown class, which collects what far logits lose.

    score(x) = u − log Σ_c exp z'_c, z'_c = z_c (1 − ω_c W_c(‖z − μ_c‖)), u = Σ_c (z_c − z'_c), ω = 1, (α−1)/α, …, 1/α
    for the α largest logits and 0 for others, W_c a Weibull distribution of the `tail` largest distances of correctly
    classified training samples of class c to their mean logit vector μ_c.

    Args:
        alpha: α, how many of the largest logits are revised; cut to the number of classes; 3 by default.
        tail: largest distances per class that are fitted; 20 by default, as in the paper.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, or no correctly classified sample.

    Reference: Bendale & Boult, Towards Open Set Deep Networks, CVPR 2016, arXiv 1511.06233. The score is the logit of
    the paper's probability exp u / (Σ exp z' + exp u): the same order, without overflow and without ties at 0 and 1.
    A class without a correctly classified sample is never revised (OpenOOD: an error).
    """

    needs: ClassVar[Request] = stats.on_training(Field.LOGITS, Field.LABELS)
    reference: ClassVar[str] = "Bendale & Boult, CVPR 2016, arXiv 1511.06233"

    alpha: Count = 3
    tail: Annotated[int, Ge(2)] = 20

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn mean logits and the tails of distances from training logits (n, c) and labels (n,)."""
        classes = train.logits.shape[1]
        sums = torch.zeros(classes, classes, dtype=torch.float64, device=train.device)
        counts = torch.zeros(classes, dtype=torch.int64, device=train.device)
        for logits, labels in _correct(train):
            sums.index_add_(0, labels, logits)
            counts += torch.bincount(labels, minlength=classes)
        if not bool(counts.any()):
            raise MethodError(f"OpenMax.fit: none of {len(train)} training samples is classified correctly")
        self.means_ = sums / counts.clamp(min=1)[:, None]
        # Allocated once: parts between large temporaries would keep their memory from being freed.
        distances, labels, done = sums.new_empty(int(counts.sum())), counts.new_empty(int(counts.sum())), 0
        for z, y in _correct(train):
            part = slice(done, done + len(y))
            distances[part], labels[part] = torch.linalg.vector_norm(z - self.means_[y], dim=1), y
            done += len(y)
        tails = _largest_per_class(distances, labels, classes, self.tail)
        self.start_ = tails.nan_to_num(nan=torch.inf).amin(dim=1)
        self.shape_, self.log_scale_ = _weibull(tails - self.start_[:, None])
        self.known_ = counts > 0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        means = self.learnt("means_").to(x.logits.device)
        z = x.logits.double()
        alpha = min(self.alpha, z.shape[1])
        top, index = z.topk(alpha, dim=1)
        distance = torch.cdist(z, means).gather(1, index)
        rank = 1 - torch.arange(alpha, dtype=z.dtype, device=z.device) / alpha
        removed = top * rank * self._outlying(distance, index)
        revised = z.scatter(1, index, top - removed)
        return (removed.sum(dim=1) - torch.logsumexp(revised, dim=1)).float()

    def _outlying(self, distance: Tensor, index: Tensor) -> Tensor:
        """W_c of the distances (n, α) to the classes `index`."""
        start, shape, log_scale, known = (
            getattr(self, name).to(index.device)[index] for name in ("start_", "shape_", "log_scale_", "known_")
        )
        # Far below the tail, where the translation does not reach, the distribution is 0.
        log_t = torch.log1p(torch.where(known, ((distance - start) / _SHIFT).clamp(min=-1), 0.0))
        return torch.where(known, -torch.expm1(-torch.exp(shape * (log_t - log_scale))), 0.0)


def _correct(train: FeatureSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (n, c) float64 and labels (n,) of correctly classified samples, batch by batch."""
    for rows in train.batches():
        right = rows.logits.argmax(dim=1) == rows.labels
        yield rows.logits[right].double(), rows.labels[right]


def _largest_per_class(values: Tensor, labels: Tensor, classes: int, size: int) -> Tensor:
    """The `size` largest values of each class (c, size); NaN where a class has fewer."""
    order = values.argsort(descending=True)
    values, labels = values[order], labels[order]
    rank = stats.ranks_in_class(labels)
    largest = values.new_full((classes, size), torch.nan)
    among = rank < size
    largest[labels[among], rank[among]] = values[among]
    return largest


def _weibull(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum-likelihood shape and log scale (c,) of `excess` + shift, row by row; NaN entries are left out.

    The likelihood equation Σ t^k log t / Σ t^k − mean log t = 1/k has one root in k, as its left side grows and its
    right side falls. A row without spread has none: its distribution is the limit, a step.
    """
    present = ~excess.isnan()
    log_t = torch.log1p(excess.nan_to_num(nan=0.0).clamp(min=0, max=1e300) / _SHIFT)
    mean = (log_t * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
    low, high = torch.zeros_like(mean), torch.full_like(mean, torch.log(torch.tensor(_LARGEST_SHAPE)).item())
    for _ in range(80):
        middle = (low + high) / 2
        shape = middle.exp()[:, None]
        weight = torch.softmax((shape * log_t).masked_fill(~present, -1e300), dim=1)
        rising = (weight * log_t).sum(dim=1) - mean > 1 / middle.exp()
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    shape = ((low + high) / 2).exp()
    powers = (shape[:, None] * log_t).masked_fill(~present, -1e300)
    log_scale = (torch.logsumexp(powers, dim=1) - present.sum(dim=1).clamp(min=1).log()) / shape
    return shape, log_scale
