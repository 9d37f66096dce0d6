"""Search of hyper-parameters by AUROC. A Validation object gives no access to test splits.

Held-out classes: folds of the ID classes in place of OOD validation, on the cached features of the whole network. It
was trained with all classes, so this is a proxy: only `fit`, the classifier and the logits lose the held-out ones.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Checked, Seed
from openbench.core.benchmark import Benchmark, Split, Validation
from openbench.core.features import FeatureSet
from openbench.core.method import LiveMethod, Method, leaves
from openbench.core.request import CLASSES, STAGES, Field, Request, Role, Texts
from openbench.core.search import ChosenMethod, Trial, Tuned, best_trial, grid, with_params
from openbench.digest import digest
from openbench.engine.evaluate import FeatureSource, Fitting, Scoring, fit, predictions, score_split
from openbench.errors import ConfigError, MethodError, NotApplicableError
from openbench.features.changed_images import RECIPES, Recipe, check_recipes
from openbench.features.extract import select
from openbench.metrics.curve import auroc

Report = Callable[[int, int, Trial], None]
_LEFT = 2  # classes that are not held out, at least
Strategy = Literal["validation", "none", "held_out_classes", "synthetic", "oracle", "oracle_per_set"]


@dataclass(frozen=True)
class Tuning(Checked):
    """The way in which hyper-parameters are chosen.

    Args:
        strategy: `validation` searches the method's space on ID val against OOD val; `none` keeps the defaults;
            `held_out_classes` lets folds of the ID classes play OOD, `synthetic` images made of ID val: neither reads
            OOD data; `oracle` searches on the test sets themselves, `oracle_per_set` once for each OOD set on that set:
            bounds, which no leaderboard ranks.
        folds: of `held_out_classes`: parts of the ID classes, each of which is left out once.
        recipes: of `synthetic`: how its images are made.
        seed: of the draws of folds or images.
    """

    named: ClassVar[str] = "tune"

    strategy: Strategy = "validation"
    folds: Annotated[int, Ge(2)] = 5
    recipes: Annotated[Sequence[Recipe], MinLen(1)] = RECIPES
    seed: Seed = 0


@dataclass(frozen=True, eq=False)
class TestSplits:
    """The test splits, on which only the oracles choose: ID test against all OOD test sets together.

    `oracle_per_set` makes a choice for each OOD set, with that set alone.
    """

    __test__ = False  # pytest would take it for a test class

    id_test: Split
    ood_test: tuple[Split, ...]

    @classmethod
    def of(cls, benchmark: Benchmark) -> "TestSplits":
        """Return the test splits of a benchmark."""
        return cls(benchmark.id_test, (*benchmark.near.values(), *benchmark.far.values()))


@dataclass(frozen=True)
class TuneContext:
    """The data and functions that a search may use.

    Args:
        validation: ID val and OOD val; TestSplits for the oracle.
        fitting: the ID splits that `fit` may see.
        scoring: source of the columns, device and batch size.
        report: called after each trial with (done, total, trial).
    """

    validation: Validation | TestSplits
    fitting: Fitting
    scoring: Scoring
    report: Report = lambda done, total, trial: None

    @property
    def on_test(self) -> bool:
        """Whether the sides are test sets, as for the oracles."""
        return isinstance(self.validation, TestSplits)

    def fit(self, method: Method) -> Method:
        """Fit a method on the split that it declares and return it."""
        return fit(method, self.fitting, self.scoring.features, self.scoring.device)

    def scores(self, fitted: Method, splits: Sequence[Split]) -> NDArray[np.float32]:
        """Return the scores (n,) of some splits, joined, by a fitted method."""
        return np.concatenate([score_split(fitted, split, self.scoring) for split in splits])

    def correct(self, split: Split) -> NDArray[np.bool_]:
        """Return whether the network classifies each sample (n,) of an ID split correctly."""
        return predictions(split, self.scoring.features) == split.labels

    def sides(self) -> tuple[Split, tuple[Split, ...]]:
        """Return the ID split and the OOD splits on which settings are compared."""
        if isinstance(self.validation, TestSplits):
            return self.validation.id_test, self.validation.ood_test
        return self.validation.id_val, (self.validation.ood_val,)


def tune(method: Method, space: Mapping[str, Sequence[Any]], *contexts: TuneContext) -> Tuned:
    """Return the setting that the method's own search chooses, or that of the highest AUROC (ties: the first one).

    A setting for which the method is undefined (a subspace larger than the feature space) is recorded as infeasible
    with its reason.

    Args:
        method: unfitted.
        space: hyper-parameter → values to try.
        contexts: one, or several, of which the mean AUROC counts; a search of the method's own takes the first.

    Raises:
        MethodError: no setting of the space is feasible.
    """
    tuned = method.search(space, contexts[0])
    if tuned is not None:
        return tuned
    settings = grid(space, list(method.params()), type(method).__name__)
    # Settings that differ only in what `score` reads share a fit, and are tried next to one another.
    read = [repr({k: v for k, v in p.items() if k not in type(method).read_by_score}) for p in settings]
    order = sorted(range(len(settings)), key=lambda index: read.index(read[index]))
    found: list[list[dict[str, Any]]] = [[] for _ in settings]
    count = itertools.count(1)
    for context in contexts:
        fitted, of = None, ""
        for index in order:
            params = settings[index]
            if read[index] != of:
                fitted, of = None, read[index]  # before the next fit: one may take gigabytes
            try:
                unfitted = with_params(method, params)
                if fitted is None:
                    fitted = context.fit(unfitted)
                trial = _trial(_at(fitted, unfitted), context)
            except MethodError as error:
                trial = {"infeasible": str(error)}
            found[index].append(trial)
            context.report(next(count), len(settings) * len(contexts), {"params": params, **trial})
    trials = [{"params": params, **_mean(parts)} for params, parts in zip(settings, found, strict=True)]
    best = best_trial(method, trials)
    last = fitted if len(contexts) == 1 and read[trials.index(best)] == of else None
    return Tuned(dict(best["params"]), trials, last and _at(last, with_params(method, best["params"])))


def _mean(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of a setting's trials; infeasible if one of them is."""
    infeasible = next((part for part in parts if "infeasible" in part), None)
    if infeasible or len(parts) == 1:
        return infeasible or parts[0]
    return {"auroc": fmean(part["auroc"] for part in parts)}


def _at(fitted: Method, unfitted: Method) -> Method:
    """A copy of a fitted method, without what `score` stored in another, with what only `score` reads of `unfitted`."""
    found = copy.copy(fitted)
    for name in type(unfitted).read_by_score:
        setattr(found, name, getattr(unfitted, name))
    return found


def _trial(fitted: Method, context: TuneContext) -> dict[str, Any]:
    id_split, ood_splits = context.sides()
    inside = context.scores(fitted, (id_split,))
    outside = [context.scores(fitted, (split,)) for split in ood_splits]
    trial: dict[str, Any] = {"auroc": auroc(inside, np.concatenate(outside))}
    if len(ood_splits) > 1:
        trial["sets"] = {split.name: auroc(inside, scores) for split, scores in zip(ood_splits, outside, strict=True)}
    return trial


def check_strategy(tuning: Tuning, chosen: ChosenMethod, benchmark: Benchmark) -> None:
    """Check that a method can be tuned on a benchmark in this way.

    Raises:
        DataError: no OOD validation set for `validation`.
        ConfigError: too few classes, or ID validation images, for `held_out_classes`; rows for recipes of images.
        NotApplicableError: a method that cannot be had without some classes.
    """
    if not chosen.space:
        return
    if tuning.strategy == "validation":
        benchmark.validation()
    elif tuning.strategy == "held_out_classes":
        check_held_out(chosen, benchmark, tuning.folds)
    elif tuning.strategy == "synthetic":
        check_recipes(benchmark.id_val, tuning.recipes)


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
    if any(map(_reads_all_classes, chosen.settings)):
        raise NotApplicableError(
            f"tune=held_out_classes: method '{chosen.name}' has a search of its own, or reads what comes of a network "
            "with all classes (gradients, mixed images, outputs of a training, live passes) — use tune=synthetic or "
            "tune=none"
        )


def _reads_all_classes(method: Method) -> bool:
    parts = [(leaf, leaf.request) for leaf in leaves(method)]
    return type(method).search is not Method.search or any(
        isinstance(leaf, LiveMethod) or r.perturb or r.second_pass or r.mixing or set(r.layers) - set(STAGES)
        for leaf, r in parts
    )


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
