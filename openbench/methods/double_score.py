"""Two scores in one: what finds misclassified ID inputs, and what separates OOD ones."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from openbench.config.constraints import NonNegative, Probability
from openbench.core import Composite, Method, Request, Role
from openbench.core.benchmark import Split
from openbench.core.search import SearchContext, Trial, Tuned, with_params
from openbench.errors import ConfigError, MethodError, did_you_mean
from openbench.metrics.selective import double_score as double, risk


@dataclass
class DoubleScore(Composite):
    """Weighted sum of two methods' scores, each standardised on ID validation.

    score(x) = (s_r(x) − m_r)/σ_r + μ (s_g(x) − m_g)/σ_g, m and σ the mean and standard deviation on ID validation.

    Args:
        risk: s_r, the method that finds misclassified ID inputs, e.g. MSP.
        ood: s_g, the method that separates OOD inputs, e.g. KNN or ViM.
        mu: μ ≥ 0. Tuning searches it for the least selective risk on ID validation against OOD validation, and among
            equal risks for the largest AUROC; 1 weighs both scores alike.
        tpr: φ_min, the least share of ID accepted in that choice; the paper's tables use .8.
        fpr: ρ_max, the largest share of OOD accepted in that choice; None takes the larger of the two shares that the
            parts alone accept at `tpr`, as the paper does among the methods it compares. Under `tune=oracle_per_set`
            also {OOD set: rate}.

    Raises:
        MethodError: a weight or rate out of range, or a part whose score is constant on ID validation.

    Reference: Franc, Prusa, Paplham, Reject option models comprising out-of-distribution detection, 2023,
    arXiv 2307.05199. The paper chooses μ and the threshold on test data, separately for each OOD set: that is
    `tune=oracle_per_set`. `tune=oracle` chooses one μ for all test sets; by default validation data choose it.
    """

    needs: ClassVar[Request] = Request(fit_on=Role.ID_VAL)
    search_reads_predictions: ClassVar[bool] = True
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
        self.units_ = {}
        for name, scores in id_val.items():
            s = scores.double()
            mean, std = float(s.mean()), float(s.std(correction=0))
            if not 0 < std < float("inf"):
                found = f"mean {mean} and standard deviation {std} on ID validation"
                raise MethodError(f"DoubleScore: the {name} score has {found} — use another part")
            self.units_[name] = (mean, std)
        return self

    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the two scores in their units, (n,) float32."""
        _ = self.fitted_parts
        risk, ood = ((scores[name].double() - mean) / std for name, (mean, std) in self.units_.items())
        # 0·∞ is not a number: at μ = 0 the second score is left out.
        total = risk + self.mu * ood if self.mu > 0 else risk
        return total.to(torch.float32)

    def search(self, space: Mapping[str, Sequence[Any]], context: SearchContext) -> Tuned:
        """Return the μ of least selective risk (ties: the largest AUROC) and every trial, with threshold and AUROC.

        Both parts are fitted and scored once for all weights.

        Raises:
            ConfigError: the space names anything but `mu`.
            MethodError: no weight meets the bounds.
        """
        if set(space) != {"mu"}:
            raise ConfigError(f"DoubleScore: `_space_` names {', '.join(space)} — allowed: mu")
        bound = self._bound(context)
        fitted: Any = context.fit(with_params(self, {}))
        id_split, ood_splits = context.sides()
        sets = (_pair(fitted, (id_split,), context), _pair(fitted, ood_splits, context))
        constraint = double.common_constraint(sets, self.tpr) if bound is None else risk.TprFpr(self.tpr, bound)
        standard = double.Standard(*fitted.units_["risk"], *fitted.units_["ood"])
        losses = 1.0 - context.correct(id_split)
        weighed = double.weighings(sets, losses, standard, constraint, [float(mu) for mu in space["mu"]])
        trials: list[Trial] = []
        for weighing in weighed:
            trials.append(_trial(weighing, constraint))
            context.report(len(trials), len(weighed), trials[-1])
        best = double.best_weighing(weighed)
        if isinstance(best, str):
            raise MethodError(
                f"DoubleScore: on {', '.join(s.name for s in ood_splits)}, {trials[0]['infeasible']} — raise "
                "method.fpr, lower method.tpr, or set method.fpr=null for a bound that can be met"
            )
        chosen = copy.copy(fitted)
        chosen.mu = best.mu
        return Tuned({"mu": best.mu}, trials, chosen)

    def _bound(self, context: SearchContext) -> float | None:
        """ρ_max of the choice; None where the parts set it.

        Raises:
            ConfigError: rates by OOD set where the choice is not made on one of these sets.
        """
        if not isinstance(self.fpr, Mapping):
            return self.fpr
        names = [split.name for split in context.sides()[1]]
        if not context.on_test or len(names) > 1:
            raise ConfigError(
                f"DoubleScore: method.fpr has rates for {', '.join(self.fpr)}, the weight is chosen on "
                f"{' and '.join(names)} — give one rate or null, or set tune=oracle_per_set"
            )
        if names[0] not in self.fpr:
            hint = did_you_mean(names[0], self.fpr)
            raise ConfigError(f"DoubleScore: method.fpr has no rate for the OOD set '{names[0]}'{hint} — give one")
        return float(self.fpr[names[0]])


def _pair(fitted: DoubleScore, splits: Sequence[Split], context: SearchContext) -> double.ScorePair:
    """Both parts' scores of some splits, joined."""
    risk, ood = (context.scores(fitted.fitted_parts[name], splits).astype(np.float64) for name in ("risk", "ood"))
    return double.ScorePair(risk, ood)


def _trial(weighing: double.Weighing, constraint: risk.TprFpr) -> Trial:
    """What a record holds of one weight."""
    trial: Trial = {"params": {"mu": weighing.mu}}
    if isinstance(weighing.point, str):
        trial["infeasible"] = f"no threshold accepts {constraint.tpr:g} of ID and at most {constraint.fpr:g} of OOD"
        return trial
    return {**trial, "auroc": weighing.auroc, "risk": weighing.point.value, "threshold": weighing.point.threshold}
