"""The checks of streaming methods see what they are there to see."""

import re
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from openbench.core.request import Field, Request, Role
from openbench.core.streaming import StreamingMethod
from openbench.errors import MethodError
from openbench.testing import check_method
from openbench.testing.checks import CheckError
from openbench.testing.streaming import all_streaming_checks, run_streaming_checks


@dataclass
class Running(StreamingMethod[dict]):
    """Distance from the mean of all images so far and of training, each counted once.

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


def like(cls):
    """A method that says of itself what `Running` says."""
    cls.__doc__ = Running.__doc__
    return dataclass(cls)


@like
class Ahead(Running):
    # The score of an image depends on the next one.
    def score_next(self, x, memory):
        following = torch.cat([x.logits[1:], x.logits[-1:]])
        return super().score_next(x, memory) - 0.1 * following.max(dim=1).values


@like
class Peeking(Running):
    # Learns from its whole batch before it scores the first image of it.
    def score_next(self, x, memory):
        memory.update(sum=memory["sum"] + x.features.sum(dim=0), n=memory["n"] + len(x))
        return -x.logits.max(dim=1).values + (x.features - memory["sum"] / memory["n"]).norm(dim=1)


@like
class Hoarding(Running):
    # Keeps in itself what a stream teaches.
    def score_next(self, x, memory):
        sums = 100 * self.mean_ + x.features.cumsum(dim=0)
        means = sums / (100 + torch.arange(1, len(x) + 1)[:, None])
        self.mean_ = means[-1]
        return -x.logits.max(dim=1).values + 0.01 * (x.features - means).norm(dim=1)


@like
class OneForAll(Running):
    # Begins each stream with the memory of the one before.
    def memory(self):
        self.memory_ = getattr(self, "memory_", None) or super().memory()
        return self.memory_


@like
class Writing(Running):
    # Subtracts in place.
    def score_next(self, x, memory):
        x.features.sub_(0.5)
        return super().score_next(x, memory)


@like
class Silent(Running):
    # Its `fit` returns nothing.
    def fit(self, train, head):
        super().fit(train, head)


@like
class Inverted(Running):
    # Larger for ID.
    def score_next(self, x, memory):
        return x.logits.max(dim=1).values


@like
class Careless(Running):
    # Scores before it is fitted, writes to its images, and divides by the length of a feature.
    seen: list = field(default_factory=list)

    def memory(self):
        return {}

    def score_next(self, x, memory):
        self.seen.append(len(x))
        x.features.add_(0.0 if x.features.abs().max() > 50 else 1.0)
        return x.features.sum(dim=1) / (x.features.norm(dim=1) - x.features.norm(dim=1))


def broken(make) -> set[str]:
    found = set()
    for check in all_streaming_checks():
        try:
            check(make)
        except CheckError:
            found.add(check.__name__)
    return found


def test_a_method_of_the_past_passes():
    run_streaming_checks(Running)
    assert str(check_method(Running)) == f"Running passes all {len(all_streaming_checks())} checks"


LATER = "the scores of 100 images change with the images after them"
BATCHES = "batches of 1 give other scores than one batch"


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (Ahead, {LATER: "score_next", BATCHES: "score_next"}),
        (OneForAll, {"memory() returns the memory of the stream before — return a new": "memory"}),
        (Hoarding, {BATCHES: "score_next", "what it taught before is left outside of its memory": "score_next"}),
        (Writing, {"score_next overwrites the features it is given — work on a copy": "score_next"}),
        (Silent, {"fit must return self": "fit"}),
    ],
)
def test_each_fault_is_told_in_words_with_its_place_and_nothing_else_is(method, told):
    with pytest.raises(MethodError) as error:
        check_method(method)
    head, *lines = str(error.value).splitlines()
    assert head == f"{method.__name__} fails {len(told)} of {len(all_streaming_checks())} checks:"
    faults = [line for line in lines if re.match(r"  \d", line)]
    places = [line for line in lines if ", in " in line]
    for (words, function), fault, place in zip(told.items(), faults, places, strict=True):
        assert words in fault
        assert f"in {function}: def {function}(" in place


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Peeking, {"check_a_score_depends_on_no_later_image", "check_batches_do_not_matter"}),
        (Hoarding, {"check_memory_is_all_that_a_stream_changes"}),
        (Inverted, {"check_separates_planted_clusters"}),
        (Careless, {"check_scores_are_one_finite_float32_per_image", "check_an_unfitted_method_says_so"}),
    ],
)
def test_planted_faults_are_found(make, expected):
    assert expected <= broken(make)
    with pytest.raises(CheckError, match=make.__name__):
        run_streaming_checks(make)
