"""Checks of the contract of post-hoc methods; `openbench.testing.check_method` runs them all."""

import pickle
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Composite, LiveMethod, Method, StreamingMethod, leaves
from openbench.core.request import Field
from openbench.errors import FieldError, MethodError, NotFittedError
from openbench.metrics.curve import auroc
from openbench.testing._toy import (
    Toy,
    copied,
    declared,
    fitted,
    images_with,
    network_with,
    planted,
    read_by,
    returned_by_fit,
    samples_of,
    scored,
)

MethodFactory = Callable[[], Method]  # returns a new, unfitted method at each call
Check = Callable[[MethodFactory], None]

SEPARATION = 0.8  # AUROC that any OOD score must reach on the planted clusters
_TOLERANCE = 1e-4  # of the range of scores, for another order of float32 sums
_STREAM_TOLERANCE = 1e-5  # likewise in a stream, where an error reaches all later images


class CheckError(AssertionError):
    """A method breaks its contract."""


def check_metadata_is_complete(make: Callable[[], Any]) -> None:
    """A class that states formula, hyper-parameters, version and a reference with year and arXiv id or venue."""
    method = make()
    cls, doc = type(method), type(method).__doc__ or ""
    reference = getattr(cls, "reference", "")
    found = f"in `reference` (found {reference!r})"
    patterns = {
        f"a year {found}": (r"\b(19|20)\d{2}\b", reference),
        f"an arXiv id or venue {found}": (r"arXiv[: ]\d{4}\.\d{4,5}|\b[A-Z]{2,}", reference),
        "a formula `score(x) = …` in the docstring": (r"^\s*score(\(x(_i)?\))? = ", doc),
        "a `Reference:` section in the docstring": ("Reference:", doc),
        f"a version ≥ 1 (found {cls.version!r})": (r"^[1-9]\d*$", repr(cls.version)),
        **{f"a line on '{name}' under Args": (rf"^\s*{name}: ", doc) for name in method.params()},
    }
    missing = [what for what, (pattern, text) in patterns.items() if not re.search(pattern, text, re.MULTILINE)]
    if missing:
        _fail(make, f"metadata lacks {'; '.join(missing)}")


def check_declares_where_labels_come_from(make: MethodFactory) -> None:
    """A request with labels names the split of `fit`: `score` gets no labels."""
    request = make().request
    if Field.LABELS in request.fields and request.fit_on is None:
        _fail(make, "declares labels but fits on no split — set fit_on, or leave labels out")


def check_reads_only_declared_fields(make: MethodFactory) -> None:
    """`fit` and `score` run on the declared columns alone; labels are gone before `score`."""
    try:
        _first_scores(make)
    except FieldError as error:
        _fail(make, f"reads a column that its request does not name: {error}")


def check_unfitted_raises_not_fitted(make: MethodFactory) -> None:
    """`score` before `fit` raises NotFittedError if there is something to fit."""
    method, data = make(), planted()
    if method.request.fit_on is None and not method.request.head:
        return
    try:
        scored(method, samples_of(method, data), data)
    except NotFittedError:
        return
    except Exception as error:
        _fail(make, f"score before fit raises {type(error).__name__}: {error} — NotFittedError expected")
    _fail(make, "score before fit returns scores — NotFittedError expected")


def check_fit_returns_self(make: MethodFactory) -> None:
    """`fit` returns the method itself, so that calls chain."""
    _, method, _, _, returned = _fitted_once(make)
    if returned is not method:
        _fail(make, "fit must return self")


def check_scores_are_one_float32_per_sample(make: MethodFactory) -> None:
    """Scores have shape (n,), dtype float32 and no gradient."""
    n, scores = len(_ready(make)[2]), _first_scores(make)
    if scores.shape != (n,) or scores.dtype != torch.float32 or scores.requires_grad:
        kind = f"{tuple(scores.shape)} {scores.dtype} requires_grad={scores.requires_grad}"
        _fail(make, f"scores must be ({n},) torch.float32 without gradient — found {kind}")


def check_scores_are_finite(make: MethodFactory) -> None:
    """Scores are finite, also where logits saturate or all features are zero."""
    data, method, x = _ready(make)
    extreme = FeatureSet(
        {name: torch.cat([c[:40], 100 * c[40:80], 0 * c[80:120]]) for name, c in x.columns.items()},
        {name: torch.cat([m[:40], 100 * m[40:80], 0 * m[80:120]]) for name, m in x.maps.items()},
    )
    scores = {"planted samples": _first_scores(make), "samples scaled by 100 and by 0": scored(method, extreme, data)}
    for what, found in scores.items():
        if bad := int((~found.isfinite()).sum()):
            _fail(make, f"{bad} of {len(found)} scores of {what} are not finite")


def check_scores_do_not_depend_on_batch_size(make: MethodFactory) -> None:
    """Scoring all rows at once, seven at a time or one by one gives the same scores."""
    data, method, rows = _ready(make)
    x, tolerance = rows[:30], _STREAM_TOLERANCE if isinstance(method, StreamingMethod) else _TOLERANCE
    whole = scored(method, x, data)
    for size in (7, 1):
        parts = _in_batches(method, x, data, size)
        _same(make, whole, parts, f"batches of {size} give other scores than one batch", tolerance)


def check_scores_do_not_depend_on_order(make: MethodFactory) -> None:
    """Shuffled rows give shuffled scores, except in a stream."""
    data, method, x = _ready(make)
    if isinstance(method, StreamingMethod):
        return
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    _same(make, _first_scores(make)[order], scored(method, x[order], data), "shuffled rows give other scores")


def check_a_score_depends_on_no_later_image(make: MethodFactory) -> None:
    """In a stream, the scores of the first 100 images do not depend on the images after them."""
    if not isinstance(make(), StreamingMethod):
        return
    data, method, x = _ready(make)
    x = x[:200]
    before = scored(method, x, data)[:100]
    other = FeatureSet({name: torch.cat([c[:100], 3 * c[100:].flip(0)]) for name, c in x.columns.items()})
    after = scored(method, other, data)[:100]
    _same(make, before, after, "the scores of 100 images change with the images after them", _STREAM_TOLERANCE)
    alone = scored(method, x[:100], data)
    _same(make, before, alone, "100 images alone have other scores than with images after them", _STREAM_TOLERANCE)


def check_score_learns_nothing(make: MethodFactory) -> None:
    """Scoring one set does not change the scores of another."""
    data, method, x, before, _ = _fitted_again(make)
    scored(method, declared(data.ood_test, read_by(method)).without_labels(), data)
    _same(make, before, scored(method, x, data), "scoring other samples in between changes scores", 0.0)


def check_inputs_stay_untouched(make: MethodFactory) -> None:
    """Neither `fit` nor `score` writes to columns, maps or head."""
    data, method = planted(), make()
    train, head = data.for_fit(method.request), data.head_for(method.request)
    # Copies share no memory with the toy, so a write is seen here and nowhere else.
    x = copied(declared(data.id_test[:100], read_by(method)).without_labels())
    inputs = [x] if train is None else [x, train]
    pristine, weight, bias = [copied(given) for given in inputs], data.head.weight.clone(), data.head.bias.clone()
    if isinstance(method, Composite):
        fitted(method, data)
    else:
        method.fit(train, head)
    scored(method, x, data)
    pairs = [(old.named(), new.named()) for old, new in zip(pristine, inputs, strict=True)]
    changed = [name for old, new in pairs for name, before in old.items() if not torch.equal(new[name], before)]
    if changed:
        _fail(make, f"overwritten: {', '.join(map(repr, changed))} — work on a copy")
    if not (torch.equal(data.head.weight, weight) and torch.equal(data.head.bias, bias)):
        _fail(make, "the head was overwritten — work on a copy")


def check_leaves_the_network_as_it_was(make: MethodFactory) -> None:
    """A live method leaves weights, hooks, gradients and images as they were."""
    method = make()
    if not isinstance(method, LiveMethod):
        return
    fitted(method, data := planted())
    network, images = network_with(data.head), images_with(data.id_test.features[:20])
    before, pristine = network.weights_sha256, images.clone()
    method.score_images(images, network)
    module = network.module()  # from here on the hash of the weights is computed again
    if network.weights_sha256 != before:
        _fail(make, "changes the network's weights — work on a copy")
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules()):
        _fail(make, "leaves hooks in the network — remove them when done")
    if any(p.grad is not None for p in module.parameters()) or any(m.training for m in module.modules()):
        _fail(make, "leaves gradients or training mode behind — run the network in `with backbone.frozen()`")
    if not torch.equal(images, pristine) or images.requires_grad:
        _fail(make, "overwrites the images it is given, or asks for their gradients — work on a copy")


def check_hyper_parameters_stay_as_given(make: MethodFactory) -> None:
    """Hyper-parameters are stored verbatim and neither `fit` nor `score` changes them."""
    _, method, _, before, _ = _fitted_once(make)
    if type(method)(**before).params() != before:
        _fail(make, f"the constructor changes its arguments — given {before}")
    _first_scores(make)
    if method.params() != before:
        _fail(make, f"fit or score changed hyper-parameters from {before} to {method.params()}")


def check_learnt_state_ends_in_underscore(make: MethodFactory) -> None:
    """Attributes that `fit` and `score` set have a name that ends in `_`."""
    method = _ready(make)[1]
    _first_scores(make)
    if names := sorted(name for name in set(vars(method)) - set(vars(make())) if not name.endswith("_")):
        _fail(make, f"learnt attributes without a final underscore: {', '.join(names)}")


def check_refit_equals_fresh_fit(make: MethodFactory) -> None:
    """`fit` forgets: after a fit on other data of another shape, it learns what a new object would."""
    data, _, x, fresh, _ = _fitted_again(make)
    used = fitted(fitted(make(), planted(seed=1, classes=4, free=16)), data)
    _same(make, fresh, scored(used, x, data), "a second fit gives other scores than a first one")


def check_deterministic(make: MethodFactory) -> None:
    """Two fits under different global seeds give equal scores: randomness comes from the method's own generator."""
    if not torch.equal(_first_scores(make), _fitted_again(make)[3]):
        _fail(make, "two fits and scores of the same data differ — draw from a generator with a fixed seed")


def check_leaves_global_random_state(make: MethodFactory) -> None:
    """`fit` and `score` neither draw from nor seed the global generators."""
    if not _fitted_again(make)[4]:
        _fail(make, "the global random state changed — use a torch.Generator or numpy Generator")


def check_pickles(make: MethodFactory) -> None:
    """A fitted method survives pickling and gives the same scores."""
    data, method, x = _ready(make)
    try:
        scores = scored(pickle.loads(pickle.dumps(method)), x[:100], data)
    except Exception as error:
        _fail(make, f"cannot be pickled after fit and score again — {type(error).__name__}: {error}")
    _same(make, _first_scores(make)[:100], scores, "scores differ after pickling")


def check_separates_planted_clusters(make: MethodFactory) -> None:
    """Scores separate planted OOD from ID, the right way round: larger = more OOD."""
    data, method, _ = _ready(make)
    rows = [declared(split, read_by(method)).without_labels() for split in (data.id_test, data.ood_test)]
    area = auroc(*(scored(method, x, data).double().numpy() for x in rows))
    if not area >= SEPARATION:
        hint = "; the sign may be swapped: larger must mean more OOD" if area < 0.5 else ""
        _fail(make, f"AUROC {area:.3f} on planted clusters — at least {SEPARATION} expected{hint}")


def check_rows_that_are_not_finite_get_no_score(make: MethodFactory) -> None:
    """A row of NaN or infinity raises MethodError, or its score is NaN, which the engine refuses."""
    # The last check: a method that learns while it scores would be spoilt for others.
    data, method, finite = _ready(make)
    if any(isinstance(leaf, LiveMethod) for leaf in leaves(method)):
        return  # the network's own outputs
    for value in (float("nan"), float("inf")):
        x = copied(finite[:40])
        for column in x.named().values():
            column[3] = value
        try:
            score = scored(method, x, data)[3]
        except MethodError:
            continue
        if not score.isnan():
            _fail(make, f"gives a row of {value} the score {float(score):.3g} — NaN or a MethodError expected")


def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order of this module: earlier failures explain later ones."""
    return tuple(check for name, check in globals().items() if name.startswith("check_"))


def _ready(make: MethodFactory) -> tuple[Toy, Method, FeatureSet]:
    """Return the planted problem, the method that all checks share which only score, and own samples to score."""
    data, method, samples, _, _ = _fitted_once(make)
    return data, method, copied(samples)


@lru_cache(maxsize=1)
def _fitted_once(make: MethodFactory) -> tuple[Toy, Method, FeatureSet, dict[str, Any], object]:
    """Return what `_ready` does, the method's hyper-parameters before its fit, and what `fit` returned."""
    _first_scores.cache_clear()  # they are of the method before
    data, method = planted(), make()
    before = dict(method.params())
    returned = returned_by_fit(method, data)
    return data, method, samples_of(method, data), before, returned


@lru_cache(maxsize=1)
def _first_scores(make: MethodFactory) -> Tensor:
    """Return what the shared method says of the samples, as a rule before it has scored anything else."""
    data, method, x = _ready(make)
    return scored(method, x, data)


@lru_cache(maxsize=1)
def _fitted_again(make: MethodFactory) -> tuple[Toy, Method, FeatureSet, Tensor, bool]:
    """Return what `_ready` does, of a second method, its first scores, and if global generators are as they were."""
    with _global_random_state():  # from a seed of their own
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002 - the legacy global state is what is tested
        random.seed(1)
        # A newly seeded state could equal the one that the method seeds.
        torch.rand(5), np.random.random(5), random.random()  # noqa: NPY002
        before, data = _random_state(), planted()
        method = fitted(make(), data)
        x = samples_of(method, data)
        return data, method, x, scored(method, x, data), _random_state() == before


def _in_batches(method: Method, x: FeatureSet, data: Toy, size: int) -> Tensor:
    """Return the scores of samples in batches; for a streaming method they are one stream."""
    if isinstance(method, StreamingMethod):
        memory = method.memory()
        return torch.cat([method.score_next(rows, memory) for rows in x.batches(size)])
    return torch.cat([scored(method, rows, data) for rows in x.batches(size)])


def _same(make: MethodFactory, expected: Tensor, actual: Tensor, what: str, tolerance: float = _TOLERANCE) -> None:
    if expected.shape != actual.shape:
        _fail(make, f"{what}: shapes {tuple(expected.shape)} and {tuple(actual.shape)}")
    scale = float(expected.max() - expected.min())
    off = float((expected - actual).abs().max())
    if not off <= tolerance * scale:
        _fail(make, f"{what}: they differ by up to {off:.3g} where scores span {scale:.3g}")


def _fail(make: Callable[[], object], message: str) -> None:
    raise CheckError(f"{type(make()).__name__}: {message}")


def _random_state() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the legacy global state is what is tested
    return (bytes(torch.get_rng_state().numpy()), kind, bytes(np.asarray(keys)), rest, random.getstate())


@contextmanager
def _global_random_state() -> Iterator[None]:
    """Restore the global generators of torch, numpy and Python on exit."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
