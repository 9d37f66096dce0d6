"""`data new`: a benchmark of your own images, as a config folder."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from openbench.cli.process import OK
from openbench.compose.sweep import options
from openbench.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from openbench.data.own.benchmark import OwnSet

_DESCRIPTION = """\
Writes a benchmark of your own images into a config folder and prints the command that runs it. A PATH is

  a folder with a subfolder per class    photos/cat/1.jpg; OOD images may lie in the folder itself
  a .csv with the columns path, label    paths relative to the .csv; label may be missing for OOD images
  an .npz with images and labels         images (n, h, w) or (n, h, w, 3) uint8, also as X and y; classes = names
  a folder from save_to_disk             Hugging Face datasets, one split

--id is split 60 : 10 : 30 within each class, unless it is a folder with `train` and `test` (and perhaps `val`) in it.
Which image went where is written to lists beside the yaml, so that it stays as it is when images are added."""

_TAKEN = ("id", "near", "far", "csid", "overall")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `data new`."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", metavar="NAME", help="of the benchmark: letters, digits, underscores")
    parser.add_argument("--id", metavar="PATH", help="ID images, to be split")
    for part in ("train", "val", "test"):
        parser.add_argument(f"--{part}", metavar="PATH", help=f"ID {part} images, in place of --id")
    for group in ("near", "far", "csid"):
        parser.add_argument(
            f"--{group}", metavar="[NAME=]PATH", action="append", default=[], help=f"a {group} set; may be repeated"
        )
    parser.add_argument("--ood-val", metavar="PATH", help="OOD images for tuning; without, run with tune=none")
    parser.add_argument("--corruptions", action="store_true", help="add a csID set: the test images, corrupted")
    parser.add_argument("--backbone", default="resnet18_cifar", help="config of the network (resnet18_cifar)")
    parser.add_argument("--side", type=int, default=32, metavar="PIXELS", help="height and width it sees (32)")
    parser.add_argument("--epochs", type=int, metavar="N", help="of training (that of the training config)")
    parser.add_argument("--seed", type=int, default=0, help="of the split (0)")
    parser.add_argument("--to", type=Path, metavar="DIR", help="config folder to write to (./NAME)")


def new(arguments: argparse.Namespace) -> int:
    """Write the benchmark and print what can be done with it.

    Raises:
        ConfigError: arguments that do not fit together.
        DataError: images that are not there or do not fit.
    """
    from openbench.data.own.benchmark import OwnBenchmark, check_readable, command, read_set, write

    backbones = options("backbone")
    if arguments.backbone not in backbones:
        raise ConfigError(
            f"backbone '{arguments.backbone}' not found{did_you_mean(arguments.backbone, backbones)} — "
            "python -m openbench list backbone"
        )
    for name, least in (("side", 4), ("epochs", 1), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} — found {value} — allowed: a whole number ≥ {least}")
    ood = {}
    for group in ("near", "far", "csid"):
        for given in getattr(arguments, group):
            name, path = _named(given)
            if name in _TAKEN:
                raise ConfigError(
                    f"--{group}: a set cannot be called '{name}', as results have a group of that name — "
                    f"name it: --{group} NAME={path}"
                )
            if f"{group}.{name}" in ood:
                raise ConfigError(f"--{group}: two sets are called '{name}' — name them: --{group} NAME=PATH")
            ood[f"{group}.{name}"] = read_set(path)
    if arguments.ood_val:
        ood["ood_val"] = read_set(arguments.ood_val)
    benchmark = OwnBenchmark(
        name=arguments.name,
        id_sets=_id_sets(arguments),
        ood=ood,
        corruptions=arguments.corruptions,
        backbone=arguments.backbone,
        side=arguments.side,
        epochs=arguments.epochs,
    )
    check_readable(benchmark, lambda text: print(text, file=sys.stderr, flush=True))
    folder = arguments.to or Path(arguments.name)
    for file in write(benchmark, folder):
        print(f"wrote {file}")
    counts = {**{f"id.{part}": found for part, found in benchmark.id_sets.items()}, **ood}
    print("\n".join(f"  {where}: {len(found.rows)} images" for where, found in counts.items()))
    print(f"\nverify: {command(benchmark, folder, 'check')}\nrun:    {command(benchmark, folder)}")
    return OK


def _id_sets(arguments: argparse.Namespace) -> dict[str, "OwnSet"]:
    from openbench.data.own.benchmark import PARTS, read_id, read_set

    parts = {part: getattr(arguments, part) for part in PARTS}
    given = [part for part, path in parts.items() if path]
    if bool(arguments.id) == bool(given) or (given and len(given) < len(parts)):
        raise ConfigError(
            f"ID images: found --id {arguments.id}, and {', '.join(f'--{p}' for p in given) or 'none'} of --train, "
            "--val, --test — give either --id, or all three others"
        )
    if arguments.id:
        return read_id(arguments.id, arguments.seed)
    return {part: read_set(path) for part, path in parts.items()}


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
