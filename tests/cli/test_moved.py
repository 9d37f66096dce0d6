"""Outliers given to the benchmark, as they once were: refused with today's spelling."""

import pytest

from openbench.compose.errors import parse
from openbench.compose.renamed import refuse_moved
from openbench.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "now"),
    [
        ("+dataset@benchmark.ood_train=imagenet800", "dataset@outliers=imagenet800"),
        ("dataset@benchmark.ood_train=noise", "dataset@outliers=noise"),
        ("benchmark.ood_train.limit=5", "outliers.limit=5"),
        ("++benchmark.ood_train.keep=[a,b]", "outliers.keep=[a,b]"),
    ],
)
def test_outliers_of_a_benchmark_are_refused_with_what_to_write(typed, now):
    with pytest.raises(ConfigError) as caught:
        refuse_moved(parse(["+benchmark=cifar10", typed]))
    assert str(caught.value).endswith(f"write {now}")


def test_other_overrides_pass():
    refuse_moved(parse(["~benchmark.ood_train", "dataset@outliers=noise", "benchmark.ood_val.limit=3", "seed=1"]))
