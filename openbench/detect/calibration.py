"""Calibration of a detector on held-out ID images: p-values, decisions and the guarantee, by group if there are any."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike, NDArray

from openbench.config.constraints import Checked, OneOf
from openbench.detect._images import BatchScores
from openbench.errors import ConfigError, DataError, did_you_mean, listed
from openbench.metrics.conformal.corrections import FINITE_SAMPLE, correction_table
from openbench.metrics.conformal.p_values import as_weights, conditional_size, marginal_size, weighted_p_values
from openbench.metrics.curve import Floats, as_scores

_ROUNDING = 1e-9  # far below the spacing 1 of ranks
_LISTED = 8  # groups named in a message
_NOT_PROMISED = (
    "Nothing is promised about the share of OOD images that are found, nor about images that are not drawn like the "
    "calibration images (another camera, another season): watch the stream of p-values."
)
Level = Annotated[float, Interval(gt=0, lt=1)]
Guarantee = Literal["marginal", "conditional"]
Codes = NDArray[np.int64]
Scores = NDArray[np.float32] | Floats  # compared with float64 as such


@dataclass(frozen=True)
class Terms(Checked):
    """The terms of the guarantee.

    Args:
        alpha: share of ID images that may be called OOD.
        delta: δ, the probability that calibration-conditional p-values do not hold for the calibration set, in any
            group.
        correction: of these p-values; one that holds for every number of images, see `metrics.conformal.corrections`.
        guarantee: by which p-value `is_ood` decides: `marginal` or `conditional`.
        coverage: share of ID images whose prediction set holds their class; None = 1 − alpha.
    """

    named = "calibrate"

    alpha: Level = 0.05
    delta: Level = 0.05
    correction: Annotated[str, OneOf(FINITE_SAMPLE)] = "monte_carlo"
    guarantee: Guarantee = "marginal"
    coverage: Level | None = None

    @property
    def level(self) -> float:
        """The coverage of prediction sets."""
        return 1.0 - self.alpha if self.coverage is None else self.coverage


class PValues(NamedTuple):
    """The p-values of m images, and whether each is called OOD.

    Args:
        marginal: (m,), super-uniform for ID images on average over calibration sets.
        conditional: (m,), super-uniform for ID images given the calibration set, with probability ≥ 1 − δ; NaN where
            the calibration is weighted.
        is_ood: (m,) bool.
    """

    marginal: Floats
    conditional: Floats
    is_ood: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of held-out ID images and the terms of the guarantee.

    Args:
        scores: (n,) larger = more OOD.
        terms: of the guarantee.
        groups: names of the groups; empty without groups.
        codes: (n,) the group of each image; None without groups.
        weights: (n,) density ratios under a known covariate shift; None without one.
        quantile: of the non-conformity 1 − softmax of the true classes, for prediction sets; None without labels.

    Raises:
        DataError: too few images for α, in all or in a group, or arrays that do not fit together.
        ConfigError: weights with the conditional guarantee.
    """

    scores: Floats
    terms: Terms
    groups: tuple[str, ...] = ()
    codes: Codes | None = None
    weights: Floats | None = None
    quantile: float | None = None

    def __post_init__(self) -> None:
        """Check that the scores suffice for the guarantee."""
        n, groups = as_scores(self.scores, "calibration scores").size, len(self.groups)
        if self.weights is not None:
            as_weights(self.weights, n, "calibration weights")
            if self.terms.guarantee == "conditional":
                raise ConfigError(
                    "calibrate.guarantee='conditional' is not known for weighted scores — choose 'marginal'"
                )
        codes = self.codes
        if groups if codes is None else codes.shape != (n,) or not {*codes} <= {*range(groups)}:
            raise DataError(f"calibration groups: one of {groups} for each of {n} images expected")
        for name, group in self.by_group.items():
            group.check_size(name)

    @property
    def group_terms(self) -> Terms:
        """The terms within each group.

        The corrections of all groups hold together with probability 1 − δ. The images of different groups are
        independent, so each of G groups gets 1 − (1 − δ)^(1/G).

        Reference: Šidák, J. Amer. Statist. Assoc. 62 (1967).
        """
        if len(self.groups) < 2:
            return self.terms
        return replace(self.terms, delta=float(-np.expm1(np.log1p(-self.terms.delta) / len(self.groups))))

    @cached_property
    def by_group(self) -> dict[str, "GroupCalibration"]:
        """Group → its calibration; '' without groups."""
        order, found = np.argsort(self.scores, kind="stable"), {}
        for code, name in enumerate(self.groups or ("",)):
            at = order if self.codes is None else order[self.codes[order] == code]
            weights = None if self.weights is None else self.weights[at]
            found[name] = GroupCalibration(self.scores[at], self.group_terms, weights)
        return found

    @property
    def thresholds(self) -> dict[str, float]:
        """Group → threshold; an image with a larger score is called OOD. '' without groups; empty with weights."""
        return {} if self.weights is not None else {name: group.threshold for name, group in self.by_group.items()}

    def judged(self, scores: Scores, codes: Codes | None = None, weights: ArrayLike | None = None) -> PValues:
        """Return the p-values of scores (m,) and the decisions at α.

        Args:
            scores: (m,) larger = more OOD.
            codes: (m,) the group of each; None without groups.
            weights: (m,) density ratios, or one for all; None without weights.

        Raises:
            DataError: groups or weights are missing, or given to a calibration without them.
        """
        if (weights is None) != (self.weights is None):
            word = "with" if self.weights is not None else "without"
            raise DataError(f"weights: the detector was calibrated {word} weights — call predict likewise")
        if weights is not None and np.ndim(weights) == 0:
            weights = np.full(scores.size, weights)
        ratios = None if weights is None else as_weights(weights, scores.size, "weights")
        codes = np.zeros(scores.size, np.int64) if self.codes is None else codes
        if codes is None or codes.shape != scores.shape:
            raise DataError(f"groups: one of {listed(self.groups, _LISTED)} per image expected, as in calibration")
        values = PValues(np.empty(scores.size), np.empty(scores.size), np.empty(scores.size, np.bool_))
        groups = tuple(self.by_group.values())
        for code in np.unique(codes):
            rows = codes == code
            parts = groups[code].judged(scores[rows], None if ratios is None else ratios[rows])
            for column, part in zip(values, parts, strict=True):
                column[rows] = part
        return values

    @property
    def promise(self) -> str:
        """The guarantee in words."""
        terms, percent, groups = self.terms, f"{100 * self.terms.alpha:g} %", len(self.groups)
        smallest = min(group.scores.size for group in self.by_group.values())
        images = f"{self.scores.size} calibration images"
        images += f" in {groups} groups (at least {smallest} in each)" * bool(groups)
        among = "in each group, " * bool(groups)
        if self.weights is not None:
            promise = (
                f"If new ID images come with the density that the weights say, at most {percent} of them are called "
                f"OOD, {among}on average over draws of the {images}."
            )
        elif terms.guarantee == "marginal":
            promise = (
                f"Of new ID images that are exchangeable with the calibration images, at most {percent} are called "
                f"OOD, {among}on average over draws of the {images}. For the set at hand the share may be larger; "
                f"p_value_conditional holds for it with probability {1 - terms.delta:g}."
            )
        else:
            promise = (
                f"With probability {1 - terms.delta:g} over the draw of the {images}, {among}at most {percent} of new "
                "ID images from the same distribution are called OOD, however many are looked at."
            )
        if self.quantile is not None:
            promise += (
                f" The prediction set of a new ID image holds its class with probability {terms.level:g} or more, on "
                "average over calibration sets."
            )
        return f"{promise} {_NOT_PROMISED}"


@dataclass(frozen=True, eq=False)
class GroupCalibration:
    """The calibration of one group.

    Args:
        scores: (n,) ascending.
        terms: of the guarantee within the group.
        weights: (n,) density ratios in this order; None without weights.
    """

    scores: Floats
    terms: Terms
    weights: Floats | None

    @cached_property
    def table(self) -> Floats:
        """The corrections (n+1,) of the ranks."""
        return correction_table(self.scores.size, self.terms.delta, self.terms.correction)

    @cached_property
    def limit(self) -> int:
        """The largest rank that is called OOD."""
        if self.terms.guarantee == "conditional":
            return int(np.searchsorted(self.table, self.terms.alpha, side="right"))
        return int(self.terms.alpha * (self.scores.size + 1) + _ROUNDING)

    @property
    def threshold(self) -> float:
        """The largest score that is not called OOD."""
        return float(self.scores[self.scores.size - self.limit])

    def check_size(self, name: str) -> None:
        """Check that a p-value can reach α.

        Raises:
            DataError: too few images.
        """
        alpha, n, conditional = self.terms.alpha, self.scores.size, self.terms.guarantee == "conditional"
        needed = marginal_size(alpha)
        if n >= needed and (not conditional or self.table[0] <= alpha):
            return
        if conditional:
            needed = conditional_size(alpha, self.terms.delta, self.terms.correction)
        who, each = (f"group {name!r}", " in each group") if name else ("calibration", "")
        what = f"{who} has {n} images, with which no p-value reaches α = {alpha:g}"
        raise DataError(f"{what} — give at least {needed}{each}, or a larger alpha")

    def judged(self, scores: Scores, weights: Floats | None) -> PValues:
        """Return the p-values of scores (m,) with their weights, and the decisions."""
        if self.weights is not None and weights is not None:
            p = weighted_p_values(self.scores, scores, self.weights, weights)
            return PValues(p, np.full(p.shape, np.nan), p <= self.terms.alpha)
        ranks = self.scores.size + 1 - self.scores.searchsorted(scores)
        return PValues(ranks / (self.scores.size + 1), self.table[ranks - 1], ranks <= self.limit)


PREDICTED_CLASS = "predicted_class"
_OF_CLASS = f"{PREDICTED_CLASS} "


def calibration_groups(groups: Any, outputs: BatchScores) -> tuple[tuple[str, ...], Codes | None]:
    """Return the names of the groups, and the group (n,) of each calibration image; None without groups.

    Args:
        groups: (n,) the group of each, `predicted_class`, or None.
        outputs: scores and logits of the images.

    Raises:
        DataError: another number of groups than of images, a name that is taken, or no classes to group by.
    """
    if groups is None:
        return (), None
    if isinstance(groups, str) and groups == PREDICTED_CLASS:
        if not outputs.logits.shape[1]:
            raise DataError(f"groups: '{groups}', and the network has no classifier — give a group per image")
        return tuple(f"{_OF_CLASS}{y}" for y in range(outputs.logits.shape[1])), outputs.predicted
    of_image = [] if isinstance(groups, str) or np.ndim(groups) != 1 else [str(group) for group in groups]
    if len(of_image) != len(outputs.scores) or any(name.startswith(_OF_CLASS) for name in of_image):
        what = f"groups: found {len(of_image) or repr(groups)} for {len(outputs.scores)} images"
        name = f"with a name that does not begin with '{_OF_CLASS}'; or '{PREDICTED_CLASS}'"
        raise DataError(f"{what} — one group per image expected, {name}")
    names, codes = np.unique(of_image, return_inverse=True)
    return tuple(names.tolist()), codes.astype(np.int64)


def groups_to_judge(calibration: Calibration, groups: Any, outputs: BatchScores) -> Codes | None:
    """Return the group (m,) of each image to judge; None if the detector was calibrated without groups.

    Args:
        calibration: of the detector.
        groups: one per image, one for all, or None.
        outputs: scores and logits of the images.

    Raises:
        DataError: groups are missing, unknown, or given where there are none.
    """
    by_class = bool(calibration.groups) and calibration.groups[0].startswith(_OF_CLASS)
    if by_class or not calibration.groups:
        if groups is not None and not (isinstance(groups, str) and groups == PREDICTED_CLASS and by_class):
            raise DataError("groups: the detector was calibrated without groups of your own — leave them out")
        return outputs.predicted if by_class else None
    names = [str(name) for name in ([groups] * len(outputs.scores) if np.ndim(groups) == 0 else groups)]
    for name in names:
        if name not in calibration.groups:
            what = f"group '{name}' was not calibrated{did_you_mean(name, calibration.groups)}"
            known = listed(calibration.groups, _LISTED)
            raise DataError(f"{what} (calibrated: {known}) — name the group of each image: groups=[…], --group NAME")
    return np.array([calibration.groups.index(name) for name in names], dtype=np.int64)
