"""The checks of streaming methods see what they are there to see."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from openbench.core.request import Field, Request, Role
from openbench.core.streaming import StreamingMethod
from openbench.testing.checks import CheckError
from openbench.testing.streaming import all_streaming_checks, run_streaming_checks


@dataclass
class Running(StreamingMethod[dict]):
    """Distance from the mean of all images so far and of training, each counted once."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "made up"

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


@dataclass
class Peeking(Running):
    """Learns from its whole batch before it scores the first image of it."""

    def score_next(self, x, memory):
        memory.update(sum=memory["sum"] + x.features.sum(dim=0), n=memory["n"] + len(x))
        return -x.logits.max(dim=1).values + (x.features - memory["sum"] / memory["n"]).norm(dim=1)


@dataclass
class Hoarding(Running):
    """Keeps in itself what a stream teaches."""

    def score_next(self, x, memory):
        self.mean_ = 0.9 * self.mean_ + 0.1 * x.features.mean(dim=0)
        return -x.logits.max(dim=1).values + (x.features - self.mean_).norm(dim=1)


@dataclass
class Inverted(Running):
    """Larger for ID."""

    def score_next(self, x, memory):
        return x.logits.max(dim=1).values


@dataclass
class Careless(Running):
    """Scores before it is fitted, writes to its images, and divides by the length of a feature."""

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
