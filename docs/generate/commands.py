"""Commands and config keys, as the program describes them itself."""

import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from generate.formula import sentence
from generate.markdown import Docstring, code, hidden_contents, page, table
from openbench import paths
from openbench.cli.app import COMMANDS
from openbench.config.build import target_of
from openbench.errors import ConfigError
from openbench.storage.yaml_file import read_yaml

WIDTH = "96"
NODES = {
    "metrics": (
        "metrics/default",
        "Which metrics are computed, and at which operating points. They belong to a result's name.",
    ),
    "tune": ("tune/validation", "How hyper-parameters are chosen. They belong to a result's name."),
    "recipe": ("recipe/cifar", "How long and how a network is trained: `training.recipe.KEY`."),
    "runtime": (
        "runtime/local",
        "How a run is carried out. Nothing here may change a number, and nothing enters its name.",
    ),
}


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    with ThreadPoolExecutor(2) as pool:
        helps = dict(zip(COMMANDS, pool.map(_help, COMMANDS), strict=True))
    found = {
        f"command/{name}": page(f"openbench {name}", sentence(summary).capitalize() + ".", code(helps[name], "text"))
        for name, (_, summary) in COMMANDS.items()
    }
    rows = [(f"[{name}]({name}.md)", sentence(summary)) for name, (_, summary) in COMMANDS.items()]
    found["command/index"] = page(
        "Commands",
        "`python -m openbench COMMAND`, or `openbench COMMAND`. Exit code 0: done; 1: a check failed; 2: bad input, "
        "with one message; 3: `monitor` raised an alarm; 130: interrupted; 143: terminated.",
        table(("command", "what it does"), rows),
        hidden_contents(COMMANDS),
    )
    found["keys"] = keys()
    return found


def keys() -> str:
    """All keys that the shipped configs hold."""
    parts = [_node(name, file, lead) for name, (file, lead) in NODES.items()]
    lead = (
        "Every key of a run, with its default. On the command line: `runtime.device=cpu`, `metrics.delta=0.1`; keys of "
        "a method, a training or a benchmark are on its page."
    )
    top = table(("key", "default", "meaning"), [("`seed`", "`0`", "of training, and of what a method draws at random")])
    return page("Config keys", lead, top, *parts)


def _node(name: str, file: str, lead: str) -> str:
    path = paths.config_dir() / f"{file}.yaml"
    values: Any = read_yaml(path)
    told = _arguments(values)
    comments = _comments(path.read_text(encoding="utf-8"))
    rows = [
        (f"`{name}.{key}`", f"`{_short(value)}`", sentence(told.get(key) or comments.get(key, "")))
        for key, value in values.items()
        if not key.startswith("_") and key != "defaults"
    ]
    return f"## {name}\n\n{lead}\n\n{table(('key', 'default', 'meaning'), rows)}"


def _arguments(values: dict[str, Any]) -> dict[str, str]:
    try:
        return Docstring.parse(inspect.getdoc(target_of(values)) or "").arguments
    except ConfigError:
        return {}


def _comments(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        key, colon, rest = line.partition(":")
        if colon and "#" in rest and key.isidentifier():
            found[key] = rest.partition("#")[2].strip()
    return found


def _short(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return ", ".join(str(one.get("_target_", one)).rpartition(".")[2] for one in value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _help(name: str) -> str:
    call = [sys.executable, "-m", "openbench", name, "--help"]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "COLUMNS": WIDTH}, check=True)
    return done.stdout
