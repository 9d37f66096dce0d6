"""The classic scores of logits, on the cosines of a zero-shot classifier."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Positive
from openbench.core import FeatureSet, Field, Head, Method, Request
from openbench.methods._stats import log_odds_against_top
from openbench.methods._words import cosines, directions


@dataclass
class ZeroShot(Method):
    """Maximum softmax probability, maximum logit or energy of cosines, at a temperature of its own.

    score(x) = −max_c softmax(cos(f, w_c)/T)_c for `msp`, as log odds; −max_c cos(f, w_c) for `mls`, whatever T; and
    −T log Σ_c exp(cos(f, w_c)/T) for `energy`. `method=msp`, `mls` and `energy` read the logits instead, which carry
    the scale that the model learnt (100 for CLIP) and, in SigLIP, a bias.

    Args:
        kind: `msp`, `mls` or `energy`.
        temperature: T > 0. The zero-shot figures in print use 0.01 for the softmax (CLIP's own scale) and 1 for energy.

    Raises:
        MethodError: `msp` of one class.

    Reference: Ming et al., NeurIPS 2022, arXiv 2211.13445, whose tables have these baselines, after Hendrycks & Gimpel,
    ICLR 2017 (msp), Hendrycks et al., ICML 2022 (mls) and Liu et al., NeurIPS 2020 (energy). `msp` is returned as
    log((1 − p)/p) − log(C − 1) of the probability p, which ranks as −p does and never saturates.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)
    reference: ClassVar[str] = "Ming et al., NeurIPS 2022, arXiv 2211.13445"

    kind: Literal["msp", "mls", "energy"] = "msp"
    temperature: Positive = 0.01

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the directions of the head's rows."""
        self.prototypes_ = directions(head, "ZeroShot")
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        fits = cosines(x.features, self.learnt("prototypes_").to(x.features.device))
        if self.kind == "msp":
            return log_odds_against_top(fits, self.temperature)
        if self.kind == "energy":
            fits = self.temperature * torch.logsumexp(fits.double() / self.temperature, dim=1, keepdim=True)
        largest: Tensor = fits.amax(dim=1).float()
        return -largest
