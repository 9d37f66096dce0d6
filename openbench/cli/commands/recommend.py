"""`recommend`: which method to take, from the records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from openbench.cli import options
from openbench.cli.output import left_out, print_tables, write_json
from openbench.errors import ConfigError, did_you_mean
from openbench.results.escape import console

_BENCHMARK = "+benchmark"
_WITHOUT = {f"no_{need.replace(' ', '_')}": need for need in ("training data", "outliers", "gradients", "text")}
_KEYS = (_BENCHMARK, "backbone", "training", "latency_ms", "memory_mb", "needs")
_EPILOG = f"""\
+benchmark=NAME   whose records are read; needed
backbone=NAME     this network only
training=NAME     trained this way only
latency_ms=N      at most N milliseconds per image, besides the network's own pass
memory_mb=N       at most N MB at the peak of the process that scored, as its record has it
needs=LIST        what you do not have: {", ".join(_WITHOUT)}

Methods within the limits are compared by paired tests on the same images, by near AUROC and, where that does not
decide, by far AUROC. Those that are not surely worse than another are shown, with what they cost and need.

  python -m openbench recommend +benchmark=cifar10
  python -m openbench recommend +benchmark=cifar10 latency_ms=0.1 needs=no_training_data,no_gradients
"""


@click.command(cls=options.Command, epilog=_EPILOG)
@click.argument("words", nargs=-1, metavar="KEY=VALUE…")
@options.table_format()
@options.json_file
@options.results
def recommend(words: tuple[str, ...], form: str, json: Path | None, results: Path) -> int:
    """Say which method to take, from the records of a benchmark and what they cost."""
    from openbench.detect import recommend as advising  # which loads PyTorch

    limits = _limits(words)
    with left_out() as lost:
        advice = advising.recommend(**limits, folder=results, on_error=lost.append)
    for one in advice:
        print(console(str(one)) + "\n")
        print_tables(one.tables(), form)
    if json is not None:
        write_json([one.values() for one in advice], json)
    return lost.code


def _limits(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of `recommend` that words such as `latency_ms=5` name.

    Raises:
        ConfigError: no benchmark, an unknown key, a key twice, or a value that is not allowed.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in _KEYS or not equals or not value:
            hint = did_you_mean(key, _KEYS) if key not in _KEYS else ""
            raise ConfigError(f"recommend: found '{word}'{hint} — allowed: {', '.join(f'{k}=…' for k in _KEYS)}")
        if key in found:
            raise ConfigError(f"recommend: '{key}' is given twice — give it once")
        found[key] = value
    if _BENCHMARK not in found:
        raise ConfigError("recommend: no benchmark chosen — python -m openbench recommend +benchmark=cifar10")
    without = [word for word in found.get("needs", "").split(",") if word]
    for word in without:
        if word not in _WITHOUT:
            raise ConfigError(f"needs={word}{did_you_mean(word, _WITHOUT)} — allowed: {', '.join(_WITHOUT)}")
    return {
        "benchmark": found[_BENCHMARK],
        "latency_ms": _number(found, "latency_ms"),
        "memory_mb": _number(found, "memory_mb"),
        "without": [_WITHOUT[word] for word in without],
        "backbone": found.get("backbone", ""),
        "training": found.get("training", ""),
    }


def _number(found: dict[str, str], key: str) -> float | None:
    if key not in found:
        return None
    try:
        return float(found[key])
    except ValueError:
        raise ConfigError(f"{key} — found '{found[key]}' — allowed: a number > 0") from None
