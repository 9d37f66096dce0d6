"""The config groups: the files of a directory are the choices, and the class that a file names describes it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from openbench.config.folders import Folder, config_folders, read_config
from openbench.config.shipped import shipped
from openbench.errors import ConfigError, OpenbenchError, not_found
from openbench.public import TARGET
from openbench.report.site.facts import MethodFacts
from openbench.results.records.exports import year_of


def parameters_of(made_by: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Return {name: (default as text, empty if there is none; what its annotation allows, in words)} of a class."""
    from openbench.config.constraints import described, hints_of

    hints, parameters = hints_of(made_by), {}
    for name, parameter in inspect.signature(made_by).parameters.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        # A dataclass's field with `default_factory` shows as <factory>.
        parameters[name] = default.replace("<factory>", ""), described(hints.get(name, Any))
    return parameters


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
        return [line.removeprefix("#").strip() for line in self.text.splitlines() if line.startswith("#")]

    @property
    def summary(self) -> str:
        """The first line of its leading comments that is neither a command nor a Hydra directive."""
        head = takewhile(lambda line: line.startswith("#"), self.text.splitlines())
        comments = (line.removeprefix("#").strip() for line in head)
        return next((text for text in comments if text and not text.startswith(("@package", "python -m"))), "")

    @property
    def command(self) -> str:
        """The command that its comments give; empty if they give none."""
        return next((comment for comment in self._comments if comment.startswith("python -m openbench")), "")

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
        from openbench.config.build import target_of

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
        from openbench.config.build import build, target_of
        from openbench.config.constraints import Checked
        from openbench.core.composite import leaves
        from openbench.engine.compatibility import Requirements

        node, where = self.node(), f"{self.group} '{self.name}'"
        try:
            parts: list[Any] = list(leaves(build(node, where, Checked)))
        except OpenbenchError:  # e.g. it needs a library that is not installed, or values of a composed config
            parts = [target_of(node, where)]
        return str(Requirements.of(parts))


@dataclass(frozen=True)
class Registry:
    """The config groups of openbench and, beside them, those of packages and of a user.

    Args:
        places: config folders, ours first.
    """

    places: tuple[Folder, ...]

    @classmethod
    def ours(cls) -> "Registry":
        """What openbench ships."""
        return cls(tuple(config_folders()[:1]))

    @classmethod
    def of(cls, config_dir: Path | None) -> "Registry":
        """All folders, with the user's.

        Raises:
            ConfigError: the user's folder is missing, or two folders have a file of the same name.
        """
        return cls(tuple(config_folders(config_dir)))

    def groups(self) -> list[str]:
        """The names of groups that offer something."""
        roots = [place.path for place in self.places]
        return sorted({file.relative_to(root).parts[0] for root in roots for file in root.glob("*/**/*.yaml")})

    def entries(self, group: str) -> list[Entry]:
        """The entries of a group, by name.

        Raises:
            ConfigError: no such group.
        """
        groups = {folder.name for place in self.places for folder in place.path.iterdir() if folder.is_dir()}
        if group not in groups:
            raise ConfigError(not_found(f"group '{group}' not found in configs", group, self.groups(), "list"))
        files = [(place, file) for place in self.places for file in (place.path / group).rglob("*.yaml")]
        # Users type the path below the group's folder, since studies lie in folders.
        entries = [
            Entry(group, file.relative_to(place.path / group).as_posix().removesuffix(".yaml"), file, place)
            for place, file in files
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def entry(self, group: str, name: str) -> Entry:
        """The entry of a name.

        Raises:
            ConfigError: no such group or name.
        """
        entries = {entry.name: entry for entry in self.entries(group)}
        if name not in entries:
            what = f"{group} '{name}' not found in configs/{group}"
            raise ConfigError(not_found(what, name, entries, f"list {group}"))
        return entries[name]


def method_facts() -> dict[str, MethodFacts]:
    """Return {method as typed: facts for the site} of what openbench ships and can be made here."""
    from openbench.core.composite import leaves
    from openbench.detect.recommend import method_of
    from openbench.engine.compatibility import Requirements

    facts = {}
    for entry in Registry.ours().entries("method"):
        method = method_of(entry.name, {})
        if method is not None:
            required = Requirements.of(leaves(method))
            facts[entry.name] = MethodFacts(required.family, required.needs, *entry.about(), required.fitted_on)
    return facts
