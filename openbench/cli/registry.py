"""The config groups: the files of a directory are the choices, and the class that a file names describes it."""

import inspect
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from openbench.config.build import build, target_of
from openbench.config.constraints import Checked, described, hints_of
from openbench.config.folders import Folder, config_folders, read_config, shipped
from openbench.errors import ConfigError, OpenbenchError, not_found
from openbench.public import TARGET
from openbench.report.site.facts import MethodFacts

_PROGRAM = "python -m openbench"
_YEAR = re.compile(r"(?<![\d./])(?:19|20)\d{2}(?![\d.]*\d)")
_YEAR_OF_ARXIV_ID = re.compile(r"\b(\d{2})(?:0[1-9]|1[0-2])\.\d{4,5}\b")


def parameters_of(made_by: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Return {name: (default as text, empty if there is none; what its annotation allows, in words)} of a class."""
    hints, parameters = hints_of(made_by), {}
    for name, parameter in inspect.signature(made_by).parameters.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        # A dataclass's field with `default_factory` shows as <factory>.
        parameters[name] = default.replace("<factory>", ""), described(hints.get(name, Any))
    return parameters


def year_of(reference: str) -> str:
    """Return the year in a reference, else that of its arXiv id; empty if it names none."""
    if match := _YEAR.search(reference):
        return match.group()
    return f"20{match.group(1)}" if (match := _YEAR_OF_ARXIV_ID.search(reference)) else ""


@dataclass(frozen=True)
class Entry:
    """One file of a config group.

    Args:
        group: e.g. `method`.
        name: what users type.
        path: the file.
        place: the folder of groups that it is in.
    """

    group: str
    name: str
    path: Path
    place: Folder

    @property
    def text(self) -> str:
        """The file as written.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error

    @property
    def _comments(self) -> list[str]:
        """The lines of its leading comment."""
        head = takewhile(lambda line: line.startswith("#"), self.text.splitlines())
        return [line.removeprefix("#").strip() for line in head]

    @property
    def summary(self) -> str:
        """The first line of its comment that is neither a command nor a Hydra directive."""
        return next((line for line in self._comments if line and not line.startswith(("@package", _PROGRAM))), "")

    @property
    def command(self) -> str:
        """The command that its comment gives; empty if it gives none."""
        return next((line for line in self._comments if line.startswith(_PROGRAM)), "")

    def config(self) -> dict[str, Any]:
        """The file as plain values, interpolations untouched.

        Raises:
            ConfigError: not YAML, or not a mapping.
        """
        node = read_config(self.path)
        if not isinstance(node, dict):
            raise ConfigError(f"{self.path} holds a {type(node).__name__} — a mapping is needed")
        return {str(key): value for key, value in node.items()}

    def node(self) -> dict[str, Any]:
        """The file with what its defaults bring in."""
        return shipped(self.group, self.name, places=(self.place, *config_folders())) or {}

    def made_by(self) -> Callable[..., Any]:
        """The class that the file names.

        Raises:
            ConfigError: the file names no class, or it cannot be imported.
        """
        target = self.node().get(TARGET)
        if not isinstance(target, str):
            raise ConfigError(f"{self.path}: no `{TARGET}` — every method names its class, e.g. package.module.Class")
        return target_of({TARGET: target}, target)

    def about(self) -> tuple[str, str]:
        """The year of the paper that its class cites, and the first line of its docstring."""
        made_by = self.made_by()
        return year_of(getattr(made_by, "reference", "")), (inspect.getdoc(made_by) or "").partition("\n")[0]

    def needs(self) -> str:
        """What a method reads, in words: `features, labels; fit on id_train`.

        Raises:
            ConfigError: the file names no class, or it cannot be imported.
        """
        from openbench.engine.compatibility import Requirements

        node, where = self.node(), f"{self.group} '{self.name}'"
        try:
            method: Any = build(node, where, Checked)
        except OpenbenchError:  # e.g. it needs a library that is not installed, or values of a composed config
            method = target_of(node, where)
        return str(Requirements(method))


def groups(config_dir: Path | None = None) -> list[str]:
    """Return the names of the groups that offer something, of openbench, of packages and of a user's folder."""
    roots = [folder.path for folder in config_folders(config_dir)]
    return sorted({file.relative_to(root).parts[0] for root in roots for file in root.glob("*/**/*.yaml")})


def entries(group: str, config_dir: Path | None = None) -> list[Entry]:
    """Return the entries of a group, by name.

    Raises:
        ConfigError: no such group.
    """
    folders = config_folders(config_dir)
    if not any((folder.path / group).is_dir() for folder in folders):
        raise ConfigError(not_found(f"group '{group}' not found in configs", group, groups(config_dir), "list"))
    files = [(folder, file) for folder in folders for file in (folder.path / group).rglob("*.yaml")]
    # Users type the path below the group's folder, since studies lie in folders.
    found = [
        Entry(group, file.relative_to(folder.path / group).as_posix().removesuffix(".yaml"), file, folder)
        for folder, file in files
    ]
    return sorted(found, key=lambda entry: entry.name)


def entry(group: str, name: str, config_dir: Path | None = None) -> Entry:
    """Return the entry of a name.

    Raises:
        ConfigError: no such group or name.
    """
    found = {entry.name: entry for entry in entries(group, config_dir)}
    if name not in found:
        raise ConfigError(not_found(f"{group} '{name}' not found in configs/{group}", name, found, f"list {group}"))
    return found[name]


def method_facts(names: Container[str] | None = None) -> dict[str, MethodFacts]:
    """Return {method as typed: facts for the site} of what openbench ships and can be made here, or of some of it."""
    from openbench.detect.recommend import method_of
    from openbench.engine.compatibility import Requirements

    facts = {}
    for entry in entries("method"):
        method = method_of(entry.name, {}) if names is None or entry.name in names else None
        if method is not None:
            required = Requirements(method)
            facts[entry.name] = MethodFacts(required.family, required.needs, *entry.about(), required.fitted_on)
    return facts
