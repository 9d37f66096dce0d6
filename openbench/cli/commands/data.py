"""`data`: what a benchmark needs, getting it, verifying it, looking at it, and bringing your own."""

import logging
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openbench import paths
from openbench.cli import options, registry
from openbench.cli.output import note, print_tables
from openbench.cli.process import FAILED, OK
from openbench.compose.config import composed, options as entries
from openbench.config.folders import shipped
from openbench.data import download
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import advice, open_benchmark, survey
from openbench.data.download import DataSource, Weights, are_missing, released_weights
from openbench.errors import ConfigError, DataError, not_found
from openbench.results.tables.render import Column, Table

if TYPE_CHECKING:
    from openbench.data.own.benchmark import OwnBenchmark, OwnSet

logger = logging.getLogger(__name__)

_GROUPS = ("id", "near", "far", "csid", "overall")  # names in results that no set may have
_BACKBONE = "backbone="
# Fast networks: with released weights of ImageNet, best first; and one that is trained in minutes.
_PRETRAINED, _SMALL = ("torchvision_resnet18", "timm_mobilenetv2_100"), "resnet20_cifar"


@click.group(cls=options.Group, no_args_is_help=False)
def data() -> None:
    """Get data sets, verify them, look at them, bring your own.

    Examples:
      python -m openbench data list                          every data set: licence, size, whether it is there
      python -m openbench data list cifar10                  what a benchmark needs, and what is missing
      python -m openbench data prepare cifar10               download what may be downloaded, say how to get the rest
      python -m openbench data prepare backbone=torchvision_resnet50      the same for weights
      python -m openbench data list backbone=clip_vitb16 imagenet1k_mos   whether they have seen the OOD classes
      python -m openbench data verify digits                 check counts, hashes, classes, images in two splits
      python -m openbench data stats digits --to sheets      a contact sheet per split, to look at
      python -m openbench data new pets --id photos/pets --near birds=photos/birds
      python -m openbench data new texts --features train=a.npz id_test=b.npz near.news=c.npy
    """


@data.command("list")
@click.argument("words", nargs=-1, metavar="[BENCHMARK…]")
@options.table_format()
@options.config_dir
def list_data(args: Namespace) -> int:
    """List data sets, or what a benchmark needs.

    For a benchmark: where its data are searched, and what is missing.

    BENCHMARK is a benchmark, with KEY=VALUE overrides, a data set, or backbone=NAME.
    """
    backbone, words = _backbone(args.words)
    is_source = bool(words) and not backbone and _is_source(words, args.config_dir)
    if is_source or (backbone and not words):
        options.check_read(f"data list {args.words[0]}", "[BENCHMARK…]", "--config-dir")
    if backbone:
        return _list_weights(backbone, words, args.config_dir, args.form)
    if not words:
        print_tables([_sources_table()], args.form)
    elif is_source:
        print(_how(download.data_sources()[words[0]]))
    else:
        return _print_survey(benchmark_config(words, args.config_dir), args.form)
    return OK


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@options.file_option("--root", "DIR", "folder to download to (default: OPENBENCH_DATA, else ./data)")
def prepare(args: Namespace) -> int:
    """Download what may be downloaded, and say how to get the rest.

    BENCHMARK is a benchmark, with KEY=VALUE overrides, a data set, or backbone=NAME.
    """
    roots, sources = paths.data_roots(), download.data_sources()
    root = args.root.expanduser() if args.root else next((one for one in roots if one.is_dir()), roots[0])
    backbone, words = _backbone(args.words)
    code = _prepare_weights(backbone, args.config_dir, root) if backbone else OK
    if not words:
        return code
    if _is_source(words, args.config_dir):
        return _prepare_source(sources[words[0]], root) or code
    config = benchmark_config(words, args.config_dir)
    missing = dict.fromkeys(status.config.name for status in survey(config) if status.missing)
    failed = [name for name in missing if name in sources and not _fetch(sources[name], root)]
    return _print_survey(config) or (FAILED if failed else code)


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@click.option("--fast", is_flag=True, help="leave out the search for similar images")
@click.option("--show", type=click.IntRange(0), default=20, metavar="N", help="similar pairs to print (default: 20)")
def verify(args: Namespace) -> int:
    """Check counts, hashes, classes and duplicates."""
    from openbench.data.checking.lookalikes import lookalikes
    from openbench.data.checking.verify import verify_node
    from openbench.data.dataset import readable_fingerprint

    if args.fast:
        options.check_read("--fast", "BENCHMARK…", "--config-dir")
    config = benchmark_config(args.words, args.config_dir)
    report = verify_node(config)
    print(report)
    verdict = report.verdict
    if not (report.missing or args.fast):
        pairs = lookalikes(open_benchmark(config, sampled=readable_fingerprint))
        # Identical images are in the report already.
        print(f"  {len(pairs)} pairs look alike in splits that must be disjoint" + (":" if pairs else ""))
        for pair in pairs[: args.show]:
            print(f"    {pair}")
        if len(pairs) > args.show:
            print(f"    and {len(pairs) - args.show} more (--show {len(pairs)})")
        verdict += f"; look-alikes to be judged by eye: {len(pairs):,}" * bool(pairs)
    print(verdict)
    return OK if report.ok else FAILED


@data.command
@click.argument("words", nargs=-1, required=True, metavar="BENCHMARK…")
@options.config_dir
@click.option("--to", type=options.FILE, default=Path("sheets"), metavar="DIR", help="folder (default: ./sheets)")
def stats(args: Namespace) -> int:
    """Print statistics and draw a contact sheet of each split."""
    from openbench.data.checking.contact_sheet import draw, stats_of, table_line

    benchmark = open_benchmark(benchmark_config(args.words, args.config_dir))
    folder = args.to / benchmark.name
    folder.mkdir(parents=True, exist_ok=True)
    for split in benchmark.splits():
        if split.items[0].ndim == 1:
            print(table_line(split))
            continue
        sheet, numbers = folder / f"{split.role}-{split.name}.png", stats_of(split, benchmark.classes)
        draw(split, benchmark.classes, numbers, sheet)
        print(f"{numbers}\n  {sheet}", flush=True)
    return OK


class _New(options.Command):
    """A command whose options in `several` take several SET=FILE."""

    several = ("--features", "--labels", "--logits")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat such an option before each of its values."""
        typed: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                option = next((known for known in self.several if known == word.partition("=")[0]), "")
            elif option and "=" in word and typed[-1] != option:
                typed.append(option)
            typed.append(word)
        return super().parse_args(ctx, typed)


@data.command(cls=_New)
@click.argument("name", metavar="NAME")
@click.option("--features", multiple=True, metavar="SET=FILE…", help="features of anything, in place of images")
@click.option("--labels", multiple=True, metavar="SET=FILE…", help="classes of their ID rows, if not in the same files")
@click.option("--logits", multiple=True, metavar="SET=FILE…", help="logits of all rows")
@options.file_option("--head", "FILE", "an .npz with the linear classifier of the features: weight (c, d), bias (c,)")
@click.option("--id", "whole", metavar="PATH", help="ID images, to be split")
@click.option("--train", metavar="PATH", help="ID train images, instead of --id")
@click.option("--val", metavar="PATH", help="ID val images, instead of --id")
@click.option("--test", metavar="PATH", help="ID test images, instead of --id")
@click.option("--near", metavar="[NAME=]PATH", multiple=True, help="a near set; may be repeated")
@click.option("--far", metavar="[NAME=]PATH", multiple=True, help="a far set; may be repeated")
@click.option("--csid", metavar="[NAME=]PATH", multiple=True, help="a csid set; may be repeated")
@click.option("--ood-val", metavar="PATH", help="OOD images for tuning; without it, run with tune=none")
@click.option("--corruptions", is_flag=True, help="add a csID set: the test images, corrupted")
@click.option("--backbone", default="resnet18_cifar", help="config of the network (default: resnet18_cifar)")
@click.option("--side", type=click.IntRange(4), default=32, metavar="PIXELS", help="its height and width (default: 32)")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="epochs of training (default: the config's)")
@click.option("--seed", type=click.IntRange(0), default=0, help="seed of the split (default: 0)")
@options.file_option("--to", "DIR", "config folder to write to (default: ./NAME)")
def new(args: Namespace) -> int:
    """Write a benchmark of your own images, or of features of anything.

    It goes into a config folder, and the command that runs it is printed.

    NAME is what users type: letters, digits, underscores. A PATH is

      a folder with a subfolder per class    photos/cat/1.jpg; OOD images may be in the folder itself
      a .csv with the columns path, label    paths relative to the .csv; OOD images need no label
      an .npz with images and labels         images (n, h, w) or (n, h, w, 3) uint8, also as X and y; classes = names

    --id is split 60 : 10 : 30 within each class, unless it is a folder with `train` and `test` (and perhaps `val`) in
    it. The split is written to lists beside the yaml, so that images added later do not change it.

    Features come in .npy, .npz, .parquet or .safetensors files, a row (n, d) for each sample, by set:

      --features train=a.npy id_test=b.npy near.x=c.npy    train and id_test, and one of near.NAME and far.NAME
      id_val, ood_val, csid.NAME                           if you have them; nothing is tuned without ood_val

    An .npz and a .safetensors file may have `labels` beside `features`, a .parquet file a column `label`: whole numbers
    from 0, or names. Without --logits and --head, a linear head is fitted on the training features.
    """
    from openbench.data.own.benchmark import OwnBenchmark, command, read_set, write

    folder = args.to or Path(args.name)
    groups = {"near": args.near, "far": args.far, "csid": args.csid}
    if args.features:
        if any((args.whole, args.train, args.val, args.test, args.ood_val, *groups.values(), args.corruptions)):
            raise ConfigError("--features and images exclude each other — give OOD features as near.NAME=FILE")
        options.check_read("--features", "NAME", "--labels", "--logits", "--head", "--seed", "--to")
        return _new_of_features(args, folder)
    if args.labels or args.logits or args.head:
        raise ConfigError(
            "--labels, --logits and --head belong to features — give --features train=FILE id_test=FILE …"
        )
    if args.backbone not in (backbones := entries("backbone")):
        raise ConfigError(not_found(f"backbone '{args.backbone}'", args.backbone, backbones, "list backbone"))
    ood = {}
    for group, place in [(group, place) for group, places in groups.items() for place in places]:
        title, path = _named(place)
        if title in _GROUPS or f"{group}.{title}" in ood:
            why = "is that of a group in results" if title in _GROUPS else "occurs twice"
            raise ConfigError(f"--{group}: the name '{title}' {why} — name the set: --{group} NAME={path}")
        ood[f"{group}.{title}"] = read_set(path)
    if args.ood_val:
        ood["ood_val"] = read_set(args.ood_val)
    benchmark = OwnBenchmark(
        args.name, _id_sets(args), ood, args.corruptions, args.backbone, side=args.side, epochs=args.epochs
    )
    for file in write(benchmark, folder):
        print(f"wrote {file}")
    print("\n".join(f"  {where}: {len(images.rows)} images" for where, images in benchmark.sets.items()))
    print(f"\nverify: {command(benchmark, folder, 'check')}")
    print("\n".join(_first_runs(benchmark, command(benchmark, folder))), flush=True)
    return OK


def _new_of_features(args: Namespace, folder: Path) -> int:
    """Write a benchmark of features, and say what comes next."""
    from openbench.backbones.rows import ArrayFeatures
    from openbench.data.own.benchmark import command
    from openbench.data.own.features import FEATURES, FeatureFiles, array_in

    files = FeatureFiles(_by_set(args.features), _by_set(args.labels), _by_set(args.logits), args.head)
    benchmark = files.benchmark(args.name, args.seed)
    if args.head is not None:
        columns = int(array_in(files.features["train"], FEATURES).shape[1])
        classifier = ArrayFeatures(args.name, columns, head=str(args.head))
        if classifier.num_classes != (c := len(benchmark.classes)):
            raise DataError(
                f"head '{args.head}' has {classifier.num_classes} classes, train has {c} — the same expected"
            )
    for file in files.write(benchmark, folder):
        print(f"wrote {file}")
    print("\n".join(f"  {where}: {len(rows.rows):,} rows" for where, rows in benchmark.sets.items()))
    print("\n".join(files.remarks(benchmark)))
    run = command(benchmark, folder)
    print(f"\nverify: python -m openbench data verify {args.name} --config-dir {shlex.quote(str(folder))}")
    print(f"run:    {run} method=knn\nsweep:  {run.replace('openbench run', 'openbench run -m')} 'method=glob(*)'")
    print("board:  python -m openbench leaderboard", flush=True)
    return OK


def _by_set(words: Sequence[str]) -> dict[str, Path]:
    """The files of an option by set."""
    files: dict[str, Path] = {}
    for word in words:
        where, sign, path = word.partition("=")
        if not (sign and path):
            raise ConfigError(f"'{word}' — write SET=FILE, e.g. train=a.npy")
        if where in files:
            raise ConfigError(f"set '{where}' is given twice ('{files[where]}', '{path}') — give one file")
        files[where] = Path(path).expanduser()
    return files


def _first_runs(benchmark: "OwnBenchmark", run: str) -> Iterator[str]:
    """The commands to run next, the fastest first: released weights, a small network, and the network that was named.

    Args:
        benchmark: as written.
        run: the command that runs it.
    """
    ready = (name for name in _PRETRAINED if not are_missing(shipped("backbone", name) or {}))
    yield f"quick:  {run} backbone={next(ready, _PRETRAINED[0])} backbone.head=linear_probe method=knn"
    if benchmark.backbone != _SMALL:
        epochs = max(5, min(100, 10_000 // len(benchmark.id_sets["train"].rows)))
        yield f"train:  {run} backbone={_SMALL} training.recipe.epochs={epochs}"
    yield f"run:    {run}"


def _is_source(words: Sequence[str], config_dir: Path | None) -> bool:
    """Whether the only word is the name of a data set, and not of a benchmark.

    Raises:
        ConfigError: it is the name of neither.
    """
    word, benchmarks, sources = words[0], entries("benchmark", config_dir), download.data_sources()
    if len(words) > 1 or "=" in word or word.startswith("~") or word in benchmarks:
        return False
    if word not in sources:
        if word in entries("dataset", config_dir):
            here = "it is computed, or made of files that are here already"
            raise ConfigError(f"data set '{word}' has no download: {here} (python -m openbench show dataset {word})")
        what = f"benchmark or data set '{word}'"
        raise ConfigError(not_found(what, word, [*benchmarks, *sources], "data list"))
    return True


def benchmark_config(words: Sequence[str], config_dir: Path | None = None) -> BenchmarkConfig:
    """Return the benchmark that words on the command line mean, its config parsed; its images need not be here.

    Args:
        words: a benchmark's name, or `+benchmark=NAME`, and overrides such as `benchmark.incomplete=allow`.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: no such benchmark, or an override that Hydra refuses.
    """
    benchmarks = entries("benchmark", config_dir)
    for word in words:
        if "=" not in word and not word.startswith("~") and word not in benchmarks:
            raise ConfigError(not_found(f"benchmark '{word}'", word, benchmarks, "list benchmark"))
    overrides = [f"+benchmark={word}" if word in benchmarks else word for word in words]
    return BenchmarkConfig.parse(composed("check", overrides, config_dir).config["benchmark"])


def _fetch(source: DataSource, root: Path) -> bool:
    """Download every file of a source, and return whether all succeeded."""
    complete = True
    for file in source.files:
        try:
            logger.info(download.prepare_file(file, root))
        except DataError as error:  # the other files are downloaded all the same
            complete = False
            logger.error(f"error: {error}")
    return complete


def _prepare_source(source: DataSource, root: Path) -> int:
    """Download a source, or say how to get it by hand."""
    if not source.files or not _fetch(source, root):
        print(_how(source))
        return FAILED
    print(f"{source.title}: ready below {root}")
    return OK


def _sources_table() -> Table:
    """All data sets."""
    roots = paths.data_roots()
    rows = tuple((s.name, s.title, _megabytes(s), _state(s), s.licence) for s in download.data_sources().values())
    columns = tuple(map(Column, ("data set", "title", "download", "state", "licence")))
    notes = (
        "state: of what openbench downloads; `data list BENCHMARK` also finds other layouts and files you got by hand",
        "searched: " + ", ".join(str(root.absolute()) for root in roots),
    )
    return Table("Data sets", columns, rows, notes=notes)


def _state(source: DataSource) -> str:
    """How much of a data set's download is there; a dash for one that comes by hand."""
    roots, files = paths.data_roots(), len(source.files)
    absent = sum(not any((root / file.gives).exists() for root in roots) for file in source.files)
    if not files:
        return "–"
    return "there" if not absent else "not downloaded" if absent == files else f"{files - absent} of {files} files"


def _print_survey(config: BenchmarkConfig, form: str = "console") -> int:
    """Print a row per set, then what is missing and how to get it: each data set's instructions and each place once."""
    statuses, sources, rows = survey(config), download.data_sources(), []
    for status in statuses:
        source = sources.get(status.config.name)
        licence = source.licence if source else "comes with openbench, or your own"
        state = "complete" if not status.missing else "incomplete" if status.found else "missing"
        size = _megabytes(source) if source else "–"
        rows.append((status.path, status.config.name, status.found, status.expected, state, size, licence))
    titles = ("set", "data set", "found", "listed", "state", "download", "licence")
    columns = tuple(Column(title, "count" if title in ("found", "listed") else "text") for title in titles)
    print_tables([Table(f"Data of benchmark {config.name}", columns, tuple(rows))], form)
    gaps = [status for status in statuses if status.missing]
    for data_set in dict.fromkeys(gap.config.name for gap in gaps):
        note("\n".join(["", *(str(gap) for gap in gaps if gap.config.name == data_set)]), form)
        if data_set in sources:
            note(_how(sources[data_set], config.typed), form)
    if gaps:
        note("\n".join(["", *advice(gaps, config.typed)]), form)
    return FAILED if gaps else OK


def _how(source: DataSource, benchmark: str = "") -> str:
    """What a source is, and how to get it."""
    lines = [f"{source.title} · licence: {source.licence} · {source.page}"]
    if source.files:
        lines.append(f"download: python -m openbench data prepare {benchmark or source.name}")
        lines += [f"  {file.urls[0]} → {file.gives}" for file in source.files]
    if source.by_hand:
        lines.append(f"by hand: {source.by_hand} (below the folder that OPENBENCH_DATA names, or ./data)")
    return "\n".join([*lines, source.note] if source.note else lines)


def _megabytes(source: DataSource) -> str:
    if not source.files:
        return "by hand"
    return "size unknown" if source.size is None else f"{source.size / 1e6:.0f} MB"


def _backbone(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The backbone that words on the command line name, empty if they name none, and the other words.

    Raises:
        ConfigError: they name several.
    """
    names = [word.removeprefix(_BACKBONE) for word in words if word.startswith(_BACKBONE)]
    if len(names) > 1:
        raise ConfigError(f"found the backbones {' and '.join(names)} — give one at a time")
    return "".join(names), tuple(word for word in words if not word.startswith(_BACKBONE))


def _weights_of(name: str, config_dir: Path | None) -> tuple[Weights | None, str]:
    """The released weights of a backbone, and the file that its yaml names, empty for a library's.

    Raises:
        ConfigError: no such backbone.
    """
    file = str(registry.entry("backbone", name, config_dir).config().get("weights") or "")
    weights = released_weights().get(name)
    if weights is None:
        print(
            f"backbone '{name}' has no released weights: it is trained on the benchmark, reads features, or takes the "
            "model that you name"
        )
    return weights, file * ("/" in file)


def _located(file: str) -> Path | None:
    """Where a file is, if it is in the working folder or a data root."""
    return next((place for place in paths.places(file) if place.is_file()), None)


def _list_weights(name: str, words: Sequence[str], config_dir: Path | None, form: str) -> int:
    """Print where weights come from, whether they are there and, for a benchmark, which OOD classes were labelled."""
    weights, file = _weights_of(name, config_dir)
    if weights is None:
        return OK
    note(_how(weights), form)
    note(f"trained on: {weights.images} · labels: {weights.labels}", form)
    for needed in filter(None, dict.fromkeys([file, *(file.gives for file in weights.files)])):
        path = _located(needed)
        note(f"{needed}: {f'is there, {path}' if path else 'not found in the data roots'}", form)
    if words:
        print_tables([_seen_table(name, weights, benchmark_config(words, config_dir))], form)
    return OK


def _prepare_weights(name: str, config_dir: Path | None, root: Path) -> int:
    """Download weights that may be downloaded; say of others how to get them."""
    weights, file = _weights_of(name, config_dir)
    if weights is None:
        return OK
    if file and (path := _located(file)):
        print(f"{path}: is there")
        return OK
    code = _prepare_source(weights, root)
    if file and code == OK:
        print(weights.note)
    return code


def _seen_table(name: str, weights: Weights, benchmark: BenchmarkConfig) -> Table:
    """For each OOD set of a benchmark, how many of its classes were among the labels of the pre-training."""
    rows = []
    for entry in benchmark.sets:
        if entry.path.startswith(("near.", "far.", "ood_")):
            classes = entry.config.listing().class_names()
            rows.append((entry.path, len(classes), weights.seen(classes)))
    columns = (Column("OOD set"), Column("classes", "count"), Column("labelled in pre-training"))
    title = f"Has {name} seen the OOD classes of {benchmark.name}?"
    return Table(title, columns, tuple(rows), notes=("Classes are compared by their names, not by their images.",))


def _id_sets(args: Namespace) -> dict[str, "OwnSet"]:
    """The ID images by split: of one folder, or of three."""
    from openbench.data.own.benchmark import PARTS, read_id, read_set

    places = {part: path for part in PARTS if (path := getattr(args, part))}
    if args.whole and not places:
        return read_id(args.whole, args.seed)
    if args.whole or len(places) < len(PARTS):
        raise ConfigError("ID images — give either --id, or all of --train, --val and --test")
    return {part: read_set(path) for part, path in places.items()}


def _named(text: str) -> tuple[str, str]:
    """Name and path of `NAME=PATH`, or of a path alone, which is named after its last part."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name:
        name, path = Path(text).stem, text
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_")
    if not name:
        raise ConfigError(f"set '{text}' has no usable name — write NAME=PATH")
    return name, path
