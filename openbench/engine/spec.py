"""What is run: objects that are ready, and what identifies the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from openbench.backbones.base import Backbone
from openbench.checkout import uncommitted
from openbench.core.benchmark import Benchmark, Split
from openbench.core.composite import leaves, version_of
from openbench.core.method import Method
from openbench.core.record import RunIdentity, texts_of
from openbench.engine.outcomes.learnt import Learnt
from openbench.engine.reads import settings_of
from openbench.engine.tune import Tuning
from openbench.features.texts import Corpus
from openbench.metrics.suite import MetricOptions
from openbench.public import public
from openbench.source import foreign_sources

_MADE_BY = "openbench.engine.run"  # with all that it imports


@dataclass(frozen=True)
class RunSpec:
    """What is run: objects that are ready, and the scientific config they were built from.

    Args:
        benchmark: splits and promises.
        backbone: trained, on its device.
        method: unfitted, with its default hyper-parameters.
        method_name: what users type after `method=`.
        space: hyper-parameter → values to search; empty = nothing to tune.
        tuning: how the search is done.
        metrics: which metrics at which operating points.
        config: the scientific config, plain and resolved; enters the record with public names.
        learnt: how the weights came about, None for released ones.
    """

    benchmark: Benchmark
    backbone: Backbone
    method: Method
    method_name: str
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    metrics: MetricOptions = field(default_factory=MetricOptions)
    config: Mapping[str, Any] = field(default_factory=dict)
    learnt: Learnt | None = None

    @property
    def training(self) -> str | None:
        """The training as users type it, None for released weights."""
        return None if self.learnt is None else self.learnt.training

    @property
    def outliers(self) -> Split | None:
        """What the training learnt from beside ID images, None if nothing."""
        return None if self.learnt is None else self.learnt.outliers

    @property
    def classified(self) -> bool:
        """Whether the network has a classifier for the benchmark's classes, so that there is an accuracy."""
        return tells_apart(self.backbone, self.benchmark)

    @cached_property
    def scientific(self) -> dict[str, Any]:
        """The config as records hold it: classes of openbench by their public names."""
        return {key: public(node) for key, node in self.config.items()}

    @cached_property
    def sources(self) -> dict[str, str]:
        """{module: SHA-256} of the code of this run that openbench does not ship."""
        return foreign_sources(*self._parts)

    @cached_property
    def uncommitted(self) -> dict[str, str]:
        """{file: SHA-256} of openbench's files in this run that differ from the commit."""
        return uncommitted(_MADE_BY, parts=self._parts)

    @cached_property
    def texts(self) -> list[dict[str, Any]]:
        """What a record says of the corpora of text that the method reads, at any setting that is searched.

        Their digests are part of the identity.
        """
        if not any(leaf.request.texts for leaf in leaves(self.method)):
            return []
        searched = {} if self.tuning.strategy == "none" else self.space
        settings = (self.method, *settings_of(self.method, searched))
        read = dict.fromkeys(texts for setting in settings for leaf in leaves(setting) for texts in leaf.request.texts)
        return [Corpus.of(self.backbone, texts).described() for texts in read]

    @property
    def _parts(self) -> tuple[object, ...]:
        trained_by = None if self.learnt is None else self.learnt.method
        return (self.method, trained_by, self.backbone, *(split.source for split in self.benchmark.splits()))

    @property
    def run_id(self) -> str:
        """The digest that names the record."""
        return self.identity.run_id

    @cached_property
    def identity(self) -> RunIdentity:
        """What identifies the run."""
        return RunIdentity(
            self.scientific,
            self.method_name,
            version_of(self.method),
            self.benchmark.digest,
            self.backbone.digest,
            self.training,
            images_read(self.benchmark),
            None if self.outliers is None else self.outliers.digest,
            self.sources,
            self.uncommitted,
            texts_of({"texts": self.texts}),
        )


def images_read(benchmark: Benchmark) -> dict[str, str]:
    """Return role → digest of the images, for the sets that are read and enter the benchmark's digest as lists only."""
    return {s.role.value: s.digest for s in benchmark.splits() if s.identity and not s.unread}


def tells_apart(backbone: Backbone, benchmark: Benchmark) -> bool:
    """Whether a network has a classifier for the classes of a benchmark."""
    return backbone.classifies and backbone.num_classes == len(benchmark.classes) > 1
