"""From scores to p-values and decisions: what a detector learnt from held-out ID images, whole or group by group."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike, NDArray

from openbench.config.constraints import Checked, OneOf
from openbench.detect.features import Scored
from openbench.errors import ConfigError, DataError, did_you_mean
from openbench.metrics.conformal.corrections import FINITE_SAMPLE, correction_table
from openbench.metrics.conformal.p_values import (
    as_weights,
    conditional_size,
    marginal_size,
    weighted_p_values_of_sorted,
)
from openbench.metrics.curve import Floats, as_scores

_ROUNDING = 1e-9  # far below the spacing 1 of ranks
_SHOWN = 8  # groups named in a message
Level = Annotated[float, Interval(gt=0, lt=1)]
Guarantee = Literal["marginal", "conditional"]
Codes = NDArray[np.int64]
Scores = NDArray[np.float32] | Floats  # compared with float64 as such


@dataclass(frozen=True)
class Terms(Checked):
    """What is promised.

    Args:
        alpha: share of ID images that may be called OOD.
        delta: δ, the probability that the calibration set is an unlucky one, in any group, of calibration-conditional
            p-values.
        correction: how these are corrected, by one that holds whatever the number of images; see
            `metrics.conformal.corrections`.
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
        """Coverage of prediction sets."""
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
    """Scores of held-out ID images, and what follows from them.

    Args:
        scores: (n,) larger = more OOD.
        terms: what is promised.
        groups: names of the groups; empty where all images are one group.
        codes: (n,) the group of each image; None where there are no groups.
        weights: (n,) density ratios under a known covariate shift; None where there is none.
        quantile: of the non-conformity 1 − softmax of the true classes, for prediction sets; None without labels.

    Raises:
        DataError: too few images for α, in all or in a group, or arrays that do not fit together.
    """

    scores: Floats
    terms: Terms
    groups: tuple[str, ...] = ()
    codes: Codes | None = None
    weights: Floats | None = None
    quantile: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot keep the promise."""
        n = as_scores(self.scores, "calibration scores").size
        if self.weights is not None:
            as_weights(self.weights, n, "calibration weights")
            if self.terms.guarantee == "conditional":
                raise ConfigError(
                    "calibrate.guarantee is 'conditional' with weights — calibration-conditional p-values are known "
                    "for unweighted scores only — leave weights out, or choose guarantee='marginal'"
                )
        codes = self.codes
        if (codes is None) != (not self.groups) or not (
            codes is None
            or (codes.shape == (n,) and codes.dtype == np.int64 and codes.min() >= 0 and codes.max() < len(self.groups))
        ):
            raise DataError(f"calibration groups: one of {len(self.groups)} for each of {n} images expected")
        for name, size in zip(self.groups or ("",), self.sizes, strict=True):
            self._check_size(name, size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Calibration images in each group."""
        if self.codes is None:
            return (self.scores.size,)
        return tuple(int(size) for size in np.bincount(self.codes, minlength=len(self.groups)))

    @property
    def own_terms(self) -> Terms:
        """What is promised within each group.

        The corrections of all groups hold together with probability 1 − δ, as those of one do. The images of one group
        are independent of those of another, so each of G groups gets 1 − (1 − δ)^(1/G).

        Reference: Šidák, J. Amer. Statist. Assoc. 62 (1967).
        """
        if len(self.groups) < 2:
            return self.terms
        return replace(self.terms, delta=float(-np.expm1(np.log1p(-self.terms.delta) / len(self.groups))))

    @cached_property
    def parts(self) -> tuple["Part", ...]:
        """What each group learnt; a single one where there are no groups."""
        masks = [slice(None)] if self.codes is None else [self.codes == code for code in range(len(self.groups))]
        return tuple(
            Part.of(self.scores[mask], self.own_terms, None if self.weights is None else self.weights[mask])
            for mask in masks
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """Group → score above which an image is called OOD; the group is '' where there are none, and none if weighted.

        An image is called OOD if its score is larger than the threshold, not if it is equal to it.
        """
        return {
            name: part.threshold
            for name, part in zip(self.groups or ("",), self.parts, strict=True)
            if part.threshold is not None
        }

    def judged(self, scores: Scores, codes: Codes | None = None, weights: ArrayLike | None = None) -> PValues:
        """Return the p-values of scores (m,) and the decisions at α.

        Args:
            scores: (m,) larger = more OOD.
            codes: (m,) the group of each; None where there are no groups.
            weights: (m,) density ratios; given if and only if the calibration is weighted.

        Raises:
            DataError: groups or weights are missing, or given where there are none.
        """
        if (weights is None) != (self.weights is None):
            have = "with" if self.weights is not None else "without"
            raise DataError(
                f"weights: the detector was calibrated {have} weights — predict must be called likewise: one density "
                "ratio per image, with the factor of the calibration's"
            )
        own = None if weights is None else as_weights(weights, scores.size, "weights")
        if self.codes is None:
            return self.parts[0].judged(scores, own)
        if codes is None or codes.shape != scores.shape:
            raise DataError(f"groups: one of {_listed(self.groups)} per image expected, as in calibration")
        found = PValues(np.empty(scores.size), np.empty(scores.size), np.empty(scores.size, np.bool_))
        for code in np.unique(codes):
            mask = codes == code
            part = self.parts[int(code)].judged(scores[mask], None if own is None else own[mask])
            for whole, rows in zip(found, part, strict=True):
                whole[mask] = rows
        return found

    def _check_size(self, name: str, size: int) -> None:
        terms = self.own_terms
        needed, smallest = marginal_size(terms.alpha), f"1/(n+1) = {1 / (size + 1):.3g}"
        short = size < needed
        if terms.guarantee == "conditional":  # a correction is only looked for where it decides: it needs more images
            short = short or bool(correction_table(size, terms.delta, terms.correction)[0] > terms.alpha)
            smallest = f"b_1 at δ = {terms.delta:g}"
        if not short:
            return
        if terms.guarantee == "conditional":
            needed = conditional_size(terms.alpha, terms.delta, terms.correction)
        where = f"group '{name}' has" if name else "calibration has"
        raise DataError(
            f"{where} {size} images — α = {terms.alpha:g} cannot be reached, since no p-value is below {smallest} — "
            f"at least {needed} images are needed{' in each group' if name else ''} — give more, or a larger alpha"
        )


@dataclass(frozen=True, eq=False)
class Part:
    """What the calibration scores of one group say.

    Args:
        ordered: (n,) ascending.
        table: (n+1,) corrections of the ranks; empty where weighted.
        limit: the largest rank, or corrected p-value's rank, that is called OOD.
        below: (n+1,) sums of the weights before each ordered score; None where not weighted.
        alpha: of the decision.
    """

    ordered: Floats
    table: Floats
    limit: int
    below: Floats | None
    alpha: float

    @classmethod
    def of(cls, scores: Floats, terms: Terms, weights: Floats | None) -> "Part":
        """Of the scores (n,) of a group, and their weights."""
        order = np.argsort(scores, kind="stable")
        ordered = np.asarray(scores, dtype=np.float64)[order]
        if weights is not None:
            return cls(ordered, np.empty(0), 0, np.append(0.0, np.cumsum(weights[order])), terms.alpha)
        table = correction_table(ordered.size, terms.delta, terms.correction)
        if terms.guarantee == "conditional":
            limit = int(np.searchsorted(table, terms.alpha, side="right"))
        else:
            limit = int(np.floor(terms.alpha * (ordered.size + 1) + _ROUNDING))
        return cls(ordered, table, limit, None, terms.alpha)

    @property
    def threshold(self) -> float | None:
        """The largest score that is not called OOD; None where it depends on the weight of an image."""
        return None if self.below is not None else float(self.ordered[self.ordered.size - self.limit])

    def judged(self, scores: Scores, own: Floats | None) -> PValues:
        """The p-values of scores (m,), whose weights are `own`, and the decisions."""
        if self.below is not None and own is not None:
            p = weighted_p_values_of_sorted(self.ordered, scores, self.below, own)
            return PValues(p, np.full(p.shape, np.nan), p <= self.alpha)
        ranks = self.ordered.size + 1 - self.ordered.searchsorted(scores)
        return PValues(ranks / (self.ordered.size + 1), self.table[ranks - 1], ranks <= self.limit)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' * (len(names) > _SHOWN)}"


_NOT = (
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
        said = (
            f"If new ID images come with the density that the weights say, at most {percent} of them are called OOD, "
            f"{among}on average over draws of the {images}."
        )
    elif terms.guarantee == "marginal":
        said = (
            f"Of new ID images that are exchangeable with the calibration images, at most {percent} are called OOD, "
            f"{among}on average over draws of the {images}. For the set at hand the share may be larger; "
            f"p_value_conditional holds for it with probability {1 - terms.delta:g}."
        )
    else:
        said = (
            f"With probability {1 - terms.delta:g} over the draw of the {images}, {among}at most {percent} of new ID "
            "images from the same distribution are called OOD, however many are looked at."
        )
    if calibration.quantile is not None:
        said += (
            f" The prediction set of a new ID image holds its class with probability {terms.level:g} or more, on "
            "average over calibration sets."
        )
    return f"{said} {_NOT}"


PREDICTED_CLASS = "predicted_class"
_OF_CLASS = f"{PREDICTED_CLASS} "


def calibration_groups(groups: Any, found: Scored) -> tuple[tuple[str, ...], Codes | None]:
    """Return the names of the groups, and the group (n,) of each calibration image; none where there are no groups.

    Args:
        groups: (n,) the group of each, `predicted_class`, or None.
        found: what the images yield.

    Raises:
        DataError: another number of groups than of images, a name that is taken, or no classes to group by.
    """
    if groups is None:
        return (), None
    if isinstance(groups, str) and groups == PREDICTED_CLASS:
        if not found.logits.shape[1]:
            raise DataError(f"groups: '{groups}', and the network has no classifier — give a group per image")
        return tuple(f"{_OF_CLASS}{y}" for y in range(found.logits.shape[1])), found.predicted
    given = [] if isinstance(groups, str) or np.ndim(groups) != 1 else [str(group) for group in groups]
    if len(given) != len(found.scores) or any(name.startswith(_OF_CLASS) for name in given):
        raise DataError(
            f"groups: found {f'{len(given)} for {len(found.scores)} images' if given else repr(groups)} — one group "
            f"per image expected, with a name that does not begin with '{_OF_CLASS}'; or '{PREDICTED_CLASS}'"
        )
    names = tuple(sorted(set(given)))
    places = {name: code for code, name in enumerate(names)}
    return names, np.array([places[name] for name in given], dtype=np.int64)


def groups_to_judge(calibration: Calibration, groups: Any, found: Scored) -> Codes | None:
    """Return the group (m,) of each image to judge; None where the detector was calibrated without groups.

    Args:
        calibration: of the detector.
        groups: one per image, one for all, or None.
        found: what the images yield.

    Raises:
        DataError: groups are missing, unknown, or given where there are none.
    """
    if not calibration.groups:
        if groups is not None:
            raise DataError("groups: the detector was calibrated without groups — leave them out")
        return None
    if calibration.groups[0].startswith(_OF_CLASS):
        if not (groups is None or (isinstance(groups, str) and groups == PREDICTED_CLASS)):
            raise DataError("groups: the detector's groups are the classes that it predicts — leave them out")
        return found.predicted
    if groups is None:
        raise DataError(
            f"groups: not given — the detector was calibrated group by group ({_listed(calibration.groups)}) — say of "
            "which group each image is: predict(images, groups=[…]), or --group NAME"
        )
    places = {name: code for code, name in enumerate(calibration.groups)}
    names = [str(name) for name in ([groups] * len(found.scores) if np.ndim(groups) == 0 else groups)]
    unknown = next((name for name in names if name not in places), None)
    if unknown is not None:
        raise DataError(
            f"group '{unknown}' was not calibrated{did_you_mean(unknown, calibration.groups)} — calibrated: "
            f"{_listed(calibration.groups)} — calibrate again with images of that group"
        )
    return np.array([places[name] for name in names], dtype=np.int64)
