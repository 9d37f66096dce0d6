"""The contract of streaming methods as small checks, for those of openbench and for your own.

`run_streaming_checks(MyMethod)`, or `run_streaming_checks(lambda: MyMethod(queue=32))`, raises CheckError naming every
broken promise.
"""

import copy
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.streaming import StreamingMethod
from openbench.errors import FieldError, NotFittedError
from openbench.metrics.curve import auroc
from openbench.testing.checks import SEPARATION, CheckError, check_metadata_is_complete
from openbench.testing.toy import Toy, declared, planted

Factory = Callable[[], StreamingMethod[Any]]  # returns a new, unfitted method at each call
StreamingCheck = Callable[[Factory], None]

_TOLERANCE = 1e-5  # of the range of scores: what other shapes of products may change
_CUTS = (1, 7, 50)


def check_reads_only_declared_fields(make: Factory) -> None:
    """`fit` and `score_next` run on the declared columns alone; labels are gone before a stream."""
    data = planted()
    try:
        method = _fitted(make, data)
        _run(method, stream_of(method, data))
    except FieldError as error:
        _fail(make, f"reads a column that its request does not name: {error}")


def check_fit_returns_self(make: Factory) -> None:
    """`fit` returns the method itself, so that calls chain."""
    method, data = make(), planted()
    if method.fit(data.for_fit(method.request), data.head_for(method.request)) is not method:
        _fail(make, "fit must return self")


def check_scores_are_one_finite_float32_per_image(make: Factory) -> None:
    """Scores have shape (n,), dtype float32, no gradient, and are finite, also where features are zero or huge."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:120]
    extreme = FeatureSet({k: torch.cat([v[:40], 100 * v[40:80], 0 * v[80:]]) for k, v in x.columns.items()})
    for what, rows in (("planted images", x), ("images scaled by 100 and by 0", extreme)):
        scores = method.score_next(rows, method.memory())
        if scores.shape != (len(rows),) or scores.dtype != torch.float32 or scores.requires_grad:
            found = f"{tuple(scores.shape)} {scores.dtype} requires_grad={scores.requires_grad}"
            _fail(make, f"scores must be ({len(rows)},) torch.float32 without gradient — found {found}")
        if not bool(scores.isfinite().all()):
            _fail(make, f"scores of {what} are not all finite")


def check_a_score_depends_on_no_later_image(make: Factory) -> None:
    """Other images after the first 100, or none, leave the scores of these as they are."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:200]
    before = _run(method, x)[:100]
    other = FeatureSet({k: torch.cat([v[:100], 3 * v[100:].flip(0)]) for k, v in x.columns.items()})
    _same(make, before, _run(method, other)[:100], "the scores of 100 images change with the images after them")
    _same(make, before, _run(method, x[:100]), "100 images alone have other scores than with images after them")


def check_batches_do_not_matter(make: Factory) -> None:
    """A stream cut into batches of one, seven or fifty images has the scores of the stream in one piece."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:150]
    whole = _run(method, x)
    for size in _CUTS:
        _same(make, whole, _run(method, x, size), f"batches of {size} give other scores than one batch")


def check_images_stay_untouched(make: Factory) -> None:
    """`score_next` leaves the images' columns as they are."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:150]
    given = _copied(x)
    method.score_next(given, method.memory())
    if changed := [name for name, column in x.columns.items() if not torch.equal(column, given.columns[name])]:
        _fail(make, f"score_next overwrites the {' and '.join(changed)} it is given — work on a copy")


def check_each_stream_has_a_memory_of_its_own(make: Factory) -> None:
    """`memory` returns a new object at each call, unless no stream changes it."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:50]
    memory = method.memory()
    first = method.score_next(_copied(x), memory)
    if method.memory() is memory and not torch.equal(first, method.score_next(_copied(x), memory)):
        _fail(make, "memory() returns the memory of the stream before — return a new, empty one at each call")


def check_memory_is_all_that_a_stream_changes(make: Factory) -> None:
    """A second stream, with a memory of its own, has the scores of the first; hyper-parameters stay."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:150]
    params, memories = copy.deepcopy(method.params()), (method.memory(), method.memory())
    first, second = (method.score_next(_copied(x), memory) for memory in memories)
    if memories[0] is not memories[1] and not torch.equal(first, second):
        _fail(
            make,
            "the same stream again has other scores: what it taught before is left outside of its memory — keep it "
            "there, and seed what is drawn",
        )
    if method.params() != params:
        _fail(make, "a stream changes hyper-parameters")


def check_refit_equals_fresh_fit(make: Factory) -> None:
    """Fitting again, on other data, leaves nothing of the first fit."""
    data, other = planted(), planted(seed=1)
    again = _fitted(lambda: _fitted(make, other), data)
    x = stream_of(again, data)[:100]
    _same(make, _run(_fitted(make, data), x), _run(again, x), "a second fit gives other scores than a first")


def check_an_unfitted_method_says_so(make: Factory) -> None:
    """Where there is something to fit, `memory` or `score_next` raises NotFittedError before."""
    method = make()
    if method.request.fit_on is None and not method.request.head:
        return
    try:
        method.score_next(stream_of(method, planted())[:5], method.memory())
    except NotFittedError:
        return
    _fail(make, "scores before fit — raise NotFittedError (self.learnt(name) does)")


def check_is_a_dataclass_that_copies(make: Factory) -> None:
    """It is a dataclass, and a copy of a fitted method scores the same."""
    if not is_dataclass(make()):
        _fail(make, "is not a @dataclass — its fields are the hyper-parameters")
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)[:60]
    _same(make, _run(method, x), _run(copy.deepcopy(method), x), "a copy scores otherwise")


def check_separates_planted_clusters(make: Factory) -> None:
    """In a stream of as many ID as OOD images, in a random order, the AUROC reaches 0.8."""
    data = planted()
    method = _fitted(make, data)
    x = stream_of(method, data)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    scores = torch.empty(len(x))
    scores[order] = _run(method, x[order])
    found = auroc(scores[0::2].numpy(), scores[1::2].numpy())
    if found < SEPARATION:
        _fail(make, f"AUROC {found:.3f} on planted clusters — {SEPARATION} expected; larger scores mean more OOD")


def stream_of(method: StreamingMethod[Any], data: Toy) -> FeatureSet:
    """Return 320 images, ID and OOD ones alternating, with the declared columns and without labels."""
    parts = [declared(split[:160], method.request).without_labels() for split in (data.id_test, data.ood_test)]
    order = torch.arange(320).view(2, 160).T.reshape(-1)
    return FeatureSet({k: torch.cat([part.columns[k] for part in parts])[order] for k in parts[0].columns})


def all_streaming_checks() -> tuple[StreamingCheck, ...]:
    """Return every check, in the order in which failures explain one another."""
    return (
        check_metadata_is_complete,
        check_reads_only_declared_fields,
        check_an_unfitted_method_says_so,
        check_fit_returns_self,
        check_scores_are_one_finite_float32_per_image,
        check_a_score_depends_on_no_later_image,
        check_batches_do_not_matter,
        check_each_stream_has_a_memory_of_its_own,
        check_memory_is_all_that_a_stream_changes,
        check_images_stay_untouched,
        check_refit_equals_fresh_fit,
        check_is_a_dataclass_that_copies,
        check_separates_planted_clusters,
    )


def run_streaming_checks(make: Factory) -> None:
    """Run all checks.

    Args:
        make: the class, or a function that returns a new, unfitted method.

    Raises:
        CheckError: with every promise that is broken.
    """
    broken = []
    for check in all_streaming_checks():
        try:
            check(make)
        except CheckError as error:
            broken.append(str(error))
    if broken:
        raise CheckError("\n".join(broken))


def _fitted(make: Factory, data: Toy) -> StreamingMethod[Any]:
    method = make()
    train = data.for_fit(method.request)
    return method.fit(train, data.head_for(method.request))


def _run(method: StreamingMethod[Any], x: FeatureSet, size: int = 1000) -> Tensor:
    """The scores of a stream by a copy of the method, so that what one stream leaves behind reaches no other."""
    method = copy.deepcopy(method)
    memory = method.memory()
    return torch.cat([method.score_next(rows, memory) for rows in _copied(x).batches(size)])


def _copied(x: FeatureSet) -> FeatureSet:
    return FeatureSet({name: column.clone() for name, column in x.columns.items()})


def _same(make: Factory, first: Tensor, second: Tensor, what: str) -> None:
    span = float(first.max() - first.min())
    apart = float((first - second).abs().max())
    if not apart <= _TOLERANCE * max(span, torch.finfo(torch.float32).tiny):
        _fail(make, f"{what}: they differ by up to {apart:.3g}, where scores span {span:.3g}")


def _fail(make: Factory, what: str) -> None:
    raise CheckError(f"{type(make()).__name__}: {what}")
