"""`data list backbone=NAME` and `data prepare backbone=NAME`: released weights, and what their network has seen."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from openbench import paths
from openbench.cli.process import FAILED, OK
from openbench.cli.registry import Registry
from openbench.errors import ConfigError

if TYPE_CHECKING:
    from openbench.data.benchmark_config import BenchmarkConfig
    from openbench.data.weights import Weights
    from openbench.results.tables.render import Table

_WORD = "backbone="


def named_backbone(words: list[str]) -> str:
    """Return the backbone that words on the command line name; empty if they name none.

    Raises:
        ConfigError: they name several.
    """
    found = [word.removeprefix(_WORD) for word in words if word.startswith(_WORD)]
    if len(found) > 1:
        raise ConfigError(f"found the backbones {' and '.join(found)} — give one at a time")
    return found[0] if found else ""


def weights_of(name: str, config_dir: Path | None) -> "Weights | None":
    """Return the released weights of a backbone; None where it has none of its own.

    Raises:
        ConfigError: no such backbone.
    """
    from openbench.data.weights import released_weights

    Registry.of(config_dir).entry("backbone", name)
    return released_weights().get(name)


def files_named(name: str, config_dir: Path | None) -> list[str]:
    """Return the files of weights that a backbone's yaml names, relative to a data root."""
    config = Registry.of(config_dir).entry("backbone", name).config()
    return [value for key in ("weights", "checkpoint") if "/" in (value := str(config.get(key) or ""))]


def no_weights(name: str) -> str:
    """Return what to say of a backbone without released weights."""
    return (
        f"backbone '{name}' has no released weights of its own: it is trained on the benchmark, reads features, or "
        "takes the model that you name — nothing to prepare"
    )


def list_weights(name: str, arguments: argparse.Namespace, benchmark: "BenchmarkConfig | None") -> int:
    """Print where weights come from, whether they are there and, for a benchmark, which OOD classes were labelled."""
    from openbench.cli.commands.data import how
    from openbench.cli.tables import print_tables

    weights = weights_of(name, arguments.config_dir)
    if weights is None:
        print(no_weights(name))
        return OK
    print(how(weights.source))
    print(f"trained on: {weights.pretraining.images} · labels: {weights.pretraining.labels}")
    for file in [*files_named(name, arguments.config_dir), *(file.gives for file in weights.source.files)]:
        there = next((root / file for root in paths.data_roots() if (root / file).is_file()), None)
        print(f"{file}: {'is there, ' + str(there) if there else 'not found in the data roots'}")
    if benchmark is not None:
        print_tables([seen_table(name, weights, benchmark)])
    return OK


def prepare_weights(name: str, arguments: argparse.Namespace) -> int:
    """Download weights that may be downloaded; say of others how to get them."""
    from openbench.cli.commands.data import download_root, fetch_all, how

    weights = weights_of(name, arguments.config_dir)
    if weights is None:
        print(no_weights(name))
        return OK
    named = files_named(name, arguments.config_dir)
    for file in named:
        if there := next((root / file for root in paths.data_roots() if (root / file).is_file()), None):
            print(f"{there}: is there")
            return OK
    if not weights.source.files or fetch_all([weights.source], download_root(arguments.root)):
        print(how(weights.source))
        return FAILED
    print(f"{weights.source.title}: ready below {download_root(arguments.root)}")
    if named:
        print(weights.source.note)
    return OK


def seen_table(name: str, weights: "Weights", benchmark: "BenchmarkConfig") -> "Table":
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
