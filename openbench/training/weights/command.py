"""The command line that trains a job, exact enough to be pasted."""

from collections.abc import Mapping
from typing import Any

from openbench.config.command import OUTLIER_SET, command_line, words_of
from openbench.config.overrides import AUGMENT, NAME, OUTLIERS, changes
from openbench.config.shipped import named_for, shipped
from openbench.data.benchmark_config import typed
from openbench.public import name_of
from openbench.training.job import TrainingJob


def train_command(job: TrainingJob, config: Mapping[str, Any]) -> str:
    """Return the command that trains a job.

    Args:
        job: names benchmark, backbone and seed.
        config: the scientific nodes; where `training` and `backbone` differ from their yaml files, the command says so.
    """
    training = config["training"]
    name = training.get(NAME) or named_for(name_of(type(job.method)), "training")
    benchmark = f"+benchmark={typed(config['benchmark']) if 'benchmark' in config else job.benchmark}"
    outliers = config.get(OUTLIERS) or {}
    chosen = {"backbone": job.backbone.name, "training": name}
    chosen |= {OUTLIER_SET: outliers[NAME]} if job.ood_train is not None and outliers.get(NAME) else {}
    arguments = [*benchmark.split(), *words_of(chosen), f"seed={job.seed}"]
    for group, file, node in (
        ("backbone", job.backbone.name, config.get("backbone")),
        ("training", name, {key: value for key, value in training.items() if key != AUGMENT}),
    ):
        plain = shipped(group, file)
        arguments += changes(group, plain, node) if plain and node else []
    if OUTLIER_SET in chosen:
        arguments += changes(OUTLIERS, shipped("dataset", outliers[NAME]) or outliers, outliers)
    return command_line("train", arguments)
