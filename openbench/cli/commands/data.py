"""`data`: what a benchmark needs, getting it, verifying it, looking at it, and bringing your own."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.process import FAILED, OK
from openbench.cli.registry import Registry
from openbench.errors import ConfigError, DataError, available, did_you_mean

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from openbench.data.benchmark_config import BenchmarkConfig
    from openbench.data.build import SetStatus
    from openbench.data.download import DataSource
    from openbench.data.own.benchmark import OwnSet
    from openbench.data.weights import Weights
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
_NEW = """\
A PATH is

  a folder with a subfolder per class    photos/cat/1.jpg; OOD images may lie in the folder itself
  a .csv with the columns path, label    paths relative to the .csv; label may be missing for OOD images
  an .npz with images and labels         images (n, h, w) or (n, h, w, 3) uint8, also as X and y; classes = names
  a folder from save_to_disk             Hugging Face datasets, one split

--id is split 60 : 10 : 30 within each class, unless it is a folder with `train` and `test` (and perhaps `val`) in it.
Which image went where is written to lists beside the yaml, so that it stays as it is when images are added."""
_TAKEN = ("id", "near", "far", "csid", "overall")
_WORD = "backbone="


@click.group(cls=options.Group, epilog=_EPILOG, no_args_is_help=False)
def data() -> None:
    """Get data sets, verify them, look at them, bring your own."""


@data.command("list")
@click.argument("words", nargs=-1, metavar="BENCHMARK…")
@options.config_dir
def list_data(words: tuple[str, ...], config_dir: Path | None) -> int:
    """Say what a benchmark needs, where it is searched, and what is missing.

    BENCHMARK is a benchmark, with KEY=VALUE overrides, a data set, or backbone=NAME. Without one, all data sets are
    listed.
    """
    from openbench.cli.output import print_tables
    from openbench.data.build import survey
    from openbench.data.download import data_sources

    sources = data_sources()
    if not words:
        print_tables([_all_table(sources)])
        return OK
    if backbone := _named_backbone(words):
        others = [word for word in words if not word.startswith(_WORD)]
        return _list_weights(backbone, config_dir, benchmark_config(others, config_dir) if others else None)
    if _is_source(words, config_dir, sources):
        print(_how(sources[words[0]]))
        return OK
    config = benchmark_config(words, config_dir)
    statuses = survey(config)
    print_tables([_benchmark_table(config.name, statuses, sources)])
    _print_missing(statuses, sources, config.typed)
    return FAILED if any(status.missing for status in statuses) else OK


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@click.option("--root", type=options.FILE, metavar="DIR", help="where to (default: OPENBENCH_DATA, else ./data)")
def prepare(words: tuple[str, ...], config_dir: Path | None, root: Path | None) -> int:
    """Download what may be downloaded, and say how to get the rest.

    BENCHMARK is a benchmark, with KEY=VALUE overrides, a data set, or backbone=NAME.
    """
    from openbench.cli.output import print_tables
    from openbench.data.build import survey
    from openbench.data.download import data_sources

    root = _download_root(root)
    if backbone := _named_backbone(words):
        return _prepare_weights(backbone, config_dir, root)
    sources = data_sources()
    if _is_source(words, config_dir, sources):
        source = sources[words[0]]
        if not source.files or _fetch_all([source], root):
            print(_how(source))
            return FAILED
        print(f"{source.title}: ready below {root}")
        return OK
    config = benchmark_config(words, config_dir)
    wanted = [status.name for status in survey(config) if status.missing]
    failed = _fetch_all([sources[name] for name in dict.fromkeys(wanted) if name in sources], root)
    statuses = survey(config)
    print_tables([_benchmark_table(config.name, statuses, sources)])
    _print_missing(statuses, sources, config.typed)
    return FAILED if failed or any(status.missing for status in statuses) else OK


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@click.option("--fast", is_flag=True, help="leave out the search for similar images")
@click.option("--show", type=int, default=20, metavar="N", help="similar pairs printed (20)")
def verify(words: tuple[str, ...], config_dir: Path | None, fast: bool, show: int) -> int:
    """Check counts, hashes, disjoint classes, and the same or a similar image on two sides."""
    from openbench.data.build import open_benchmark
    from openbench.data.checking.lookalikes import lookalikes
    from openbench.data.checking.verify import verify_node
    from openbench.data.dataset import readable_fingerprint

    config = benchmark_config(words, config_dir)
    report = verify_node(config)
    print(report)
    if report.missing or fast:
        print(report.verdict)
        return OK if report.ok else FAILED
    found = lookalikes(open_benchmark(config, sampled=readable_fingerprint))
    # Identical images are in the report already.
    print(f"  {len(found)} pairs look alike across splits that must be apart" + (":" if found else ""))
    for pair in found[:show]:
        print(f"    {pair}")
    if len(found) > show:
        print(f"    and {len(found) - show} more (--show {len(found)})")
    print(report.verdict + f"; look-alikes to be judged by eye: {len(found):,}" * bool(found))
    return OK if report.ok else FAILED


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@click.option("--to", type=options.FILE, default=Path("sheets"), metavar="DIR", help="folder (./sheets)")
def stats(words: tuple[str, ...], config_dir: Path | None, to: Path) -> int:
    """Print the numbers of each split and write a contact sheet for each; of tables, rows and columns."""
    from openbench.data.build import open_benchmark
    from openbench.data.checking.contact_sheet import draw, stats_of, table_line

    config = benchmark_config(words, config_dir)
    benchmark = open_benchmark(config)
    folder = to / benchmark.name
    folder.mkdir(parents=True, exist_ok=True)
    for split in benchmark.splits():
        if split.items[0].ndim == 1:
            print(table_line(split))
            continue
        sheet, numbers = folder / f"{split.role}-{split.name}.png", stats_of(split, benchmark.classes)
        draw(split, benchmark.classes, numbers, sheet)
        print(f"{numbers}\n  {sheet}", flush=True)
    return OK


@data.command(cls=options.Command, epilog=_NEW)
@click.argument("name", metavar="NAME")
@click.option("--id", "whole", metavar="PATH", help="ID images, to be split")
@click.option("--train", metavar="PATH", help="ID train images, in place of --id")
@click.option("--val", metavar="PATH", help="ID val images, in place of --id")
@click.option("--test", metavar="PATH", help="ID test images, in place of --id")
@click.option("--near", metavar="[NAME=]PATH", multiple=True, help="a near set; may be repeated")
@click.option("--far", metavar="[NAME=]PATH", multiple=True, help="a far set; may be repeated")
@click.option("--csid", metavar="[NAME=]PATH", multiple=True, help="a csid set; may be repeated")
@click.option("--ood-val", metavar="PATH", help="OOD images for tuning; without, run with tune=none")
@click.option("--corruptions", is_flag=True, help="add a csID set: the test images, corrupted")
@click.option("--backbone", default="resnet18_cifar", help="config of the network (resnet18_cifar)")
@click.option("--side", type=click.IntRange(4), default=32, metavar="PIXELS", help="height and width it sees (32)")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="of training (that of the training config)")
@click.option("--seed", type=click.IntRange(0), default=0, help="of the split (0)")
@click.option("--to", type=options.FILE, metavar="DIR", help="config folder to write to (./NAME)")
def new(
    *,
    name: str,
    whole: str | None,
    train: str | None,
    val: str | None,
    test: str | None,
    near: tuple[str, ...],
    far: tuple[str, ...],
    csid: tuple[str, ...],
    ood_val: str | None,
    corruptions: bool,
    backbone: str,
    side: int,
    epochs: int | None,
    seed: int,
    to: Path | None,
) -> int:
    """Write a benchmark of your own images into a config folder, and print the command that runs it.

    NAME is what users type: letters, digits, underscores.
    """
    from openbench.compose.sweep import options as entries
    from openbench.data.own.benchmark import OwnBenchmark, check_readable, command, read_set, write

    backbones = entries("backbone")
    if backbone not in backbones:
        raise ConfigError(
            f"backbone '{backbone}' not found{did_you_mean(backbone, backbones)} — python -m openbench list backbone"
        )
    ood = {}
    for group, sets in (("near", near), ("far", far), ("csid", csid)):
        for given in sets:
            title, path = _named(given)
            if title in _TAKEN:
                raise ConfigError(
                    f"--{group}: a set cannot be called '{title}', as results have a group of that name — "
                    f"name it: --{group} NAME={path}"
                )
            if f"{group}.{title}" in ood:
                raise ConfigError(f"--{group}: two sets are called '{title}' — name them: --{group} NAME=PATH")
            ood[f"{group}.{title}"] = read_set(path)
    if ood_val:
        ood["ood_val"] = read_set(ood_val)
    benchmark = OwnBenchmark(
        name=name,
        id_sets=_id_sets(whole, {"train": train, "val": val, "test": test}, seed),
        ood=ood,
        corruptions=corruptions,
        backbone=backbone,
        side=side,
        epochs=epochs,
    )
    check_readable(benchmark)
    folder = to or Path(name)
    for file in write(benchmark, folder):
        print(f"wrote {file}")
    counts = {**{f"id.{part}": found for part, found in benchmark.id_sets.items()}, **ood}
    print("\n".join(f"  {where}: {len(found.rows)} images" for where, found in counts.items()))
    print(f"\nverify: {command(benchmark, folder, 'check')}\nrun:    {command(benchmark, folder)}")
    return OK


def _is_source(words: Sequence[str], config_dir: Path | None, sources: Mapping[str, "DataSource"]) -> bool:
    """Whether the only word is the name of a data set, and not of a benchmark.

    Raises:
        ConfigError: it is the name of neither.
    """
    from openbench.compose.sweep import options as entries

    word, known = words[0], entries("benchmark", config_dir)
    if len(words) > 1 or "=" in word or word.startswith("~") or word in known:
        return False
    if word not in sources:
        raise ConfigError(
            f"'{word}' is neither a benchmark nor a data set{did_you_mean(word, [*known, *sources])} "
            "(python -m openbench list benchmark, python -m openbench data list)"
        )
    return True


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
    from openbench.compose.sweep import options as entries
    from openbench.data.benchmark_config import BenchmarkConfig

    if config_dir is not None:
        check_no_clash(config_dir)
    known = entries("benchmark", config_dir)
    for word in words:
        if "=" not in word and not word.startswith("~") and word not in known:
            raise ConfigError(
                f"benchmark '{word}' not found{did_you_mean(word, known)} — available: {available(known, word)} "
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


def _download_root(asked: Path | None) -> Path:
    """Where downloads go: what was asked for, else the first data root that exists, else the first."""
    if asked is not None:
        return asked.expanduser()
    roots = paths.data_roots()
    return next((root for root in roots if root.is_dir()), roots[0])


def _fetch_all(sources: Sequence["DataSource"], root: Path) -> bool:
    """Fetch every file of the sources; one that fails does not keep the others from being fetched."""
    from openbench.data.download import prepare_file

    failed = False
    for source in sources:
        for file in source.files:
            try:
                logger.info(prepare_file(file, root))
            except DataError as error:
                failed = True
                logger.error(f"error: {error}")
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
        state = "complete" if not status.missing else "incomplete" if status.found else "missing"
        download = _megabytes(source) if source else "–"
        rows.append((status.path, status.name, status.found, status.expected, state, download, licence))
    kinds = ("text", "text", "count", "count", "text", "text", "text")
    titles = ("set", "data set", "found", "listed", "state", "download", "licence")
    columns = tuple(Column(title, kind) for title, kind in zip(titles, kinds, strict=True))  # type: ignore[arg-type]
    return Table(f"Data of benchmark {name}", columns, tuple(rows))


def _print_missing(statuses: Sequence["SetStatus"], sources: Mapping[str, "DataSource"], name: str) -> None:
    """What is missing, how to get it, and where it was searched: each data set's instructions and each place once."""
    from openbench.data.build import advice

    gaps = [status for status in statuses if status.missing]
    for data_set in dict.fromkeys(gap.name for gap in gaps):
        print("", *(gap for gap in gaps if gap.name == data_set), sep="\n")
        if data_set in sources:
            print(_how(sources[data_set], name))
    if gaps:
        print("", *advice(gaps, name), sep="\n")


def _how(source: "DataSource", benchmark: str | None = None) -> str:
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


def _named_backbone(words: Sequence[str]) -> str:
    """Return the backbone that words on the command line name; empty if they name none.

    Raises:
        ConfigError: they name several.
    """
    found = [word.removeprefix(_WORD) for word in words if word.startswith(_WORD)]
    if len(found) > 1:
        raise ConfigError(f"found the backbones {' and '.join(found)} — give one at a time")
    return found[0] if found else ""


def _weights_of(name: str, config_dir: Path | None) -> "Weights | None":
    """Return the released weights of a backbone; None where it has none of its own.

    Raises:
        ConfigError: no such backbone.
    """
    from openbench.data.weights import released_weights

    Registry.of(config_dir).entry("backbone", name)
    return released_weights().get(name)


def _files_named(name: str, config_dir: Path | None) -> list[str]:
    """Return the files of weights that a backbone's yaml names, relative to a data root."""
    config = Registry.of(config_dir).entry("backbone", name).config()
    file = str(config.get("weights") or "")
    return [file] if "/" in file else []


def _no_weights(name: str) -> str:
    """Return what to say of a backbone without released weights."""
    return (
        f"backbone '{name}' has no released weights of its own: it is trained on the benchmark, reads features, or "
        "takes the model that you name — nothing to prepare"
    )


def _list_weights(name: str, config_dir: Path | None, benchmark: "BenchmarkConfig | None") -> int:
    """Print where weights come from, whether they are there and, for a benchmark, which OOD classes were labelled."""
    from openbench.cli.output import print_tables

    weights = _weights_of(name, config_dir)
    if weights is None:
        print(_no_weights(name))
        return OK
    print(_how(weights.source))
    print(f"trained on: {weights.pretraining.images} · labels: {weights.pretraining.labels}")
    for file in [*_files_named(name, config_dir), *(file.gives for file in weights.source.files)]:
        there = _found(file)
        print(f"{file}: {'is there, ' + str(there) if there else 'not found in the data roots'}")
    if benchmark is not None:
        print_tables([_seen_table(name, weights, benchmark)])
    return OK


def _prepare_weights(name: str, config_dir: Path | None, root: Path) -> int:
    """Download weights that may be downloaded; say of others how to get them."""
    weights = _weights_of(name, config_dir)
    if weights is None:
        print(_no_weights(name))
        return OK
    named = _files_named(name, config_dir)
    for file in named:
        if there := _found(file):
            print(f"{there}: is there")
            return OK
    if not weights.source.files or _fetch_all([weights.source], root):
        print(_how(weights.source))
        return FAILED
    print(f"{weights.source.title}: ready below {root}")
    if named:
        print(weights.source.note)
    return OK


def _found(file: str) -> Path | None:
    """Where a file is, if it is in a data root."""
    return next((root / file for root in paths.data_roots() if (root / file).is_file()), None)


def _seen_table(name: str, weights: "Weights", benchmark: "BenchmarkConfig") -> "Table":
    """Return for each OOD set of a benchmark how many of its classes were among the labels of the pre-training."""
    from openbench.data.dataset import SetConfig
    from openbench.results.tables.render import Column, Table

    rows = []
    for entry in benchmark.sets:
        if entry.path.startswith(("near.", "far.", "ood_")):
            classes = SetConfig.from_node(entry.node, f"benchmark.{entry.path}").listing().class_names()
            rows.append((entry.path, len(classes), weights.pretraining.seen(classes)))
    columns = (Column("OOD set"), Column("classes", "count"), Column("labelled in pre-training"))
    title = f"Has {name} seen the OOD classes of {benchmark.name}?"
    return Table(title, columns, tuple(rows), notes=("Classes are compared by their names, not by their pictures.",))


def _id_sets(whole: str | None, parts: dict[str, str | None], seed: int) -> dict[str, "OwnSet"]:
    from openbench.data.own.benchmark import read_id, read_set

    given = [part for part, path in parts.items() if path]
    if bool(whole) == bool(given) or (given and len(given) < len(parts)):
        raise ConfigError(
            f"ID images: found --id {whole}, and {', '.join(f'--{p}' for p in given) or 'none'} of --train, "
            "--val, --test — give either --id, or all three others"
        )
    if whole:
        return read_id(whole, seed)
    return {part: read_set(path) for part, path in parts.items() if path}


def _named(given: str) -> tuple[str, str]:
    """Name and path of `NAME=PATH`, or of a path alone, which is called after its last part."""
    name, equals, path = given.partition("=")
    if not equals or "/" in name:
        path = given
        name = Path(given).stem
    cleaned = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_")
    if not cleaned:
        raise ConfigError(f"set '{given}' has no usable name — write NAME=PATH")
    return cleaned, path
