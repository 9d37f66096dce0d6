"""Two scores in one: what finds misclassified ID inputs, and what separates OOD ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.constraints import NonNegative, Probability
from openbench.core.composite import Composite
from openbench.core.method import Method
from openbench.core.request import Request, Role
from openbench.errors import MethodError


@dataclass
class DoubleScore(Composite):
    """Weighted sum of two methods' scores, each standardised on ID validation.

    score(x) = (s_r(x) − m_r)/σ_r + μ (s_g(x) − m_g)/σ_g, m and σ the mean and standard deviation on ID validation.

    Args:
        risk: s_r, the method that finds misclassified ID inputs, e.g. MSP.
        ood: s_g, the method that separates OOD inputs, e.g. KNN or ViM.
        mu: μ ≥ 0. Tuning searches it for the least selective risk on ID validation against OOD validation, and of
            equal risks for the largest AUROC; 1 weighs both scores alike.
        tpr: φ_min, the least share of ID accepted in that choice; the paper's tables use .8.
        fpr: ρ_max, the largest share of OOD accepted in that choice; None takes the larger of the two shares that the
            parts alone accept at `tpr`, as the paper does among the methods it compares. Under `tune=oracle_per_set`
            also {OOD set: rate}.

    Raises:
        MethodError: a weight or rate out of range, or a part whose score is constant on ID validation.

    Reference: Franc, Prusa, Paplham, Reject option models comprising out-of-distribution detection, 2023,
    arXiv 2307.05199. The paper chooses μ and the threshold on test data, for each OOD set its own: that is
    `tune=oracle_per_set`. `tune=oracle` chooses one μ for all test sets; by default validation data choose it.
    """

    needs: ClassVar[Request] = Request(fit_on=Role.ID_VAL)
    reference: ClassVar[str] = "Franc et al., 2023, arXiv 2307.05199"

    risk: Method
    ood: Method
    mu: NonNegative = 1.0
    tpr: Probability = 0.8
    fpr: Probability | Mapping[str, Probability] | None = None

    @property
    def parts(self) -> Mapping[str, Method]:
        """`risk` and `ood`."""
        return {"risk": self.risk, "ood": self.ood}

    def learn(self, id_val: Mapping[str, Tensor]) -> Self:
        """Find each part's mean and population standard deviation over ID validation."""
        found = {}
        for name, scores in id_val.items():
            s = scores.double()
            mean, std = float(s.mean()), float(s.std(correction=0))
            if not 0 < std < float("inf"):
                raise MethodError(
                    f"{type(self).__name__}: the {name} score has mean {mean} and standard deviation {std} on ID "
                    "validation — a finite mean and a positive, finite deviation are needed — use another part"
                )
            found[name] = (mean, std)
        self.units_ = found
        return self

    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the two scores in their units, (n,) float32."""
        _ = self.fitted_parts
        risk, ood = ((scores[name].double() - mean) / std for name, (mean, std) in self.units_.items())
        # 0·∞ is not a number: at μ = 0 the second score is absent.
        total = risk + self.mu * ood if self.mu > 0 else risk
        return total.to(torch.float32)
