"""Held-out classes: folds of the ID classes in place of OOD validation, on the cached features of the whole network.

The network was trained with all classes, so this is a proxy: only `fit`, the classifier and the logits lose the
held-out ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import Benchmark, Split, Validation
from openbench.core.composite import leaves
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import CLASSES, STAGES, Field, Request, Role, Texts
from openbench.core.search import ChosenMethod
from openbench.digest import digest
from openbench.engine.evaluate import FeatureSource, Fitting, Scoring
from openbench.engine.tune import Report, TuneContext
from openbench.errors import ConfigError, NotApplicableError
from openbench.features.extract import select

_LEFT = 2  # classes at least


def check_held_out(chosen: ChosenMethod, benchmark: Benchmark, folds: int) -> None:
    """Check that a method can be tuned on held-out classes of a benchmark.

    Raises:
        NotApplicableError: the method reads what cannot be had without the held-out classes.
        ConfigError: too few classes, or ID validation images without labels.
    """
    classes, val = len(benchmark.classes), benchmark.id_val
    if classes - -(-classes // folds) < _LEFT:
        raise ConfigError(
            f"tune=held_out_classes: benchmark '{benchmark.name}' has {classes} classes, and a fold of {folds} leaves "
            f"fewer than {_LEFT} — use more folds (tune.folds), or tune=synthetic"
        )
    if val.unread or val.labels.max() < 0:
        raise ConfigError(
            f"tune=held_out_classes: benchmark '{benchmark.name}' has no labelled ID validation images — use "
            "tune=synthetic or tune=none"
        )
    reasons = [reason for setting in chosen.settings for reason in _reasons(setting)]
    if reasons:
        raise NotApplicableError(
            f"tune=held_out_classes: method '{chosen.name}' {reasons[0]} — use tune=synthetic or tune=none"
        )


def _reasons(method: Method) -> Iterator[str]:
    """Why a method cannot be scored without some classes."""
    if type(method).search is not Method.search:
        yield "chooses by a search of its own on one OOD set, not by the mean AUROC over folds"
    for leaf in leaves(method):
        request = leaf.request
        if isinstance(leaf, LiveMethod):
            yield "runs the network itself, which has all classes"
        if request.perturb or request.second_pass:
            yield "moves images by a gradient of the whole classifier, which has all classes"
        if request.mixing:
            yield "learns from images mixed with those of OOD validation"
        if trained := set(request.layers) - set(STAGES):
            yield f"reads {', '.join(sorted(trained))}, which the network learnt in a training with all classes"


def folds_of(classes: int, folds: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the classes of each fold: a permutation drawn with the seed, cut into parts of equal size (± 1)."""
    drawn = np.random.default_rng(seed).permutation(classes)
    return [np.sort(part) for part in np.array_split(drawn, min(folds, classes))]


def held_out(
    held: NDArray[np.int64], benchmark: Benchmark, whole: Fitting, scoring: Scoring, report: Report
) -> TuneContext:
    """Return what a search may use while some classes play OOD.

    Args:
        held: the classes that are left out.
        benchmark: ID validation rows of other classes are ID, those of the held-out ones OOD.
        whole: the ID splits and the classifier with all classes.
        scoring: source of the columns with all classes.
        report: called after each trial.
    """
    classes = len(benchmark.classes)
    kept = np.setdiff1d(np.arange(classes), held)
    new = np.full(classes, -1)
    new[kept] = np.arange(len(kept))
    source = _WithoutClasses(scoring.features, kept, classes, {})
    names = tuple(benchmark.classes[k] for k in kept)

    def rows(split: Split, wanted: NDArray[np.int64]) -> Split:
        at = np.flatnonzero(np.isin(split.labels, wanted))
        part = select(split, at.tolist())
        key = digest({"of": split.digest, "classes": wanted, "without": held})
        part = replace(part, labels=new[part.labels], classes=names, digest=key)
        source.parts[key] = split, at
        return part

    # Training images that no method reads were not opened.
    train = whole.id_train if whole.id_train.unread else rows(whole.id_train, kept)
    val = rows(whole.id_val, kept)
    ood = replace(rows(whole.id_val, held), role=Role.OOD_VAL, classes=tuple(benchmark.classes[k] for k in held))
    head = whole.head
    if head.num_classes == classes:
        head = replace(head, weight=head.weight[kept], bias=head.bias[kept])
    return TuneContext(Validation(val, ood), Fitting(train, val, head), replace(scoring, features=source), report)


@dataclass(frozen=True, eq=False)
class _WithoutClasses(FeatureSource):
    """The columns of parts of splits, without the logits and class names of held-out classes.

    Args:
        whole: source of the columns with all classes.
        kept: the classes that are left.
        classes: number of all classes.
        parts: digest of a part → the split and its rows there.
    """

    whole: FeatureSource
    kept: NDArray[np.int64]
    classes: int
    parts: dict[str, tuple[Split, NDArray[np.int64]]]

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """Return the columns of a part; the rows are copied into memory."""
        of, rows = self.parts[split.digest]
        x = self.whole(of, request)
        part = x[torch.from_numpy(rows)]
        columns = dict(part.columns)
        if Field.LABELS in columns:
            columns[Field.LABELS] = torch.from_numpy(split.labels)
        if Field.LOGITS in columns and columns[Field.LOGITS].shape[1] == self.classes:
            columns[Field.LOGITS] = columns[Field.LOGITS][:, self.kept]
        return replace(part, columns=columns)

    def texts(self, texts: Texts) -> Tensor:
        """Return the embeddings of a corpus, without the names of held-out classes."""
        embeddings = self.whole.texts(texts)
        return embeddings[self.kept] if texts.words == CLASSES else embeddings
