"""The command line that trains a job, exact enough to be pasted."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from openbench.data.build import typed
from openbench.digest import digest
from openbench.training.job import TrainingJob
from openbench.training.shipped import shipped

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")


def train_command(job: TrainingJob, config: Mapping[str, Any]) -> str:
    """Return the command that trains a job.

    Args:
        job: names benchmark, backbone and seed.
        config: the scientific nodes; where `training` and `backbone` differ from their yaml files, the command says so.
    """
    training = config["training"]
    name = training.get("_name_") or type(job.method).__module__.rpartition(".")[2]
    benchmark = f"+benchmark={typed(config['benchmark']) if 'benchmark' in config else job.benchmark}"
    arguments = [*benchmark.split(), f"backbone={job.backbone.name}", f"training={name}", f"seed={job.seed}"]
    for group, chosen, node in (
        ("backbone", job.backbone.name, config.get("backbone") or {}),
        ("training", name, training),
    ):
        arguments += [f"{group}.{path}={_typed(value)}" for path, value in _changed(node, shipped(group, chosen))]
    return shlex.join(["python", "-m", "openbench", "train", *arguments])


def _changed(node: Mapping[str, Any], plain: Mapping[str, Any] | None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) wherever a node departs from the yaml it came from."""
    for key, value in node.items():
        if plain is None or key == "_name_":
            continue
        original = plain.get(key)
        if isinstance(value, Mapping) and isinstance(original, Mapping):
            yield from _changed(value, original, f"{path}{key}.")
        elif key not in plain or digest(value) != digest(original):
            yield f"{path}{key}", value


def _typed(value: Any) -> str:
    """A value in Hydra's override grammar."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_typed(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    plain = not isinstance(value, str) or _PLAIN.fullmatch(text)
    return text if plain else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
