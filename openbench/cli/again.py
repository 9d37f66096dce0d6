"""The command that makes a record again, found by comparing what the configs now say with what the record holds."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from openbench.cli.config import NAME, SCIENTIFIC, compose, options, quoted, scientific
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import ConfigError

_GROUPS = ("backbone", "training", "method", "tune", "metrics")
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS_OF_YAML = {"null", "true", "false", "yes", "no", "on", "off", "nan", "inf"}


def command(record: ResultRecord, config_dir: Path | None = None) -> str | None:
    """Return the command whose scientific config is that of a record, and which verifies the record.

    Args:
        record: any.
        config_dir: the user's folder of group files that the run was given.

    Returns:
        None where no command gives this config: a file that it chose is gone, or says what cannot be overridden.
    """
    wanted = record.config
    name = str(record.benchmark.get("name"))
    # A benchmark may end its name in a choice: `adbench_wine` is the config `adbench`.
    fitting = [known for known in options("benchmark", config_dir) if f"{name}_".startswith(f"{known}_")]
    if not fitting:
        return None
    words = [f"+benchmark={max(fitting, key=len)}"]
    chosen = {group: wanted.get(group, {}).get(NAME) for group in _GROUPS}
    words += [f"{group}={chosen[group]}" for group in _GROUPS if chosen[group] not in (None, "default")]
    try:
        found = scientific(compose("run", words, config_dir), chosen)
        # The benchmark first: what it is given reaches other nodes through interpolations.
        for nodes in (("benchmark",), (key for key in SCIENTIFIC if key != "benchmark")):
            changes = [word for key in nodes for word in _changes(key, found.get(key), wanted.get(key))]
            if changes:
                words += changes
                found = scientific(compose("run", words, config_dir), chosen)
    except (HydraException, OmegaConfBaseException, ConfigError):
        return None
    if digest(found) != digest(wanted):
        return None
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    typed = shlex.join(["python", "-m", "openbench", "run", *words, *folder, "runtime.on_existing=verify"])
    # Sums in another number of threads round otherwise, and a training ends in other weights.
    threads = record.provenance.get("threads")
    return typed if threads is None else f"OMP_NUM_THREADS={threads} {typed}"


def _changes(path: str, now: Any, wanted: Any) -> Iterator[str]:
    """Yield the overrides that make one node into another."""
    if not (isinstance(now, Mapping) and isinstance(wanted, Mapping)):
        if digest(now) != digest(wanted):
            yield f"{path}={_word(wanted)}"
        return
    yield from (f"~{path}.{key}" for key in now if key not in wanted and key != NAME)
    for key in wanted:
        if key in now:
            yield from _changes(f"{path}.{key}", now[key], wanted[key])
        elif key != NAME:
            yield f"+{path}.{key}={_word(wanted[key])}"


def _word(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_word(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_word, value)) + "]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else quoted(text)
