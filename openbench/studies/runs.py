"""The runs of a study: the config that their overrides compose to, and the records that have it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openbench.compose.composed import comes_with_weights
from openbench.compose.config import HYDRA, RUNTIME
from openbench.compose.many import method_node, outline, scientific_nodes
from openbench.compose.sweep import options
from openbench.config.overrides import GROUPS, NAME, OUTLIER_SET, OUTLIERS
from openbench.config.shipped import names as shipped_names
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import ConfigError, OpenbenchError, check_choice, check_known
from openbench.public import TARGET
from openbench.results.frame import NODES, Keep, Run, run_of
from openbench.results.records.settings import NONE
from openbench.results.records.superseded import superseded

_PLAIN = "cross_entropy"
_NEVER_TRAINED = ("Identity", "features", "open_clip_model")
_INCOMPLETE = "benchmark.incomplete"  # whether sets may be missing: the record says which were
_ADDED = ("seed", "augment", OUTLIER_SET)  # may be typed although no default chooses a file
_INTERVALS = ("confidence", "replicates")  # of two records that differ in these alone, a table has a preference


@dataclass(frozen=True)
class Wanted:
    """One run of a study.

    Args:
        words: its overrides, as typed after `run`.
        names: {group: the file that is chosen}; `augment` and `seed` among them.
        node: the benchmark's node of its config.
        values: {dotted key: value} of the benchmark's keys that are typed.
        trained: whether its network comes without released weights.
        config_dir: the user's folder of group files.
    """

    words: tuple[str, ...]
    names: Mapping[str, str]
    node: Mapping[str, Any]
    values: Mapping[str, Any]
    trained: bool
    config_dir: Path | None

    @property
    def benchmark(self) -> str:
        """The name that its record's benchmark has."""
        return str(self.node["name"])

    @property
    def form(self) -> str:
        """Digest of the benchmark; each table or draw is a form of its own, with its own images."""
        return _form(self.node)

    @property
    def refused(self) -> str:
        """Why a training or an augmentation that is named would have no effect; empty if it has one."""
        named = self.names["training"] != _PLAIN or self.names["augment"] != NONE
        if self.trained or not named:
            return ""
        return f"needs a training, and backbone {self.names['backbone']} comes with its weights"

    @property
    def network(self) -> tuple[str, ...]:
        """What tells its network and images from those of other runs."""
        return (self.benchmark, *(self.names[key] for key in ("backbone", "training", "augment", "seed")))

    @property
    def config(self) -> dict[str, Any]:
        """What its overrides compose to, the benchmark aside."""
        words = tuple(word for word in self.words if key_of(word) != "seed" and not _is_of_benchmark(word))
        # Hydra takes a tenth of a second, so it composes once for all methods that openbench ships.
        own = tuple(word for word in words if key_of(word).partition(".")[0] == "method")
        if self.names["method"] not in shipped_names("method") or not any(word.startswith("method=") for word in own):
            return {**scientific_nodes(words, self.config_dir), "seed": int(self.names["seed"])}
        config = scientific_nodes(tuple(word for word in words if word not in own), self.config_dir)
        values = tuple(word for word in own if "." in key_of(word))
        node = method_node(self.names["method"], values, str(self.node.get("classes")).partition("/")[0])
        return {**config, "method": node, "seed": int(self.names["seed"])}


def key_of(word: str) -> str:
    """Return the key of an override without plus signs and tildes."""
    return word.lstrip("+~").partition("=")[0]


def merged(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return overrides in order; of those with the same key the last one, in the place of the first."""
    return tuple({key_of(word): word for part in parts for word in part}.values())


def wanted(words: Sequence[str], where: str, config_dir: Path | None = None) -> Wanted:
    """Return what a run is.

    Args:
        words: overrides without sweeps, e.g. `+benchmark=digits`, `method=knn`, `method.k=10`, `seed=1`.
        where: the cell, for messages.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: no benchmark, a name that does not exist, or a word that is not an override.
    """
    kept = tuple(word for word in words if not key_of(word).startswith((RUNTIME, HYDRA, _INCOMPLETE)))
    chosen = {key_of(word): word.partition("=")[2] for word in kept if "." not in key_of(word)}
    if "benchmark" not in chosen:
        raise ConfigError(
            f"{where}: names no benchmark — found {', '.join(words) or 'no overrides'} — add one to the `run` of the "
            "study, of the row or of the column, e.g. +benchmark=digits"
        )
    form = tuple(word for word in kept if _is_of_benchmark(word) and word[0] != "~")
    try:
        network = tuple(word for word in kept if key_of(word).partition(".")[0] == "backbone")
        choices, node, backbone = outline((f"+benchmark={chosen['benchmark']}", *network), form, config_dir)
        check_known(chosen, (*choices, *_ADDED), "a run of a study")
        for group in sorted({*GROUPS, "augment"} & chosen.keys()):
            check_choice(group, chosen[group], options(group, config_dir))
    except OpenbenchError as error:
        raise ConfigError(f"{where}: {error}") from error
    names = {"augment": NONE, "seed": "0", **choices, **chosen}
    values = {key: _leaf({"benchmark": node}, key) for key in map(key_of, form)}
    trained = backbone.get(TARGET) not in (None, *_NEVER_TRAINED) and not comes_with_weights(backbone)
    return Wanted(kept, names, node, values, trained, config_dir)


def _is_of_benchmark(word: str) -> bool:
    return key_of(word).startswith("benchmark.")


def _key(nodes: Mapping[str, Any]) -> str:
    """Digest of what numbers depend on, the benchmark aside; which metrics were computed does not matter."""
    metrics = nodes.get("metrics") or {}
    numbers = {k: v for k, v in metrics.items() if not (isinstance(v, list) or k.startswith("_") or k in _INTERVALS)}
    return digest([{key: nodes.get(key) for key in NODES}, numbers, nodes.get("seed")])


def _form(benchmark: Any) -> str:
    node = benchmark if isinstance(benchmark, Mapping) else {}
    return digest({key: value for key, value in node.items() if key != "incomplete"})


def _choices(benchmark: Any) -> dict[str, Any]:
    """The keys of a benchmark that choose among its forms, such as a table or a draw."""
    node = benchmark if isinstance(benchmark, Mapping) else {}
    return {key: value for key, value in node.items() if isinstance(value, str | int) and key != "incomplete"}


@dataclass(frozen=True)
class Made:
    """A record as far as a study needs it.

    Args:
        run: what tables read of it.
        key: digest of its config, the benchmark aside.
        form: digest of its benchmark's node.
        choices: that node's keys which choose among forms.
        values: {dotted key: value} of the benchmark's keys that the study sets.
        outliers: digest of what its training was shown; None for nothing.
        metrics: the node of its config.
        seconds: {stage: wall seconds}.
        images: how many were read.
        width: numbers kept of each image: logits and features.
    """

    run: Run
    key: str
    form: str
    choices: Mapping[str, Any]
    values: Mapping[str, Any]
    outliers: str | None
    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]
    images: int
    width: int

    @property
    def network(self) -> tuple[str, ...]:
        """What tells its network and images from those of other runs."""
        run = self.run
        name = str((run.backbone_node or {}).get(NAME) or run.backbone)
        return (run.benchmark, name, run.training, run.augment, str(run.seed))


@dataclass
class Archive:
    """Records by benchmark and method.

    Args:
        made: every record.
        replaced: {run id: by what it was superseded}.
    """

    made: Mapping[tuple[str, str], list[Made]]
    replaced: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[ResultRecord], keys: Iterable[str], keep: Keep) -> "Archive":
        """Return the archive of records.

        Args:
            records: read one after the other; only what is needed of each is kept.
            keys: dotted keys of the benchmark that the study sets.
            keep: which numbers of a record are needed.
        """
        found: dict[tuple[str, str], list[Made]] = {}
        for one in _made(records, tuple(keys), keep):
            found.setdefault((one.run.benchmark, one.run.method), []).append(one)
        sound = (one.run for many in found.values() for one in many if not one.run.problems)
        return cls(found, superseded(sound))

    def fitting(self, wanted: Wanted) -> list[Made]:
        """Return the records of a run that nothing speaks against; several, where they were made more than once."""
        choices = _choices(wanted.node)
        candidates = [
            one
            for one in self.made.get((wanted.benchmark, wanted.names["method"]), [])
            if one.choices == choices
            and all(digest(one.values.get(key)) == digest(value) for key, value in wanted.values.items())
            and not one.run.problems
            and one.run.run_id not in self.replaced
        ]
        if not candidates:
            return []
        config = wanted.config
        shown, keys = digest(config.get(OUTLIERS)), {_key(config)}
        if wanted.names["training"] == _PLAIN:
            keys.add(_key({**config, "training": None}))  # of released weights
        return [one for one in candidates if one.key in keys and one.outliers in (None, shown)]

    def of_benchmark(self, benchmark: str) -> list[Made]:
        """Return every record of a benchmark."""
        return [one for (name, _), many in self.made.items() if name == benchmark for one in many]


def as_defined(one: Made, wanted: Wanted) -> bool:
    """Whether the benchmark of a record is the one that a run asks for, complete and unchanged."""
    return one.run.pristine and one.form == wanted.form


def state(one: Made, wanted: Wanted) -> str:
    """Return the digest of a record's benchmark; apart from it where its config defines another one."""
    other = one.run.pristine and one.form != wanted.form
    return f"{one.run.digest}, defined otherwise" if other else one.run.digest


def _made(records: Iterable[ResultRecord], keys: Sequence[str], keep: Keep) -> Iterator[Made]:
    for record in records:
        run = run_of(record, keep)
        config, benchmark = record.config, record.config.get("benchmark")
        seconds, outliers = record.provenance.get("seconds"), config.get(OUTLIERS)
        pairs = seconds.items() if isinstance(seconds, Mapping) else ()
        yield Made(
            run=run,
            key=_key({**config, "training": run.nodes.get("training")}),
            form=_form(benchmark),
            choices=_choices(benchmark),
            values={key: _leaf(config, key) for key in keys},
            outliers=None if outliers is None else digest(outliers),
            metrics=config.get("metrics") or {},
            seconds={str(stage): float(value) for stage, value in pairs if isinstance(value, float | int)},
            images=sum(count["n"] for count in record.counts.values()),
            width=sum(int(record.backbone.get(key) or 0) for key in ("feature_dim", "num_classes")),
        )


def _leaf(node: Any, key: str) -> Any:
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
