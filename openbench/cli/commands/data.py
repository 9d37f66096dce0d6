"""`data`: what a benchmark needs, getting it, verifying it, looking at it, and bringing your own."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openbench import paths
from openbench.cli.commands.data_weights import list_weights, named_backbone, prepare_weights
from openbench.cli.process import FAILED, OK
from openbench.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from openbench.data.benchmark_config import BenchmarkConfig
    from openbench.data.download import DataSource
    from openbench.data.missing import SetStatus
    from openbench.results.tables.render import Table

_EPILOG = """\
to begin with:
  python -m openbench data list                      every data set: licence, size, whether it is there
  python -m openbench data list cifar10              what a benchmark needs, where it is searched, what is missing
  python -m openbench data prepare cifar10           download what may be downloaded, say how to get the rest
  python -m openbench data prepare backbone=torchvision_resnet50      the same for weights
  python -m openbench data list backbone=clip_vitb16 imagenet1k_mos   whether they have seen the OOD classes
  python -m openbench data verify digits             counts, hashes, disjoint classes, images on two sides
  python -m openbench data stats digits --to sheets  a contact sheet per split, to look at
  python -m openbench data new pets --id photos/pets --near birds=photos/birds"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code: 1 if data is missing or does not hold."""
    arguments = _parser().parse_args(argv)
    code: int = arguments.action(arguments)
    return code


def benchmark_config(words: Sequence[str], config_dir: Path | None) -> "BenchmarkConfig":
    """Return the benchmark that words on the command line mean, its config parsed.

    Args:
        words: a benchmark's name, or `+benchmark=NAME`, and overrides such as `benchmark.incomplete=allow`.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: no such benchmark, or an override that Hydra refuses.
    """
    from openbench.compose.config import check_no_clash, compose, no_benchmark, plain
    from openbench.compose.errors import Typed, explained
    from openbench.compose.sweep import options
    from openbench.data.benchmark_config import BenchmarkConfig

    if config_dir is not None:
        check_no_clash(config_dir)
    known = options("benchmark", config_dir)
    for word in words:
        if "=" not in word and not word.startswith("~") and word not in known:
            raise ConfigError(
                f"benchmark '{word}' not found{did_you_mean(word, known)} — available: {', '.join(known)} "
                "(python -m openbench list benchmark)"
            )
    named = [word for word in words if word in known or word.lstrip("+").startswith("benchmark=")]
    if len(named) > 1:
        raise ConfigError(f"found the benchmarks {' and '.join(named)} — give one at a time")
    overrides = [f"+benchmark={word}" if word in known else word for word in words]
    with explained(Typed("check", overrides, config_dir)):
        cfg = compose("check", overrides, config_dir)
    if "benchmark" not in cfg:
        raise no_benchmark("check", config_dir)
    node = plain(cfg, "benchmark")
    if not isinstance(node, dict):
        raise ConfigError(f"benchmark is not chosen — found {node!r} (python -m openbench list benchmark)")
    return BenchmarkConfig.parse(node)


def list_data(arguments: argparse.Namespace) -> int:
    """Print every data set, or what a benchmark needs and how to get what is missing."""
    from openbench.cli.tables import print_tables
    from openbench.data.build import survey
    from openbench.data.download import data_sources

    sources = data_sources()
    if not arguments.words:
        print_tables([_all_table(sources)])
        return OK
    if backbone := named_backbone(arguments.words):
        words = [word for word in arguments.words if not word.startswith("backbone=")]
        return list_weights(backbone, arguments, benchmark_config(words, arguments.config_dir) if words else None)
    if _is_source(arguments, sources):
        print(how(sources[arguments.words[0]]))
        return OK
    config = benchmark_config(arguments.words, arguments.config_dir)
    statuses = survey(config)
    print_tables([_benchmark_table(config.name, statuses, sources)])
    _print_missing(statuses, sources, config.typed)
    return FAILED if any(status.message for status in statuses) else OK


def prepare(arguments: argparse.Namespace) -> int:
    """Download what is missing and may be downloaded; print how to get the rest."""
    from openbench.cli.tables import print_tables
    from openbench.data.build import survey
    from openbench.data.download import data_sources

    if backbone := named_backbone(arguments.words):
        return prepare_weights(backbone, arguments)
    sources, root = data_sources(), download_root(arguments.root)
    if _is_source(arguments, sources):
        source = sources[arguments.words[0]]
        if not source.files or fetch_all([source], root):
            print(how(source))
            return FAILED
        print(f"{source.title}: ready below {root}")
        return OK
    config = benchmark_config(arguments.words, arguments.config_dir)
    wanted = [status.name for status in survey(config) if status.message]
    failed = fetch_all([sources[name] for name in dict.fromkeys(wanted) if name in sources], root)
    statuses = survey(config)
    print_tables([_benchmark_table(config.name, statuses, sources)])
    _print_missing(statuses, sources, config.typed)
    return FAILED if failed or any(status.message for status in statuses) else OK


def verify(arguments: argparse.Namespace) -> int:
    """Print what `check` finds, then images that look alike across splits that must be apart."""
    from openbench.data.build import open_benchmark
    from openbench.data.checking.lookalikes import lookalikes
    from openbench.data.checking.verify import verify_node
    from openbench.data.fingerprint import readable_fingerprint

    config = benchmark_config(arguments.words, arguments.config_dir)
    report = verify_node(config, _say)
    print(report)
    if report.missing or arguments.fast:
        print(report.verdict)
        return OK if report.ok else FAILED
    found = lookalikes(open_benchmark(config, sampled=readable_fingerprint), _say)
    # Identical images are in the report already.
    print(f"  {len(found)} pairs look alike across splits that must be apart" + (":" if found else ""))
    for pair in found[: arguments.show]:
        print(f"    {pair}")
    if len(found) > arguments.show:
        print(f"    and {len(found) - arguments.show} more (--show {len(found)})")
    print(report.verdict + f"; look-alikes to be judged by eye: {len(found):,}" * bool(found))
    return OK if report.ok else FAILED


def stats(arguments: argparse.Namespace) -> int:
    """Print the numbers of each split and write a contact sheet for each; for tables, the spread of each column."""
    from openbench.data.build import open_benchmark
    from openbench.data.checking.column_sheet import ColumnStats, column_stats, draw_columns
    from openbench.data.checking.contact_sheet import SplitStats, draw, stats_of

    config = benchmark_config(arguments.words, arguments.config_dir)
    benchmark = open_benchmark(config)
    folder = arguments.to / benchmark.name
    folder.mkdir(parents=True, exist_ok=True)
    for split in benchmark.splits():
        sheet = folder / f"{split.role}-{split.name}.png"
        numbers: ColumnStats | SplitStats
        if split.items[0].ndim == 1:
            numbers = column_stats(split)
            draw_columns(numbers, sheet)
        else:
            numbers = stats_of(split, benchmark.classes)
            draw(split, benchmark.classes, numbers, sheet)
        print(f"{numbers}\n  {sheet}", flush=True)
    return OK


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _is_source(arguments: argparse.Namespace, sources: Mapping[str, "DataSource"]) -> bool:
    """Whether the only word is the name of a data set, and not of a benchmark.

    Raises:
        ConfigError: it is the name of neither.
    """
    from openbench.compose.sweep import options

    word, known = arguments.words[0], options("benchmark", arguments.config_dir)
    if len(arguments.words) > 1 or "=" in word or word.startswith("~") or word in known:
        return False
    if word not in sources:
        raise ConfigError(
            f"'{word}' is neither a benchmark nor a data set{did_you_mean(word, [*known, *sources])} "
            "(python -m openbench list benchmark, python -m openbench data list)"
        )
    return True


def download_root(asked: Path | None) -> Path:
    """Where downloads go: what was asked for, else the first data root that exists, else the first."""
    if asked is not None:
        return asked.expanduser()
    roots = paths.data_roots()
    return next((root for root in roots if root.is_dir()), roots[0])


def fetch_all(sources: Sequence["DataSource"], root: Path) -> bool:
    """Fetch every file of the sources; one that fails does not keep the others from being fetched."""
    from openbench.data.download import prepare_file

    failed = False
    for source in sources:
        for file in source.files:
            try:
                _say(prepare_file(file, root, _say))
            except DataError as error:
                failed = True
                _say(f"error: {error}")
    return failed


def _all_table(sources: Mapping[str, "DataSource"]) -> "Table":
    from openbench.results.tables.render import Column, Table

    roots = paths.data_roots()
    rows = []
    for source in sources.values():
        rows.append((source.name, source.title, _megabytes(source), _state(source, roots), source.licence))
    columns = tuple(Column(title) for title in ("data set", "title", "download", "state", "licence"))
    notes = (
        "state of what openbench downloads; `data list BENCHMARK` also finds other layouts and files you got by hand",
        "searched: " + ", ".join(str(root.absolute()) for root in roots),
    )
    return Table("Data sets", columns, tuple(rows), notes=notes)


def _state(source: "DataSource", roots: tuple[Path, ...]) -> str:
    """How much of a data set's download is there; nothing is known of one that comes by hand."""
    absent, files = len(source.missing(roots)), len(source.files)
    if not files:
        return "–"
    return "there" if not absent else "not downloaded" if absent == files else f"{files - absent} of {files} files"


def _benchmark_table(name: str, statuses: Sequence["SetStatus"], sources: Mapping[str, "DataSource"]) -> "Table":
    from openbench.results.tables.render import Column, Table

    rows = []
    for status in statuses:
        source = sources.get(status.name)
        licence = source.licence if source else "comes with openbench, or your own"
        state = "missing" if status.message and not status.found else "incomplete" if status.message else "complete"
        download = _megabytes(source) if source else "–"
        rows.append((status.path, status.name, status.found, status.expected, state, download, licence))
    kinds = ("text", "text", "count", "count", "text", "text", "text")
    titles = ("set", "data set", "found", "listed", "state", "download", "licence")
    columns = tuple(Column(title, kind) for title, kind in zip(titles, kinds, strict=True))  # type: ignore[arg-type]
    return Table(f"Data of benchmark {name}", columns, tuple(rows))


def _print_missing(statuses: Sequence["SetStatus"], sources: Mapping[str, "DataSource"], name: str) -> None:
    """What is missing, where it was searched, and how to get it; each data set's places and instructions once."""
    told: set[tuple[str, tuple[Path, ...]]] = set()
    instructed: set[str] = set()
    for status in statuses:
        if not status.message:
            continue
        known = (status.name, status.searched)
        message = status.message
        if status.searched and known in told:
            message = f"{message.partition(' — searched:')[0]} — searched in the same places"
        told.add(known)
        print(f"\n{status.path}: {message}")
        if status.name in sources and status.name not in instructed:
            instructed.add(status.name)
            print(how(sources[status.name], name))


def how(source: "DataSource", benchmark: str | None = None) -> str:
    """Return what a source is, and how to get it."""
    lines = [f"{source.title} · licence: {source.licence} · {source.page}"]
    if source.files:
        lines.append(f"download: python -m openbench data prepare {benchmark or source.name}")
        lines += [f"  {file.urls[0]} → {file.gives}" for file in source.files]
    if source.by_hand:
        lines.append(f"by hand: {source.by_hand} (below the folder that OPENBENCH_DATA names, or ./data)")
    if source.note:
        lines.append(source.note)
    return "\n".join(lines)


def _megabytes(source: "DataSource") -> str:
    if not source.files:
        return "by hand"
    return "size unknown" if source.size is None else f"{source.size / 1e6:.0f} MB"


def _parser() -> argparse.ArgumentParser:
    from openbench.cli.commands.data_new import add_arguments, new

    parser = argparse.ArgumentParser(
        prog="python -m openbench data",
        description="Data sets: what is needed, getting it, verifying it, looking at it, bringing your own.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="list|prepare|verify|stats|new")
    several = {
        "list": (list_data, "what a benchmark needs, where it is searched, what is missing", "*"),
        "prepare": (prepare, "download what may be downloaded, say how to get the rest", "+"),
        "verify": (verify, "counts, hashes, disjoint classes, the same or a similar image on two sides", "+"),
        "stats": (stats, "numbers and a contact sheet per split", "+"),
    }
    for name, (action, summary, count) in several.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(action=action)
        also = ", a data set, or backbone=NAME" if name in ("list", "prepare") else ""
        command.add_argument(
            "words", nargs=count, metavar="BENCHMARK", help=f"a benchmark, and KEY=VALUE overrides{also}"
        )
        command.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
        if name == "prepare":
            command.add_argument("--root", type=Path, metavar="DIR", help="where to (OPENBENCH_DATA, else ./data)")
        if name == "verify":
            command.add_argument("--fast", action="store_true", help="leave out the search for similar images")
            command.add_argument("--show", type=int, default=20, metavar="N", help="similar pairs printed (20)")
        if name == "stats":
            command.add_argument("--to", type=Path, default=Path("sheets"), metavar="DIR", help="folder (./sheets)")
    command = commands.add_parser("new", help="a benchmark of your own images")
    add_arguments(command)
    command.set_defaults(action=new)
    return parser
