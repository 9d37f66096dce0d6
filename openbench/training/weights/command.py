"""The command line that trains a job, exact enough to be pasted."""

import shlex
from collections.abc import Mapping
from typing import Any

from openbench.config.overrides import AUGMENT, NAME, changes
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
    arguments = [*benchmark.split(), f"backbone={job.backbone.name}", f"training={name}", f"seed={job.seed}"]
    for group, chosen, node in (
        ("backbone", job.backbone.name, config.get("backbone")),
        ("training", name, {key: value for key, value in training.items() if key != AUGMENT}),
    ):
        plain = shipped(group, chosen)
        arguments += changes(group, plain, node) if plain and node else []
    outliers = config.get("outliers")
    if job.ood_train is not None and outliers and outliers.get(NAME):
        arguments.append(f"dataset@outliers={outliers[NAME]}")
        arguments += changes("outliers", shipped("dataset", outliers[NAME]) or outliers, outliers)
    return shlex.join(["python", "-m", "openbench", "train", *arguments])
