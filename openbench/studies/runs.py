"""The runs of a study: what their overrides compose to, and their records, looked up by digest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openbench.compose.config import HYDRA, RUNTIME, comes_with_weights, method_node, options, outline, scientific_nodes
from openbench.config.folders import names as shipped_names
from openbench.config.overrides import ATTACK, GROUPS, NAME, OUTLIER_SET, OUTLIERS
from openbench.errors import ConfigError, OpenbenchError, check_choice, check_known
from openbench.public import TARGET
from openbench.results.frame import Run, benchmark_key, config_key, superseded
from openbench.results.records.settings import NONE

_PLAIN = "cross_entropy"
_NEVER_TRAINED = ("Identity", "features", "open_clip_model")
_INCOMPLETE = "benchmark.incomplete"  # whether images may be missing: the record says which were
_ADDED = ("seed", "augment", ATTACK, OUTLIER_SET)  # may be typed although no default chooses a file
Network = tuple[str, ...]  # benchmark, backbone, training, augmentation, seed


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Args:
        words: its overrides, as typed after `run`.
        names: {group: chosen file}; `augment` and `seed` among them.
        node: the benchmark's node of its config.
        trained: whether its network is trained, not released.
        config_dir: the user's folder of group files.
    """

    words: tuple[str, ...]
    names: Mapping[str, str]
    node: Mapping[str, Any]
    trained: bool
    config_dir: Path | None

    @property
    def benchmark(self) -> str:
        """The name of the benchmark in a record."""
        return str(self.node["name"])

    @property
    def refused(self) -> str:
        """Why the training or augmentation would have no effect; empty if it has one."""
        named = self.names["training"] != _PLAIN or self.names["augment"] != NONE
        if self.trained or not named:
            return ""
        return f"needs a training, and backbone {self.names['backbone']} comes with its weights"

    @property
    def network(self) -> Network:
        """What distinguishes its network from those of other runs."""
        return (self.benchmark, *(self.names[key] for key in ("backbone", "training", "augment", "seed")))

    @cached_property
    def benchmark_key(self) -> str:
        """Digest of the benchmark; each table, draw or group is another one."""
        return benchmark_key(self.node)

    @cached_property
    def config_keys(self) -> set[str]:
        """Digests of the config as a record may have it: with or without what it does not read."""
        config = self._config()
        # Released weights have no training, and few trainings read outliers.
        trainings = [config["training"], None] if self.names["training"] == _PLAIN else [config["training"]]
        shown = (config.get(OUTLIERS), None)
        return {config_key({**config, "training": t, OUTLIERS: o}) for t in trainings for o in shown}

    def _config(self) -> dict[str, Any]:
        """The config that the overrides compose to, the benchmark aside."""
        words = tuple(word for word in self.words if key_of(word) != "seed" and not _is_of_benchmark(word))
        # Hydra takes a tenth of a second, so it composes once for all methods that openbench ships.
        method = tuple(word for word in words if key_of(word).partition(".")[0] == "method")
        if self.names["method"] not in shipped_names("method"):
            return {**scientific_nodes(words, self.config_dir), "seed": int(self.names["seed"])}
        config = scientific_nodes(tuple(word for word in words if word not in method), self.config_dir)
        values = tuple(word for word in method if "." in key_of(word))
        node = method_node(self.names["method"], values, str(self.node.get("classes")).partition("/")[0])
        return {**config, "method": node, "seed": int(self.names["seed"])}


def key_of(word: str) -> str:
    """Return the key of an override without plus signs and tildes."""
    return word.lstrip("+~").partition("=")[0]


def is_runtime(word: str) -> bool:
    """Whether an override says how a run is made, not what it computes."""
    key = key_of(word)
    return key.partition(".")[0] in (RUNTIME, HYDRA) or key == _INCOMPLETE


def merged(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return overrides in order; of those with the same key the last one, in the place of the first."""
    return tuple({key_of(word): word for part in parts for word in part}.values())


def planned_run(words: Sequence[str], where: str, config_dir: Path | None = None) -> PlannedRun:
    """Return the run of some overrides.

    Args:
        words: overrides without sweeps, e.g. `+benchmark=digits`, `method=knn`, `method.k=10`, `seed=1`.
        where: the cell, for messages.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: no benchmark, a name that does not exist, or a word that is not an override.
    """
    scientific = tuple(word for word in words if not is_runtime(word))
    chosen = {key_of(word): word.partition("=")[2] for word in scientific if "." not in key_of(word)}
    if "benchmark" not in chosen:
        raise ConfigError(f"{where}: names no benchmark — add one to a `run` of the study, e.g. +benchmark=digits")
    values = tuple(word for word in scientific if _is_of_benchmark(word) and word[0] != "~")
    others = tuple(word for word in scientific if key_of(word).partition(".")[0] in ("backbone", "dataset@benchmark"))
    try:
        choices, node, backbone = outline((f"+benchmark={chosen['benchmark']}", *others), values, config_dir)
        check_known(chosen, (*choices, *_ADDED), "a run of a study")
        for group in sorted({*GROUPS, "augment", ATTACK} & chosen.keys()):
            check_choice(group, chosen[group], options(group, config_dir))
    except OpenbenchError as error:
        raise ConfigError(f"{where}: {error}") from error
    trained = backbone.get(TARGET) not in (None, *_NEVER_TRAINED) and not comes_with_weights(backbone)
    names = {"augment": NONE, "seed": "0", **choices, **chosen}
    if not names["seed"].isdecimal():
        raise ConfigError(f"{where}: seed — found '{names['seed']}', allowed: a whole number; several are for `seeds:`")
    return PlannedRun(scientific, names, node, trained, config_dir)


def _is_of_benchmark(word: str) -> bool:
    return key_of(word).startswith("benchmark.")


class Records:
    """The records of a results folder, in which those of a run are looked up.

    Args:
        runs: of all benchmarks.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        every = list(runs)
        replaced = superseded(run for run in every if not run.problems)
        self._of_benchmark, self._by_key = dict[str, list[Run]](), dict[tuple[str, str], list[Run]]()
        for run in every:
            self._of_benchmark.setdefault(run.benchmark, []).append(run)
            if not run.problems and run.run_id not in replaced:
                self._by_key.setdefault((run.benchmark_key, run.method), []).append(run)

    def matching(self, run: PlannedRun) -> list[Run]:
        """Return the valid, current records of a run: several where it was repeated, or images were missing."""
        candidates = self._by_key.get((run.benchmark_key, run.names["method"]), [])
        return [record for record in candidates if record.config_key in run.config_keys]

    def of_benchmark(self, name: str, method: str = "") -> list[Run]:
        """Return every record of a benchmark, or those of a method on it."""
        return [run for run in self._of_benchmark.get(name, ()) if method in ("", run.method)]


def network_of(run: Run) -> Network:
    """Return what distinguishes the network of a record, as `PlannedRun.network` has it."""
    name = str((run.nodes["backbone"] or {}).get(NAME) or run.backbone)
    return (run.benchmark, name, run.training, run.augment, str(run.seed))
