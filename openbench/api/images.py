"""Scores per image with the names of the images, as the benchmark's lists write them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openbench.api.comparison import scores_of
from openbench.core.benchmark import Benchmark
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import open_benchmark
from openbench.errors import OpenbenchError
from openbench.public import TARGET, public

if TYPE_CHECKING:
    from pandas import DataFrame

    from openbench.api.result import Result

_Names = Mapping[tuple[str, str], list[str]]


def images(result: "Result") -> "DataFrame":
    """Return a row per scored image; see `Result.images`.

    Which images a run found depends on the data of the machine that it ran on, so the benchmark is opened again here,
    and its digest must be the record's: it covers the lists and a sample of the pixels of each set.

    Args:
        result: with its scores.

    Raises:
        CacheError: the scores were not kept.
    """
    import pandas as pd

    scores = scores_of(result)
    names, why = names_of(result.record)
    unnamed = {f"{s.role}/{s.name}": why or _other(s, names) for s in scores if not _fits(s, names)}
    found = pd.concat([_rows(s, names) for s in scores], ignore_index=True)
    found = found.astype({"set": "category", "role": "category"})
    found.attrs["unnamed"] = unnamed
    return found


def _rows(s: SetScores, names: _Names) -> "DataFrame":
    import pandas as pd

    n = len(s.scores)
    labels, predictions, correct = (
        pd.Series([pd.NA] * n if values is None else list(map(int, values)), dtype="Int64")
        for values in (s.labels, s.predictions, s.correct)
    )
    return pd.DataFrame(
        {
            "set": pd.Series([s.name] * n, dtype="str"),
            "role": pd.Series([str(s.role)] * n, dtype="str"),
            "image": pd.Series(names[s.role, s.name] if _fits(s, names) else [None] * n, dtype="str"),
            "score": s.scores,
            "label": labels.where(labels >= 0),  # −1: of no ID class
            "prediction": predictions.where(predictions >= 0),
            "correct": correct.astype("boolean"),
        }
    )


def _fits(s: SetScores, names: _Names) -> bool:
    return len(names.get((str(s.role), s.name), ())) == len(s.scores)


def _other(s: SetScores, names: _Names) -> str:
    listed = len(names.get((str(s.role), s.name), ()))
    return f"the benchmark has {listed} images of this set, and {len(s.scores)} were scored"


def names_of(record: ResultRecord) -> tuple[_Names, str]:
    """Return the images of each role and set in the order of their scores; else none, and why.

    Args:
        record: of the run.
    """
    benchmark, why = opened(record)
    if benchmark is None:
        return {}, why
    return {(str(split.role), split.name): list(split.keys) for split in benchmark.splits() if not split.unread}, ""


def opened(record: ResultRecord) -> tuple[Benchmark | None, str]:
    """Return the benchmark of a run with the images that it was run on; else None, and why.

    Code that a record names and openbench does not ship is not run.

    Args:
        record: of the run.
    """
    node = record.config.get("benchmark")
    if not isinstance(node, Mapping):
        return None, "the record names no lists of images"
    if foreign := sorted(set(_foreign(public(node)))):
        return None, f"its images are read by code that openbench does not ship: {', '.join(foreign)}"
    try:
        benchmark = open_benchmark(BenchmarkConfig.parse(_ordered(node)), reader="")
    except OpenbenchError as error:
        return None, str(error)
    if benchmark.digest != record.benchmark.get("digest"):
        return None, (
            f"the images found here are not those of the run — digest {benchmark.digest} here, "
            f"{record.benchmark.get('digest')} in the record"
        )
    return benchmark, ""


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its sets in the order in which it declares them, which a record's sorted keys do not keep."""
    place = {path: at for at, path in enumerate(node.get("declared") or ())}
    ordered = dict(node)
    for group in ("near", "far", "csid"):
        if isinstance(sets := node.get(group), Mapping):
            names = sorted(sets, key=lambda name: place.get(f"{group}.{name}", len(place)))
            ordered[group] = {name: sets[name] for name in names}
    return ordered


def _foreign(node: Any) -> list[str]:
    """Classes outside openbench that a config node names: a record may come from anybody, so they are not run."""
    if isinstance(node, Mapping):
        own = [str(node[TARGET])] if "." in str(node.get(TARGET, "")) else []
        return own + [name for child in node.values() for name in _foreign(child)]
    return [name for child in node for name in _foreign(child)] if isinstance(node, list | tuple) else []
