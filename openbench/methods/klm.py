"""KL matching."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import log_softmax, training

_LEAST = torch.finfo(torch.float64).min


@dataclass
class KLM(Method):
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

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Average the softmax of ID validation logits (n, c) per predicted class, as logarithms."""
        train = training(train, "KLM")
        classes = train.logits.shape[1]
        largest = torch.full((classes, classes), _LEAST, dtype=torch.float64, device=train.device)
        sums, counts = torch.zeros_like(largest), torch.zeros_like(largest[:, :1])
        for rows in train.batches():
            log_p = log_softmax(rows.logits.double())
            predicted = log_p.argmax(dim=1)
            known, largest = largest, _raised(largest, predicted, log_p)
            sums *= (known - largest).exp()  # sums are of p divided by the largest
            sums.index_add_(0, predicted, (log_p - largest[predicted]).exp_())
            counts += torch.bincount(predicted, minlength=classes)[:, None]
        one_hot = torch.eye(classes, dtype=sums.dtype, device=sums.device)
        self.log_templates_ = torch.where(counts > 0, largest + (sums / counts).log(), one_hot.log())
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_templates = self.learnt("log_templates_").to(x.logits.device)
        log_p = log_softmax(x.logits.double())
        p = log_p.exp()
        empty = log_templates.isneginf()
        cross = p @ torch.where(empty, 0.0, log_templates).T  # over the support of the templates
        if bool(empty.any()):
            cross = cross.masked_fill(p @ empty.double().T > 0, -torch.inf)  # mass outside: KL is infinite
        negative_entropy: Tensor = (p * log_p).sum(dim=1)
        return (negative_entropy - cross.amax(dim=1)).float()


def _raised(largest: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Return `largest` (c, c), its row `index[i]` raised elementwise to `rows[i]` (c,) where that is larger."""
    return largest.scatter_reduce(0, index[:, None].expand_as(rows), rows, "amax")
