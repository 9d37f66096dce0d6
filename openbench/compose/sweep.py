"""The jobs of a sweep: which there are, what sets each apart, and choices that depend on the benchmark."""

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from openbench.compose.config import as_searched, options
from openbench.errors import ConfigError, did_you_mean

BENCHMARK = "+benchmark"
PAIRED = ("backbone", "training", "method", "tune", "metrics")


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return the parsed overrides, leaving out what cannot be parsed."""
    return [found for text in overrides if (found := _parsed(text)) is not None]


def jobs(overrides: Sequence[str], config_dir: Path | None) -> list[list[str]]:
    """Return the overrides of every job of a sweep, in the order in which Hydra numbers them.

    Args:
        overrides: as typed, those of `hydra.…` left out.
        config_dir: a folder of the user's group files, which `glob` looks into too.
    """
    choices: dict[str, list[str]] = {}
    for override in parse(overrides):
        if not override.is_hydra_override():
            key = override.get_key_element()
            swept = override.is_sweep_override()
            choices[key] = [f"{key}={v}" for v in _values(override, config_dir)] if swept else [_typed(override)]
    return [list(job) for job in itertools.product(*choices.values())]


@dataclass(frozen=True)
class Combination:
    """One job of a sweep.

    Args:
        typed: its overrides as its launcher gets them, in which a pair is the name of a benchmark made for it.
        plain: the same, with the names of a pair each by itself.
    """

    typed: tuple[str, ...]
    plain: tuple[str, ...]


def combinations(overrides: Sequence[str], config_dir: Path | None) -> list[Combination]:
    """Return every job of a sweep, in the order in which Hydra numbers them; nothing is written.

    Args:
        overrides: as typed; pairs such as `backbone={cifar10:resnet20_cifar10}` among them.
        config_dir: a folder of the user's group files.

    Raises:
        ConfigError: as `paired` does.
    """
    made = dict[str, tuple[str, ...]]()

    def note(benchmark: str, choice: dict[str, str]) -> str:
        name = _name_of(benchmark, choice)
        made[f"{BENCHMARK}={name}"] = (f"{BENCHMARK}={benchmark}", *(f"{k}={v}" for k, v in choice.items()))
        return name

    typed = _paired(overrides, config_dir, note)
    return [
        Combination(tuple(job), tuple(word for text in job for word in made.get(text, (text,))))
        for job in jobs(typed, config_dir)
    ]


def swept_keys(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Return the keys that have several values in a sweep, as they are typed but for a plus sign."""
    found = [o for o in parse(overrides) if o.is_sweep_override() and len(_values(o, config_dir)) > 1]
    return list(dict.fromkeys(override.get_key_element().lstrip("+") for override in found))


def label(job: Sequence[str], swept: Sequence[str]) -> str:
    """Return what sets a job apart from the others of its sweep: `method=knn seed=1`."""
    plain = [override.lstrip("+") for override in job]
    return " ".join(override for override in plain if override.split("=", 1)[0] in swept)


def deferred(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep, with keys of nodes left to the jobs.

    Hydra checks `benchmark.incomplete=allow` against the config without the keys that are swept over, which may have no
    benchmark. A sweep over the single value `choice(allow)` is checked against the config of every job.
    """
    return [_deferred(text) for text in overrides]


def _deferred(text: str) -> str:
    override = _parsed(text)
    if override is None or override.is_sweep_override() or override.type not in (OverrideType.CHANGE, OverrideType.ADD):
        return text
    first, _, rest = override.key_or_group.partition(".")
    if not rest or first in ("hydra", "runtime") or override.is_hydra_override():
        return text
    waiting = f"{override.get_key_element()}=choice({text.partition('=')[2]})"
    in_jobs = [_parsed(job) for [job] in jobs([waiting], None)] if _parsed(waiting) else []
    # Hydra writes the value again for the job; where that would change it (null, '1'), it stays as typed.
    same = [job is not None and repr(job.value()) == repr(override.value()) for job in in_jobs]
    return waiting if same == [True] else text


def paired(overrides: Sequence[str], config_dir: Path | None, folder: Path) -> list[str]:
    """Return the overrides with `backbone={cifar10:resnet20_cifar10}` made into benchmarks that choose that backbone.

    Each pair becomes a config file of the group `benchmark`, which Hydra is told to look for; benchmarks that are not
    named keep their own choice.

    Args:
        overrides: as typed.
        config_dir: a folder of the user's group files.
        folder: where the files are written, if there are any; every job must be able to read it.

    Raises:
        ConfigError: a pair names a benchmark that is not swept over, or something else than names of the group.
    """
    found = _paired(overrides, config_dir, lambda benchmark, choice: _write(folder / "benchmark", benchmark, choice))
    if found == list(overrides):
        return found
    # Set on the command line, the search path hides the one that `compose` makes of `config_dir`.
    places = [folder, *([] if config_dir is None else [config_dir])]
    searched = ",".join(map(as_searched, places))
    return [f"hydra.searchpath=[{searched}]", *found]


def _paired(overrides: Sequence[str], config_dir: Path | None, make: Callable[[str, dict[str, str]], str]) -> list[str]:
    """The overrides with the benchmarks of pairs named as `make` does, from a benchmark and its choices."""
    pairs = {o.key_or_group: o for o in parse(overrides) if o.key_or_group in PAIRED and isinstance(o.value(), dict)}
    benchmark = next((o for o in parse(overrides) if o.get_key_element() == BENCHMARK), None)
    if not pairs or benchmark is None:
        return list(overrides)
    names = _values(benchmark, config_dir)
    chosen = {name: [dict[str, str]()] for name in names}
    for group, override in pairs.items():
        for name, values in _pairs(override, names, config_dir).items():
            chosen[name] = [{**before, group: value} for before in chosen[name] for value in values]
    named = [make(name, choice) for name, choices in chosen.items() for choice in choices]
    rest = [text for text in overrides if text not in [_typed(o) for o in (benchmark, *pairs.values())]]
    return [f"{BENCHMARK}={','.join(named)}", *rest]


def _pairs(override: Override, names: Sequence[str], config_dir: Path | None) -> dict[str, list[str]]:
    """The names of a group that each benchmark is paired with."""
    group, found = override.key_or_group, dict[str, list[str]]()
    allowed = options(group, config_dir)
    for benchmark, value in override.value().items():  # type: ignore[union-attr]
        if benchmark not in names:
            raise ConfigError(
                f"'{benchmark}' is not a benchmark of this sweep{did_you_mean(str(benchmark), names)} — found "
                f"{_typed(override)} — allowed: {', '.join(names)}"
            )
        found[benchmark] = list(value) if isinstance(value, list) else [value]
        for name in found[benchmark]:
            if not isinstance(name, str):
                raise ConfigError(
                    f"{group} takes a name for each benchmark, or a list of names — found {name} for '{benchmark}' "
                    f"(python -m openbench list {group})"
                )
            if name not in allowed:
                raise ConfigError(
                    f"{group} '{name}' not found in configs/{group}{did_you_mean(name, allowed)} "
                    f"(python -m openbench list {group})"
                )
    return found


def _write(folder: Path, benchmark: str, choice: dict[str, str]) -> str:
    """Write the config of a benchmark with its choices and return its name."""
    name = _name_of(benchmark, choice)
    if not choice:
        return name
    lines = ["# @package _global_", "defaults:", f"  - {benchmark}"]
    lines += [f"  - override /{group}: {value}" for group, value in choice.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return name


def _name_of(benchmark: str, choice: dict[str, str]) -> str:
    """The name of a benchmark with its choices."""
    return f"{benchmark}_with_{'_and_'.join(choice.values())}" if choice else benchmark


def _parsed(text: str) -> Override | None:
    return copy(_read(text))  # the caller's own: who asks for its values sets a field of it


@lru_cache(maxsize=1024)
def _read(text: str) -> Override | None:
    """An override as Hydra parses it, which takes milliseconds, and each job of a sweep asks for most of them."""
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except HydraException:
        return None


def _typed(override: Override) -> str:
    return override.input_line or ""


def _values(override: Override, config_dir: Path | None) -> list[str]:
    """The values that an override has in a sweep, as they are typed."""
    if not override.is_sweep_override():
        return [str(override.value())]
    override.config_loader = _Groups(config_dir)  # type: ignore[assignment]
    return list(override.sweep_string_iterator())


class _Groups:
    """The part of Hydra's ConfigLoader that `glob` asks."""

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir

    def get_group_options(self, group_name: str, results_filter: object = None) -> list[str]:
        """The names in a group."""
        return options(group_name, self.config_dir)


def sharded(overrides: Sequence[str]) -> list[str]:
    """Return overrides with a job for each of the shards that they ask for.

    Args:
        overrides: as typed; `runtime.shards=16` adds `runtime.shard=range(16)`, unless that is typed too.
    """
    typed = {override.key_or_group: override for override in parse(overrides)}
    shards = typed.get("runtime.shards")
    if shards is None or "runtime.shard" in typed or not isinstance(count := shards.value(), int) or count < 1:
        return list(overrides)
    return [*overrides, f"runtime.shard=range({count})"]
