"""The config of one job, plain and resolved, for the command line and for Python."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from openbench.compose.config import HYDRA, RUNTIME, compose, runtime, scientific
from openbench.compose.sweep import parse
from openbench.config.build import target_of
from openbench.config.overrides import NAME, OUTLIER_SET, OUTLIERS, choices as choices_of, word, words_of
from openbench.config.shipped import names, shipped
from openbench.errors import NotApplicableError

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Composed:
    """A job's config, plain and resolved.

    Args:
        config: the scientific nodes, as `openbench.engine.prepare` takes them.
        runtime: the runtime node.
        overrides: that compose to the config, in one spelling: files are chosen first, then values set.
    """

    config: dict[str, Any]
    runtime: dict[str, Any]
    overrides: tuple[str, ...] = ()


def composed(command: str, overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """Return the config of one job.

    Args:
        command: the primary config: run, train, extract or check.
        overrides: as typed on the command line, e.g. `+benchmark=digits`; no sweeps.
        config_dir: a folder of the user's group files, searched after ours.

    Raises:
        ConfigError: anything about the overrides or the config files.
        NotApplicableError: a key that nothing would read.
    """
    cfg = compose(command, overrides, config_dir)
    return nodes(command, cfg, cfg.hydra.runtime.choices, overrides)


def nodes(command: str, cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> Composed:
    """Return the plain nodes of a config that Hydra has composed.

    Args:
        command: the primary config.
        cfg: composed.
        choices: group → chosen file, Hydra's `runtime.choices`.
        overrides: as typed for this job.
    """
    config = scientific(cfg, choices, command)
    _refuse_unread(command, overrides, config)
    return Composed(config, runtime(cfg), _spelt(overrides, config, str(choices.get("benchmark"))))


def _spelt(overrides: Sequence[str], config: Mapping[str, Node], benchmark: str) -> tuple[str, ...]:
    """Overrides in one spelling: every choice of a file, then the values that were typed; no runtime.

    Outliers, which few trainings read, are chosen only where that was typed.
    """
    chosen = {group: name for group, name in choices_of(config).items() if group != OUTLIER_SET}
    words = [f"+benchmark={benchmark}", *words_of(chosen)]
    for override in parse(overrides):
        key = override.key_or_group
        if key in ("benchmark", *chosen) or key.partition(".")[0] in (RUNTIME, HYDRA):
            continue
        typed = "" if override.is_delete() else f"={word(override.value())}"
        words.append(f"{override.get_key_element()}{typed}")
    return tuple(words)


def _refuse_unread(command: str, overrides: Sequence[str], config: Mapping[str, Node]) -> None:
    """Refuse keys of a training that have no effect on released weights, and outliers that a training does not use.

    `check` reads outliers whatever the weights. A sweep skips the combination as not applicable.
    """
    outliers, recipe = list(_typed_of(overrides, OUTLIERS)), list(_typed_of(overrides, "training"))
    if command != "check" and comes_with_weights(config["backbone"]) and (recipe or outliers):
        raise NotApplicableError(
            f"{' '.join(recipe + outliers)} has no effect, as backbone '{_name(config['backbone'])}' comes with "
            "weights and is not trained — leave it out, or choose another backbone, e.g. backbone=resnet18_cifar "
            "(python -m openbench list backbone)"
        )
    if outliers and not _learns_from_outliers(config["training"]):
        known = [name for name in names("training") if _learns_from_outliers(shipped("training", name) or {})]
        raise NotApplicableError(
            f"{' '.join(outliers)} has no effect, as training '{_name(config['training'])}' does not learn from "
            f"outliers — leave it out, or choose one of {', '.join(known)} (training=NAME)"
        )


def comes_with_weights(backbone: Node) -> bool:
    """Whether the node of a backbone names weights, so that there is nothing to train; False if it does not tell."""
    if "start" in backbone:
        return False
    member = backbone.get("member")
    return bool(backbone.get("weights")) or (isinstance(member, Mapping) and comes_with_weights(member))


def _typed_of(overrides: Sequence[str], node: str) -> Iterator[str]:
    """The overrides below a node, or that put a group there; removing outliers is always allowed."""
    for override in parse(overrides):
        below = override.key_or_group.startswith(f"{node}.") or (override.package or "").split(".")[0] == node
        if below and not (node == OUTLIERS and override.is_delete()):
            yield override.input_line or override.key_or_group


def _name(node: Node) -> str:
    return str(node.get(NAME) or node.get("name"))


def _learns_from_outliers(training: Node) -> bool:
    return bool(getattr(target_of(training, "training"), "uses_outliers", False))
