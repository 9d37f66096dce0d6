"""Overrides as Hydra reads them: the jobs of a sweep, their labels, and choices that depend on a benchmark."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import HydraException

from openbench.config.folders import config_folders
from openbench.config.overrides import STREAM, quoted
from openbench.errors import ConfigError

_SEARCHED = "hydra.searchpath"


def options(group: str, config_dir: Path | None = None) -> list[str]:
    """Return the names that a config group offers, sorted."""
    return sorted({file.stem for folder in config_folders(config_dir) for file in (folder.path / group).glob("*.yaml")})


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides that can be parsed."""
    return [override for text in overrides if (override := _parsed(text)) is not None]


def with_folders(overrides: Sequence[str], searched: Sequence[Path]) -> list[str]:
    """Return overrides by which Hydra looks into these folders too, after those of a typed `hydra.searchpath`."""
    typed = [override for override in parse(overrides) if override.key_or_group == _SEARCHED]
    if not searched:
        return list(overrides)
    rest = [text for text in overrides if text not in [override.input_line for override in typed]]
    named = [str(place) for override in typed for place in override.value()]  # type: ignore[union-attr]
    places = [*named, *(f"file://{folder.absolute().as_posix()}" for folder in searched)]
    return [f"{_SEARCHED}=[{','.join(map(quoted, places))}]", *rest]


def jobs(overrides: Sequence[str], config_dir: Path | None) -> list[list[str]]:
    """Return the overrides of every job of a sweep, in the order in which Hydra numbers them.

    Args:
        overrides: as typed.
        config_dir: a folder of the user's group files, which `glob` looks into too.
    """
    choices: dict[str, list[str]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        swept = override.is_sweep_override()
        choices[key] = [f"{key}={value}" for value in _values(override, config_dir)] if swept else [_typed(override)]
    return [list(job) for job in itertools.product(*choices.values())]


def swept_keys(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Return the keys that have several values in a sweep, as they are typed but for a plus sign."""
    several = [o for o in parse(overrides) if o.is_sweep_override() and len(_values(o, config_dir)) > 1]
    return list(dict.fromkeys(override.get_key_element().lstrip("+") for override in several))


def label(job: Sequence[str], swept: Sequence[str]) -> str:
    """Return how a job differs from the others of its sweep: `method=knn seed=1`."""
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
    if not rest or first in ("hydra", "runtime"):
        return text
    waiting = f"{override.get_key_element()}=choice({text.partition('=')[2]})"
    in_jobs = parse([job for [job] in jobs([waiting], None)] if _parsed(waiting) else [])
    # Hydra writes the value again for the job; where that would change it (null, '1'), it stays as typed.
    return waiting if [repr(job.value()) for job in in_jobs] == [repr(override.value())] else text


def without_streams(overrides: Sequence[str], config_dir: Path | None) -> tuple[list[str], list[str]]:
    """Return overrides with the names that `method=glob(…)` means, but for streaming methods, and the names of these.

    A streaming method scores an image by those before it, so it has no place beside methods that score each by itself.

    Args:
        overrides: as typed.
        config_dir: a folder of the user's group files.
    """
    globs = [o for o in parse(overrides) if o.key_or_group == "method" and o.is_sweep_override()]
    globs = [o for o in globs if isinstance(o.value(), Glob)]
    streams = [name for o in globs for name in _values(o, config_dir) if _streams(name, config_dir)]
    words = {o.input_line: ",".join(name for name in _values(o, config_dir) if name not in streams) for o in globs}
    return [f"method={words[text]}" if words.get(text) else text for text in overrides], streams


def _streams(method: str, config_dir: Path | None) -> bool:
    files = [folder.path / "method" / f"{method}.yaml" for folder in config_folders(config_dir)]
    return any(f"\n{STREAM}:" in file.read_text(encoding="utf-8") for file in files if file.is_file())


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


def _parsed(text: str) -> Override | None:
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
    if override.is_interval_sweep():
        raise ConfigError(f"{_typed(override)} names no values — write them, e.g. {override.key_or_group}=1,2,5")
    # The part of Hydra's ConfigLoader that `glob` asks.
    groups = SimpleNamespace(get_group_options=lambda group, results_filter: options(group, config_dir))
    override.config_loader = groups  # type: ignore[assignment]
    return list(override.sweep_string_iterator())
