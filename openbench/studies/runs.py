"""The runs of a study: overrides, read without Hydra, as facts that a record must have; and which records have them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.config.overrides import NAME, OUTLIER_SET
from openbench.config.shipped import merged as merged_nodes
from openbench.config.shipped import shipped
from openbench.core.record import UNCOMMITTED, ResultRecord
from openbench.data.manifests import load_manifest
from openbench.digest import digest
from openbench.errors import ConfigError, DataError, available, did_you_mean
from openbench.public import TARGET, public, public_name
from openbench.results.frame import Keep, Run, run_of
from openbench.results.records.settings import NONE, RELEASED
from openbench.results.records.superseded import superseded
from openbench.results.tables.views import GROUPS
from openbench.storage.yaml_file import parse_yaml, read_yaml

OUTLIERS = "outliers"
_DEFAULTS = {"training": "cross_entropy", "method": "msp", "tune": "validation", "augment": NONE, "seed": "0"}
# What must not change a number, or is left to the benchmark's digest.
_ELSEWHERE = ("runtime", "hydra", "benchmark.incomplete")
_WEIGHTS = ("weights", "checkpoint", "pretrained")
_NEVER_TRAINED = ("Identity", "features", "open_clip_model")
_FILES = frozenset(("backbone", "training", "method", "tune", "augment"))  # groups whose names are those of files
_REFERENCE = re.compile(r"\$\{benchmark\.([\w.]+)\}")


@dataclass(frozen=True)
class Wanted:
    """One run of a study.

    Args:
        words: its overrides, as typed after `run`.
        names: {group: the file that is chosen}, the benchmark's own choices included; `augment`, `outliers` and `seed`
            among them.
        values: {dotted key of the config: value} of everything else that is set.
        benchmark: the name that its record's benchmark has.
        trained: whether its network comes without released weights.
        refused: why `run` would refuse it; empty if nothing is known that it would refuse.
    """

    words: tuple[str, ...]
    names: Mapping[str, str]
    values: Mapping[str, Any]
    benchmark: str
    trained: bool = False
    refused: str = ""

    @property
    def form(self) -> tuple[str, ...]:
        """The benchmark, and what chooses among its forms, such as a table or a draw; each form has its own images."""
        return (self.benchmark, *(f"{k}={v}" for k, v in sorted(self.values.items()) if k.startswith("benchmark.")))

    @property
    def setting(self) -> tuple[str, ...]:
        """Its overrides but for method, seed and form: what network, tuning and metrics of its record follow from."""
        return tuple(word for word in self.words if not _is_apart(key_of(word)))

    @property
    def network(self) -> tuple[str, ...]:
        """What tells its network and images from those of other runs."""
        return (self.benchmark, *(self.names.get(key, "") for key in ("backbone", "training", "augment", "seed")))


def _is_apart(key: str) -> bool:
    return key.partition(".")[0] in ("method", "seed") or key.startswith("benchmark.")


def key_of(word: str) -> str:
    """Return the key of an override without plus signs and tildes."""
    return word.lstrip("+~").partition("=")[0]


def merged(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return overrides in order; of those with the same key the last one, in the place of the first."""
    return tuple({key_of(word): word for part in parts for word in part}.values())


def wanted(words: Sequence[str], where: str, config_dir: Path | None = None) -> Wanted:
    """Return what a run is, from its overrides and the choices of its benchmark.

    Args:
        words: overrides without sweeps, e.g. `+benchmark=digits`, `method=knn`, `method.k=10`, `seed=1`.
        where: the cell, for messages.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: no benchmark, a name that does not exist, or a word that is not an override.
    """
    names, values = dict[str, str](), dict[str, Any]()
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if word.startswith("~") or key.startswith(_ELSEWHERE):
            continue
        if not equals:
            raise ConfigError(f"{where}: found {word!r} — allowed: overrides, KEY=VALUE, as `run` takes them")
        if key == OUTLIER_SET:
            names[OUTLIERS] = value
        elif key in (*_DEFAULTS, "benchmark", "backbone"):
            names[key] = value
        elif "." in key and "@" not in key:
            values[key] = parse_yaml(value, f"{where}: {key}")
        elif key not in ("metrics", "recipe@training.recipe"):
            raise ConfigError(
                f"{where}: found {word!r} — a study does not know how to find its records — allowed: benchmark, "
                f"backbone, {', '.join(_DEFAULTS)}, {OUTLIER_SET}, and keys within them, e.g. method.k=10"
            )
    if "benchmark" not in names:
        raise ConfigError(
            f"{where}: names no benchmark — found {', '.join(words) or 'no overrides'} — add one to the `run` of the "
            "study, of the row or of the column, e.g. +benchmark=digits"
        )
    for group in sorted(_FILES & names.keys()):
        _check_named(group, names[group], where, config_dir)
    node = benchmark_node(names["benchmark"], config_dir)
    defaults = {f"benchmark.{key}": value for key, value in node.items() if _is_choice(key, value)}
    found = {**_DEFAULTS, **_choices(names["benchmark"], config_dir), **names}
    values = {**defaults, **values}
    trained = _is_trained(found, values, config_dir)
    return Wanted(tuple(words), found, values, _name(node, values), trained, _refused(found, trained))


def _name(node: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The name that a benchmark gives itself; `${benchmark.KEY}` in it stands for what is typed, else in its file."""

    def value(match: re.Match[str]) -> str:
        inside: Any = node
        for key in match[1].split("."):
            inside = inside.get(key) if isinstance(inside, Mapping) else None
        return str(values.get(f"benchmark.{match[1]}", match[0] if inside is None else inside))

    return _REFERENCE.sub(value, str(node.get("name")))


def _is_trained(names: Mapping[str, str], values: Mapping[str, Any], config_dir: Path | None) -> bool:
    """Whether a run's network comes without released weights, or is asked to leave them out."""
    node = shipped("backbone", names.get("backbone", ""))
    if node is None or public_name(str(node.get(TARGET))) in _NEVER_TRAINED:
        return False
    node |= _of_benchmark(names["benchmark"], "backbone", config_dir)
    return not any(values.get(f"backbone.{key}", node.get(key)) for key in _WEIGHTS)


def _refused(names: Mapping[str, str], trained: bool) -> str:
    """Why a training or an augmentation that is named would have no effect on the network; empty if it has one."""
    named = names["training"] not in (_DEFAULTS["training"], RELEASED) or names["augment"] != NONE
    if trained or not named or shipped("backbone", names.get("backbone", "")) is None:
        return ""
    return f"needs a training, and backbone {names['backbone']} comes with its weights"


def _is_choice(key: str, value: Any) -> bool:
    """Whether a key of a benchmark is one that users set to choose among its forms, such as a table or a draw."""
    return key not in ("name", "classes", "incomplete") and isinstance(value, str | int)


def benchmark_node(name: str, config_dir: Path | None) -> Mapping[str, Any]:
    """Return the benchmark's node, with that of the file that it goes on from.

    Raises:
        ConfigError: there is no such file.
    """
    return _of_benchmark(name, "benchmark", config_dir)


def _of_benchmark(name: str, key: str, config_dir: Path | None) -> dict[str, Any]:
    """A node of a benchmark's file, with that of the file that it goes on from."""
    file = _file(name, config_dir)
    found: dict[str, Any] = {}
    for entry in file.get("defaults", ()):
        if isinstance(entry, str) and entry != "_self_":
            found |= _of_benchmark(entry, key, config_dir)
    return found | (file.get(key) or {})


@lru_cache
def definition(name: str, config_dir: Path | None) -> Mapping[str, Any]:
    """Return the benchmark's node with those of its sets, as Hydra puts them together; references stay as written.

    Raises:
        ConfigError: there is no such file.
    """
    file = _file(name, config_dir)
    found: dict[str, Any] = {}
    entries = file.get("defaults", ())
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            found = merged_nodes(found, file.get("benchmark") or {})
        elif isinstance(entry, str):
            found = merged_nodes(found, definition(entry, config_dir))
        else:
            found = merged_nodes(found, _placed(entry, config_dir))
    return dict(public(found))


def _placed(entry: Mapping[str, str], config_dir: Path | None) -> dict[str, Any]:
    """The node that an entry such as `/dataset@benchmark.near.tin: tiny_imagenet` brings in; empty for other groups."""
    ((place, name),) = entry.items()
    group, _, path = place.lstrip("/").partition("@benchmark.")
    if not path:
        return {}
    files = (folder / group / f"{name}.yaml" for folder in _folders(config_dir))
    node: dict[str, Any] = next((dict(read_yaml(file) or {}) for file in files if file.is_file()), {})
    for key in reversed(path.split(".")):
        node = {key: node}
    return node


@lru_cache
def _choices(benchmark: str, config_dir: Path | None) -> dict[str, str]:
    """{group: file} that a benchmark chooses in its defaults."""
    found: dict[str, str] = {}
    for entry in _file(benchmark, config_dir).get("defaults", ()):
        if isinstance(entry, str):
            found |= {} if entry == "_self_" else _choices(entry, config_dir)
            continue
        for place, name in entry.items():
            if place.startswith("override "):
                group = place.removeprefix("override ").lstrip("/")
                found[OUTLIERS if group == OUTLIER_SET else group] = str(name)
    return found


def _check_named(group: str, name: str, where: str, config_dir: Path | None) -> None:
    known = _known(group, config_dir)
    if name not in known:
        raise ConfigError(
            f"{where}: {group} '{name}' not found in configs/{group}{did_you_mean(name, known)} "
            f"(python -m openbench list {group})"
        )


@lru_cache
def _known(group: str, config_dir: Path | None) -> tuple[str, ...]:
    """The names of a group's files, the user's among them."""
    return tuple(sorted(path.stem for folder in _folders(config_dir) for path in (folder / group).glob("*.yaml")))


def _folders(config_dir: Path | None) -> list[Path]:
    return [paths.config_dir(), *([] if config_dir is None else [config_dir])]


@lru_cache
def _file(name: str, config_dir: Path | None) -> Mapping[str, Any]:
    for folder in _folders(config_dir):
        if (path := folder / "benchmark" / f"{name}.yaml").is_file():
            return dict(read_yaml(path) or {})
    known = _known("benchmark", config_dir)
    raise ConfigError(
        f"benchmark '{name}' not found in configs/benchmark{did_you_mean(name, known)} — available: "
        f"{available(known, name)} (python -m openbench list benchmark)"
    )


_ROLES = ("csid", "near", "far")  # of which a benchmark has sets by name
_PARTS = ("id", "classes", "ood_val", "preprocess", *_ROLES)  # of which a benchmark that has them cannot do without
_CHOICE = ("manifest", "limit", "keep")  # which images a set has; one that is not written is none
_TESTED = ("id_test", "id_val", "ood_val", "csid", "near", "far")
_FREE = ("name", "incomplete", "declared", "at", "file", "folder")  # where images are, and what follows from the sets
_JUDGES = ("openbench/core/", "openbench/data/")  # code that says whether a benchmark is as defined
_SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """What a record that calls its benchmark as defined says of it.

    Args:
        node: of its config.
        counts: {role/set: how many images it says the set has by definition}.
        contradictions: what in the record itself speaks against it.
    """

    node: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: ResultRecord) -> "Claim | None":
        """Return what a record claims; None if it does not call its benchmark as defined."""
        if record.benchmark.get("pristine") is not True:
            return None
        stated = list(map(str, record.benchmark.get("deviations") or ()))
        found = [f"it names deviations: {'; '.join(stated[:_SHOWN])}"] * bool(stated)
        changed = [name for name in record.provenance.get(UNCOMMITTED) or {} if str(name).startswith(_JUDGES)]
        found += [f"made by a changed copy of openbench ({', '.join(sorted(changed)[:_SHOWN])})"] * bool(changed)
        node = public(record.config.get("benchmark")) or {}
        counts = {key: int(count["expected"]) for key, count in record.counts.items()}
        return cls(node, counts, tuple(found))

    def doubts(self, wanted: Wanted, config_dir: Path | None) -> tuple[str, ...]:
        """Return why the benchmark is not, or need not be, the one that a study asks for; empty if nothing says so.

        Sets, their lists and limits must be those of the benchmark's file, and the counts those of the lists. Which
        images were read cannot be told without them: records of one table have one digest of them.

        Args:
            wanted: a run that the record fits.
            config_dir: the user's folder of group files.
        """
        if not any(role in self.node for role in ("id", "collection")):
            return (*self.contradictions, "it does not say of which sets")
        asked = definition(wanted.names["benchmark"], config_dir)
        differing = list(dict.fromkeys(_differing(self.node, asked, wanted.values)))
        return (*self.contradictions, *differing[:_SHOWN], *(() if differing else self._miscounted()))

    def _miscounted(self) -> Iterator[str]:
        """Sets of which it says another number of images than their lists have, and OOD sets of which it says none."""
        sets = [f"{group}/{name}" for group in GROUPS for name in self.node.get(group) or {}]
        yield from (f"{key.replace('/', '.')} was not measured" for key in sets if key not in self.counts)
        for key, expected in self.counts.items():
            role, _, name = key.partition("/")
            node = self._set(role, name)
            size = _length(str(node.get("manifest"))) if role in _TESTED and not node.get("keep") else None
            size = size if size is None or node.get("limit") is None else min(size, int(node["limit"]))
            if size is not None and size != expected:
                yield f"{role}.{name} has {size} images by definition, not {expected}"

    def _set(self, role: str, name: str) -> Mapping[str, Any]:
        if role.startswith("id_"):
            return (self.node.get("id") or {}).get(role.removeprefix("id_")) or {}
        node = self.node.get(role) or {}
        return (node.get(name) or {}) if role in _ROLES else node


def _differing(found: Any, asked: Any, values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What of a benchmark's node is not as its file has it; of keys that one of both lacks, what says which images."""
    if isinstance(found, Mapping) and isinstance(asked, Mapping):
        sets, needed = path in ("id", *_ROLES), () if path else _PARTS
        chosen = _CHOICE if "manifest" in asked else ()
        for key in [key for key in (*asked, *(key for key in chosen if key not in asked)) if key not in _FREE]:
            at = f"{path}.{key}" if path else str(key)
            if key in found or key in chosen:
                yield from _differing(found.get(key), asked.get(key), values, at)
            elif sets or key in needed:
                yield f"{at} is missing"
        yield from (f"{path}.{key} is not part of it" for key in found if sets and key not in asked)
    elif f"benchmark.{path}" not in values and not _same(found, asked):
        yield f"{path} is {found}, by definition {asked}"


def _same(found: Any, asked: Any) -> bool:
    """Whether two values are the same; a reference to another key may be any."""
    return (isinstance(asked, str) and "${" in asked) or digest(found) == digest(asked)


@lru_cache(maxsize=256)
def _length(manifest: str) -> int | None:
    """How many images a list has that openbench ships; None for rules, and for what is not a list."""
    if not (paths.manifest_dir() / f"{manifest}.txt").is_file():
        return None
    try:
        return len(load_manifest(manifest))
    except DataError:
        return None


_PLAIN = "cross_entropy"
_COMPOSED = ("training", "backbone", "tune", "metrics")
_SPACE = "_space_"
_INTERVALS = ("confidence", "replicates")  # of two records that differ in these alone, a table has a preference


@dataclass(frozen=True)
class Made:
    """A record as far as a study needs it.

    Args:
        run: what tables read of it.
        names: {group: the file that was chosen}.
        values: {dotted key: value} of the keys that the study sets.
        own: hyper-parameters of the method that its config file does not have as they are here.
        nodes: {group: its node of the config}, of released weights without a training.
        seconds: {stage: wall seconds}.
        images: how many were read.
        width: numbers kept of each image: logits and features.
        claim: what it says of its benchmark, if it calls that as defined.
    """

    run: Run
    names: Mapping[str, str]
    values: Mapping[str, Any]
    own: frozenset[str]
    nodes: Mapping[str, Any]
    seconds: Mapping[str, float]
    images: int
    width: int
    claim: Claim | None = None


@dataclass
class Archive:
    """Records by benchmark and method.

    Args:
        made: every record.
        replaced: {run id: by what it was superseded}.
        config_dir: the user's folder of group files.
        judged: {(run id, form of the benchmark): why its word on the benchmark does not count}, as far as it was asked.
    """

    made: Mapping[tuple[str, str], list[Made]]
    replaced: Mapping[str, str] = field(default_factory=dict)
    config_dir: Path | None = None
    judged: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, records: Iterable[ResultRecord], keys: Iterable[str], keep: Keep, config_dir: Path | None = None
    ) -> "Archive":
        """Return the archive of records.

        Args:
            records: read one after the other; only what is needed of each is kept.
            keys: dotted keys of the config that the study sets.
            keep: which numbers of a record are needed.
            config_dir: the user's folder of group files.
        """
        found: dict[tuple[str, str], list[Made]] = {}
        for one in _made(records, frozenset(keys), keep):
            found.setdefault((one.run.benchmark, one.run.method), []).append(one)
        sound = (one.run for many in found.values() for one in many if not one.run.problems)
        return cls(found, superseded(sound), config_dir)

    def fitting(self, wanted: Wanted) -> list[Made]:
        """Return the records of a run that nothing speaks against; several, where they were made more than once."""
        candidates = self.made.get((wanted.benchmark, wanted.names["method"]), [])
        alike = [one for one in candidates if self._counts(one) and _fits(one, wanted)]
        return [one for one in alike if _as_composed(one.nodes, _composed(wanted.setting, self.config_dir))]

    def of_benchmark(self, benchmark: str) -> list[Made]:
        """Return every record of a benchmark."""
        return [one for (name, _), many in self.made.items() if name == benchmark for one in many]

    def as_defined(self, one: Made, wanted: Wanted) -> bool:
        """Whether the benchmark of a record is the one that a run asks for, complete and unchanged."""
        return one.run.pristine and not self.doubts(one, wanted)

    def doubts(self, one: Made, wanted: Wanted) -> tuple[str, ...]:
        """Return why a record's word that its benchmark is as defined does not count; empty if it does."""
        if one.claim is None:
            return ()
        key = (one.run.run_id, *wanted.form)
        if key not in self.judged:
            self.judged[key] = one.claim.doubts(wanted, self.config_dir)
        return self.judged[key]

    def state(self, one: Made, wanted: Wanted) -> str:
        """Return the digest of a record's benchmark; apart from it where a record's word alone says so."""
        return f"{one.run.digest} by its word" if self.doubts(one, wanted) else one.run.digest

    def _counts(self, one: Made) -> bool:
        return not one.run.problems and one.run.run_id not in self.replaced


def _fits(one: Made, wanted: Wanted) -> bool:
    names = wanted.names
    return (
        _same_training(one, names)
        and all(one.names[key] == names[key] for key in ("backbone", "tune", "seed", "augment") if key in names)
        and all(_same_values(one.values.get(key), value) for key, value in wanted.values.items())
        and all(any(f"{word}.".startswith(f"method.{key}.") for word in wanted.values) for key in one.own)
        and (one.names[OUTLIERS] in (NONE, names.get(OUTLIERS, NONE)))
    )


def _same_training(one: Made, names: Mapping[str, str]) -> bool:
    """Whether the network was trained as wanted; released weights are those of plain training."""
    found, plain = one.names["training"], names["training"] in (_PLAIN, RELEASED)
    return found == names["training"] or (found == RELEASED and plain)


@lru_cache(maxsize=1024)
def _composed(words: tuple[str, ...], config_dir: Path | None) -> Mapping[str, Any]:
    """What Hydra makes of the overrides of a run: {group: its node}."""
    from openbench.compose.composed import composed

    config = composed("run", words, config_dir).config
    return {group: public(config.get(group)) for group in _COMPOSED}


def _as_composed(found: Any, asked: Any) -> bool:
    """Whether what a record's config and today's config files both have is the same; keys of only one do not count."""
    if isinstance(found, Mapping) and isinstance(asked, Mapping):
        return all(_as_composed(found[key], asked[key]) for key in found if key in asked)
    return _same_values(found, asked)


def _same_values(found: Any, value: Any) -> bool:
    """Whether a value of a config is the one that was typed; a reference to another key may be any."""
    return digest(found) == digest(value) or (isinstance(value, str) and "${" in value)


def _made(records: Iterable[ResultRecord], keys: frozenset[str], keep: Keep) -> Iterator[Made]:
    for record in records:
        run = run_of(record, keep)
        yield Made(
            run=run,
            names=_names(record, run),
            values={key: _leaf(record.config, key) for key in keys},
            own=_own(record),
            nodes=_nodes(record, run),
            seconds=_seconds(record),
            images=sum(count["n"] for count in record.counts.values()),
            claim=Claim.of(record),
            width=sum(int(record.backbone.get(key) or 0) for key in ("feature_dim", "num_classes")),
        )


def _names(record: ResultRecord, run: Run) -> dict[str, str]:
    chosen: Callable[[str], str] = lambda group: str((record.config.get(group) or {}).get(NAME))  # noqa: E731
    tune = chosen("tune")
    return {
        "backbone": chosen("backbone") if chosen("backbone") != "None" else run.backbone,
        "training": run.training,
        "augment": run.augment,
        OUTLIERS: run.outliers,
        "tune": tune if tune != "None" else run.strategy,
        "seed": str(run.seed),
    }


def _nodes(record: ResultRecord, run: Run) -> dict[str, Any]:
    metrics = record.config.get("metrics")
    known = metrics.items() if isinstance(metrics, Mapping) else ()
    numbers = {k: v for k, v in known if not (isinstance(v, list) or k.startswith("_") or k in _INTERVALS)}
    return {**{key: node for key, node in run.nodes.items() if key in _COMPOSED}, "metrics": numbers}


def _own(record: ResultRecord) -> frozenset[str]:
    """The hyper-parameters that were not what the method's config file says, tuned ones aside."""
    node = record.config.get("method") or {}
    classes = (record.config.get("benchmark") or {}).get("classes")
    data = classes.partition("/")[0] if isinstance(classes, str) else ""
    default = _default(str(node.get(NAME)), data)
    if default is None:
        return frozenset()
    given = {key: value for key, value in node.items() if key == _SPACE or not str(key).startswith("_")}
    return frozenset(key for key, value in given.items() if not _same_values(value, default.get(key)))


@lru_cache
def _default(method: str, data: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = public(shipped("method", method, data))
    return found


def _seconds(record: ResultRecord) -> dict[str, float]:
    found = record.provenance.get("seconds")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(stage): float(value) for stage, value in pairs if isinstance(value, float | int)}


def _leaf(node: Any, key: str) -> Any:
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
