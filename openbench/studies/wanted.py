"""What a run of a study is: its overrides, read without Hydra, as facts that its record must have."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.config.overrides import OUTLIER_SET
from openbench.config.shipped import merged as merged_nodes
from openbench.config.shipped import shipped
from openbench.errors import ConfigError, did_you_mean
from openbench.public import TARGET, public, public_name
from openbench.results.records.settings import NONE, RELEASED
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
        f"benchmark '{name}' not found in configs/benchmark{did_you_mean(name, known)} — available: {', '.join(known)} "
        "(python -m openbench list benchmark)"
    )
