"""`recommend`: the methods of a benchmark that may be the best within limits, from its records."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import click

from openbench.cli import options
from openbench.cli.output import left_out, print_tables, write_json
from openbench.errors import ConfigError, check_choice, did_you_mean
from openbench.results.escape import console
from openbench.storage.yaml_file import parse_yaml

_BENCHMARK = "+benchmark"
_WITHOUT = {f"no_{need.replace(' ', '_')}": need for need in ("training data", "outliers", "gradients", "text")}
_KEYS = (_BENCHMARK, "backbone", "training", "latency_ms", "memory_mb", "needs")


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, metavar="KEY=VALUE…")
@options.table_format()
@options.json_file
@options.results
def recommend(args: Namespace) -> int:
    """Recommend methods, from the records of a benchmark and what they cost.

      +benchmark=NAME   the benchmark whose records are read; required
      backbone=NAME     this network only
      training=NAME     trained this way only
      latency_ms=N      at most N milliseconds per image, besides the network's own pass
      memory_mb=N       at most N MB at the peak of the process that scored, as its record has it
      needs=LIST        what you do not have: no_training_data, no_outliers, no_gradients, no_text

    Methods within the limits are compared by paired tests on the same images, by near AUROC and, where that does not
    decide, by far AUROC. Those that are not significantly worse than another are shown, with their costs and needs.

    Examples:
      python -m openbench recommend +benchmark=cifar10
      python -m openbench recommend +benchmark=cifar10 latency_ms=0.1 needs=no_training_data,no_gradients
    """
    from openbench.detect import recommend as advising  # which loads PyTorch

    limits = _limits(args.words)
    with left_out() as lost:
        advice = advising.recommend(**limits, folder=args.results, on_error=lost.append)
    if args.form == "console":
        for one in advice:
            print(console(str(one)) + "\n")
            print_tables(one.tables())
    else:
        print_tables([table for one in advice for table in one.tables()], args.form)
    if args.json is not None:
        write_json([one.values() for one in advice], args.json)
    return lost.code


def _limits(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of `recommend` that words such as `latency_ms=5` name.

    Raises:
        ConfigError: no benchmark, an unknown key, or a value that is not allowed.
    """
    limits: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _KEYS or not value:
            hint = did_you_mean(key, _KEYS)
            raise ConfigError(f"recommend: found '{word}'{hint} — allowed: {', '.join(f'{k}=…' for k in _KEYS)}")
        limits[key] = parse_yaml(value, key) if key in ("latency_ms", "memory_mb") else value
    if _BENCHMARK not in limits:
        raise ConfigError("recommend: no benchmark chosen — python -m openbench recommend +benchmark=cifar10")
    without = options.names(limits.pop("needs", ""))
    for need in without:
        check_choice("needs", need, list(_WITHOUT))
    return {"benchmark": limits.pop(_BENCHMARK), **limits, "without": [_WITHOUT[need] for need in without]}
