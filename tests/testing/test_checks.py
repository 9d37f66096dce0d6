"""Each check passes on a right method and fails, for its own reason, on one with a planted bug."""

import random
import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method, StreamingMethod
from openbench.core.request import Field, Request, Role
from openbench.testing import _checks as checks
from openbench.testing._checks import CheckError, all_checks


@dataclass
class Right(Method):
    """Distance to the nearest class mean.

    score(x) = scale · min_c ‖f − μ_c‖.

    Args:
        scale: positive.

    Reference: nobody, TEST 2024, arXiv 2401.00001.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "nobody, TEST 2024, arXiv 2401.00001"

    scale: float = 1.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        self.means_ = torch.stack([train.features[train.labels == c].mean(dim=0) for c in train.labels.unique()])
        return self

    def score(self, x: FeatureSet) -> Tensor:
        return self.scale * torch.cdist(x.features, self.learnt("means_")).min(dim=1).values


# Name → what becomes of right scores (n,) of samples.
WRONG_SCORES = {
    "UndeclaredInScore": lambda raw, x: raw - x.logits.max(dim=1).values,
    "LabelsInScore": lambda raw, x: raw + x.labels,
    "Column": lambda raw, x: raw[:, None],
    "WithGradient": lambda raw, x: raw.requires_grad_(True),
    "NotFinite": lambda raw, x: raw / (x.features.sum(dim=1) > 0),
    "BatchNormalised": lambda raw, x: raw / raw.max(),
    # Right for each batch size tried on its own first row, wrong for any other order.
    "OrderDependent": lambda raw, x: raw + 0.5 * raw.cumsum(0) / torch.arange(1, len(raw) + 1),
    "GlobalNumpy": lambda raw, x: raw + np.float32(np.random.rand()),  # noqa: NPY002
    "GlobalPython": lambda raw, x: raw + random.random(),
    "Swapped": lambda raw, x: -raw,
    "Blind": lambda raw, x: 0 * raw,
}


class WrongScore(Right):
    """A right method but for its scores; its subclasses are made from the table."""

    def score(self, x):
        return WRONG_SCORES[type(self).__name__](super().score(x), x)


# Name → what a right method does besides when it is fitted.
WRONG_FITS = {
    "UndeclaredInFit": lambda method, train, head: train.logits,
    "WritesTrain": lambda method, train, head: train.features.div_(2),
    "WritesHead": lambda method, train, head: head.weight.mul_(2),
    "WritesParameter": lambda method, train, head: setattr(method, "scale", method.scale / 2),
    "PublicState": lambda method, train, head: setattr(method, "cache", 1),
    "GlobalTorch": lambda method, train, head: method.means_.add_(0.1 * torch.randn(1)),
    "SeedsGlobally": lambda method, train, head: torch.manual_seed(1),  # as the check does
    "Unpicklable": lambda method, train, head: setattr(method, "distance_", lambda a: a),
}


class WrongFit(Right):
    """A right method but for its fit; its subclasses are made from the table."""

    needs: ClassVar[Request] = replace(Right.needs, head=True)

    def fit(self, train, head):
        super().fit(train, head)
        WRONG_FITS[type(self).__name__](self, train, head)
        return self


WRONG = {name: type(name, (WrongScore,), {"__module__": __name__}) for name in WRONG_SCORES}
WRONG |= {name: type(name, (WrongFit,), {"__module__": __name__}) for name in WRONG_FITS}


class PoorMetadata(Right):
    """A distance."""


class NoReference(Right):
    __doc__ = Right.__doc__
    reference: ClassVar[str] = "private communication"


class LabelsWithoutSplit(Right):
    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}))


class ScoresUnfitted(Right):
    def score(self, x):
        return super().score(x) if hasattr(self, "means_") else x.features.sum(dim=1)


class CrashesUnfitted(Right):
    def score(self, x):
        return torch.cdist(x.features, self.means_).min(dim=1).values


class ReturnsNothing(Right):
    def fit(self, train, head):
        super().fit(train, head)


class Stateful(Right):
    def score(self, x):
        raw = super().score(x)
        self.seen_ = max(getattr(self, "seen_", 0.0), float(raw.max()))
        return raw + self.seen_


class WritesFeatures(Right):
    def score(self, x):
        raw = super().score(x)
        x.features.clamp_(max=1)
        return raw


@dataclass
class ConvertsParameter(Right):
    scale: float = 10.0

    def __post_init__(self):
        self.scale = self.scale / 10


class KeepsOldFit(Right):
    def fit(self, train, head):
        super().fit(train, head)
        self.count_ = getattr(self, "count_", 0) + 1
        self.means_ = self.means_ * self.count_
        return self


class PicklesRounded(Right):
    def __getstate__(self):
        return {**self.__dict__, "means_": self.means_.round()}


@dataclass
class HidesNaN(Right):
    pass


def scores_of_what_is_finite(self, x):
    return Right.score(self, FeatureSet({name: column.nan_to_num() for name, column in x.columns.items()}))


# Put there later, so that nothing holds what it is given to be finite.
HidesNaN.score = scores_of_what_is_finite


@dataclass
class Running(StreamingMethod[dict]):
    """Distance from the mean of all images so far and of training.

    score(x_i) = −max_c z_i,c + ‖f_i − μ_i‖/100.

    Reference: nobody, TEST 2024, arXiv 2401.00001.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "nobody, TEST 2024, arXiv 2401.00001"

    def fit(self, train, head):
        self.mean_ = train.features.mean(dim=0)
        return self

    def memory(self):
        return {"sum": 100 * self.learnt("mean_"), "n": 100}

    def score_next(self, x, memory):
        sums = memory["sum"] + x.features.cumsum(dim=0)
        counts = memory["n"] + torch.arange(1, len(x) + 1)[:, None]
        memory.update(sum=sums[-1], n=memory["n"] + len(x))
        return -x.logits.max(dim=1).values + 0.01 * (x.features - sums / counts).norm(dim=1)


class Ahead(Running):
    """The score of an image depends on the next one."""

    def score_next(self, x, memory):
        following = torch.cat([x.logits[1:], x.logits[-1:]])
        return super().score_next(x, memory) - 0.1 * following.max(dim=1).values


class Peeking(Running):
    """Learns from its whole batch before it scores the first image of it."""

    def score_next(self, x, memory):
        memory.update(sum=memory["sum"] + x.features.sum(dim=0), n=memory["n"] + len(x))
        return -x.logits.max(dim=1).values + (x.features - memory["sum"] / memory["n"]).norm(dim=1)


class Hoarding(Running):
    """Keeps in itself what a stream teaches."""

    def score_next(self, x, memory):
        scores = super().score_next(x, memory)
        self.mean_ = memory["sum"] / memory["n"]
        return scores


# check → methods that it must refuse, each with a piece of the message that names the reason
BUGS: dict[str, dict[str, str]] = {
    "check_metadata_is_complete": {"PoorMetadata": "a formula", "NoReference": "a year"},
    "check_declares_where_labels_come_from": {"LabelsWithoutSplit": "fits on no split"},
    "check_reads_only_declared_fields": {
        "UndeclaredInFit": "'logits'",
        "UndeclaredInScore": "'logits'",
        "LabelsInScore": "'labels'",
    },
    "check_unfitted_raises_not_fitted": {"ScoresUnfitted": "returns scores", "CrashesUnfitted": "AttributeError"},
    "check_fit_returns_self": {"ReturnsNothing": "return self"},
    "check_scores_are_one_float32_per_sample": {"Column": "(320, 1)", "WithGradient": "requires_grad"},
    "check_scores_are_finite": {"NotFinite": "40 of 120"},
    "check_rows_that_are_not_finite_get_no_score": {"HidesNaN": "row of nan"},
    "check_scores_do_not_depend_on_batch_size": {
        "BatchNormalised": "batches of 7",
        "OrderDependent": "batches of 7",
        "Peeking": "batches of 7",
    },
    "check_a_score_depends_on_no_later_image": {
        "Ahead": "with the images after them",
        "Peeking": "the images after them",
    },
    "check_scores_do_not_depend_on_order": {"OrderDependent": "shuffled"},
    "check_score_learns_nothing": {"Stateful": "in between", "Hoarding": "in between"},
    "check_inputs_stay_untouched": {"WritesFeatures": "'features'", "WritesTrain": "'features'", "WritesHead": "head"},
    "check_hyper_parameters_stay_as_given": {"WritesParameter": "0.5", "ConvertsParameter": "constructor"},
    "check_learnt_state_ends_in_underscore": {"PublicState": "cache"},
    "check_refit_equals_fresh_fit": {"KeepsOldFit": "second fit"},
    "check_deterministic": {"GlobalTorch": "differ", "GlobalNumpy": "differ", "GlobalPython": "differ"},
    "check_leaves_global_random_state": {
        "GlobalTorch": "global random state",
        "GlobalNumpy": "global random state",
        "GlobalPython": "global random state",
        "SeedsGlobally": "global random state",
    },
    "check_pickles": {"Unpicklable": "cannot be pickled", "PicklesRounded": "after pickling"},
    "check_separates_planted_clusters": {"Swapped": "sign", "Blind": "0.500"},
}


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.__name__)
def test_a_right_method_passes(check):
    check(Right)
    check(Running)


@pytest.mark.parametrize("wrong", sorted({wrong for found in BUGS.values() for wrong in found}))
def test_a_planted_bug_is_caught_by_its_checks_after_those_before_them(wrong):
    kind, told = WRONG.get(wrong) or globals()[wrong], {}
    for check in all_checks():
        try:
            check(kind)
        except CheckError as error:
            told[check.__name__] = str(error)
        except Exception:
            pass  # what else comes of the bug
    for name, reason in ((name, found[wrong]) for name, found in BUGS.items() if wrong in found):
        assert re.match(f"{wrong}: .*{re.escape(reason)}", told[name])


def test_every_check_is_listed_and_has_a_planted_bug():
    written = {name for name in vars(checks) if name.startswith("check_")}
    # What runs the network has bugs of its own, in test_live_checks.
    assert written == {check.__name__ for check in all_checks()} == set(BUGS) | {"check_leaves_the_network_as_it_was"}


def test_what_a_score_leaves_is_told_although_another_method_was_checked_in_between():
    caching = type("Caching", (Right,), {"score": lambda self, x: setattr(self, "cache", 1) or Right.score(self, x)})
    checks.check_deterministic(caching)
    checks.check_fit_returns_self(Right)
    with pytest.raises(CheckError, match="underscore: cache"):
        checks.check_learnt_state_ends_in_underscore(caching)


def test_the_global_random_state_survives_the_checks():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    checks.check_deterministic(Right)
    assert torch.equal(torch.get_rng_state(), before)
