"""A benchmark whose images are replaced by the rows of a file of features; what it is and what it promises stay."""

from dataclasses import replace

from openbench.backbones.base import Backbone
from openbench.backbones.feature_file import FeatureFile
from openbench.core.benchmark import Benchmark, Split


def as_read_by(backbone: Backbone, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the items that a backbone reads: images, or the rows of its file.

    Labels, names and digests stay, so records say that the same images were evaluated.

    Raises:
        DataError: the file lacks a set or an image.
    """
    if not isinstance(backbone, FeatureFile):
        return benchmark

    def rows(split: Split) -> Split:
        return split if split.unread else replace(split, items=backbone.items_of(split))

    return replace(
        benchmark,
        id_train=rows(benchmark.id_train),
        id_val=rows(benchmark.id_val),
        id_test=rows(benchmark.id_test),
        near={name: rows(split) for name, split in benchmark.near.items()},
        far={name: rows(split) for name, split in benchmark.far.items()},
        csid={name: rows(split) for name, split in benchmark.csid.items()},
        ood_val=benchmark.ood_val and rows(benchmark.ood_val),
    )
