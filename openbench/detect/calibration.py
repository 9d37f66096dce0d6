"""Calibration of a detector on held-out ID images: p-values, decisions and the guarantee, by group if there are any."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike, NDArray

from openbench.config.constraints import Checked, OneOf
from openbench.detect._features import BatchScores
from openbench.errors import ConfigError, DataError, did_you_mean, listed
from openbench.metrics.conformal.corrections import FINITE_SAMPLE, correction_table
from openbench.metrics.conformal.p_values import (
    as_weights,
    conditional_size,
    marginal_size,
    weighted_p_values,
)
from openbench.metrics.curve import Floats, as_scores

_ROUNDING = 1e-9  # far below the spacing 1 of ranks
_LISTED = 8  # groups named in a message
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
        n = as_scores(self.scores, "calibration scores").size
        if self.weights is not None:
            as_weights(self.weights, n, "calibration weights")
            if self.terms.guarantee == "conditional":
                raise ConfigError(
                    "calibrate.guarantee='conditional' is not known for weighted scores — leave weights out, or choose "
                    "guarantee='marginal'"
                )
        codes, groups = self.codes, len(self.groups)
        fit = not groups if codes is None else codes.shape == (n,) and {*codes.tolist()} <= {*range(groups)}
        if not fit:
            raise DataError(f"calibration groups: one of {groups} for each of {n} images expected")
        terms, conditional = self.group_terms, self.terms.guarantee == "conditional"
        for name, size in zip(self.groups or ("",), self.sizes, strict=True):
            enough = size >= marginal_size(terms.alpha)
            if enough and conditional:
                enough = correction_table(size, terms.delta, terms.correction)[0] <= terms.alpha
            if enough:
                continue
            needed = marginal_size(terms.alpha)
            if conditional:
                needed = conditional_size(terms.alpha, terms.delta, terms.correction)
            raise DataError(
                f"{f'group {name!r}' if name else 'calibration'} has {size} images, with which no p-value reaches α = "
                f"{terms.alpha:g} — give at least {needed}{' in each group' if name else ''}, or a larger alpha"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of calibration images in each group."""
        if self.codes is None:
            return (self.scores.size,)
        return tuple(int(size) for size in np.bincount(self.codes, minlength=len(self.groups)))

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
    def by_group(self) -> tuple["GroupCalibration", ...]:
        """The calibration of each group; a single one without groups."""
        masks = [slice(None)] if self.codes is None else [self.codes == code for code in range(len(self.groups))]
        weights = self.weights
        return tuple(
            GroupCalibration.of(self.scores[mask], self.group_terms, None if weights is None else weights[mask])
            for mask in masks
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """Group → threshold; an image with a larger score is called OOD. '' without groups; empty with weights."""
        thresholds = zip(self.groups or ("",), (group.threshold for group in self.by_group), strict=True)
        return {name: threshold for name, threshold in thresholds if threshold is not None}

    def judged(self, scores: Scores, codes: Codes | None = None, weights: ArrayLike | None = None) -> PValues:
        """Return the p-values of scores (m,) and the decisions at α.

        Args:
            scores: (m,) larger = more OOD.
            codes: (m,) the group of each; None without groups.
            weights: (m,) density ratios; None without weights.

        Raises:
            DataError: groups or weights are missing, or given to a calibration without them.
        """
        if (weights is None) != (self.weights is None):
            word = "with" if self.weights is not None else "without"
            raise DataError(f"weights: the detector was calibrated {word} weights — call predict likewise")
        ratios = None if weights is None else as_weights(weights, scores.size, "weights")
        if self.codes is None:
            return self.by_group[0].judged(scores, ratios)
        if codes is None or codes.shape != scores.shape:
            raise DataError(f"groups: one of {listed(self.groups, _LISTED)} per image expected, as in calibration")
        values = PValues(np.empty(scores.size), np.empty(scores.size), np.empty(scores.size, np.bool_))
        for code in np.unique(codes):
            mask = codes == code
            rows = self.by_group[int(code)].judged(scores[mask], None if ratios is None else ratios[mask])
            for column, part in zip(values, rows, strict=True):
                column[mask] = part
        return values


@dataclass(frozen=True, eq=False)
class GroupCalibration:
    """Calibration scores of one group.

    Args:
        ordered: (n,) ascending.
        weights: (n,) density ratios in this order; None without weights.
        table: (n+1,) corrections of the ranks; empty with weights.
        limit: the largest rank that is called OOD; 0 with weights.
        alpha: of the decision.
    """

    ordered: Floats
    weights: Floats | None
    table: Floats
    limit: int
    alpha: float

    @classmethod
    def of(cls, scores: Floats, terms: Terms, weights: Floats | None) -> "GroupCalibration":
        """Return the calibration of a group with scores (n,) and their weights."""
        order = np.argsort(scores, kind="stable")
        ordered = np.asarray(scores, dtype=np.float64)[order]
        if weights is not None:
            return cls(ordered, weights[order], np.empty(0), 0, terms.alpha)
        table = correction_table(ordered.size, terms.delta, terms.correction)
        if terms.guarantee == "conditional":
            limit = int(np.searchsorted(table, terms.alpha, side="right"))
        else:
            limit = int(np.floor(terms.alpha * (ordered.size + 1) + _ROUNDING))
        return cls(ordered, None, table, limit, terms.alpha)

    @property
    def threshold(self) -> float | None:
        """The largest score that is not called OOD; None with weights: it depends on the weight of an image."""
        return None if self.weights is not None else float(self.ordered[self.ordered.size - self.limit])

    def judged(self, scores: Scores, weights: Floats | None) -> PValues:
        """Return the p-values of scores (m,) with their weights, and the decisions."""
        if self.weights is not None and weights is not None:
            p = weighted_p_values(self.ordered, scores, self.weights, weights)
            return PValues(p, np.full(p.shape, np.nan), p <= self.alpha)
        ranks = self.ordered.size + 1 - self.ordered.searchsorted(scores)
        return PValues(ranks / (self.ordered.size + 1), self.table[ranks - 1], ranks <= self.limit)


_NOT_PROMISED = (
    "Nothing is promised about the share of OOD images that are found, nor about images that are not drawn like the "
    "calibration images (another camera, another season): watch the stream of p-values."
)


def promise_of(calibration: Calibration) -> str:
    """Return the guarantee of a calibrated detector.

    Args:
        calibration: of the detector.
    """
    terms, percent = calibration.terms, f"{100 * calibration.terms.alpha:g} %"
    n, groups = sum(calibration.sizes), len(calibration.groups)
    images = f"{n} calibration images" + (
        f" in {groups} groups (at least {min(calibration.sizes)} in each)" * bool(groups)
    )
    among = "in each group, " if groups else ""
    if calibration.weights is not None:
        promise = (
            f"If new ID images come with the density that the weights say, at most {percent} of them are called OOD, "
            f"{among}on average over draws of the {images}."
        )
    elif terms.guarantee == "marginal":
        promise = (
            f"Of new ID images that are exchangeable with the calibration images, at most {percent} are called OOD, "
            f"{among}on average over draws of the {images}. For the set at hand the share may be larger; "
            f"p_value_conditional holds for it with probability {1 - terms.delta:g}."
        )
    else:
        promise = (
            f"With probability {1 - terms.delta:g} over the draw of the {images}, {among}at most {percent} of new ID "
            "images from the same distribution are called OOD, however many are looked at."
        )
    if calibration.quantile is not None:
        promise += (
            f" The prediction set of a new ID image holds its class with probability {terms.level:g} or more, on "
            "average over calibration sets."
        )
    return f"{promise} {_NOT_PROMISED}"


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
        raise DataError(
            f"groups: found {len(of_image) or repr(groups)} for {len(outputs.scores)} images — one group per image "
            f"expected, with a name that does not begin with '{_OF_CLASS}'; or '{PREDICTED_CLASS}'"
        )
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
            raise DataError(
                f"group '{name}' was not calibrated{did_you_mean(name, calibration.groups)} (calibrated: "
                f"{listed(calibration.groups, _LISTED)}) — name the group of each image: predict(images, groups=[…]), "
                "or --group NAME"
            )
    return np.array([calibration.groups.index(name) for name in names], dtype=np.int64)
