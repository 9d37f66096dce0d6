"""`new`: a method, training, data set or backbone of your own that runs, to be filled in."""

import argparse
import importlib.util
import keyword
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template

from openbench.cli.process import OK
from openbench.compose.sweep import options
from openbench.config.overrides import is_name
from openbench.errors import ConfigError
from openbench.storage.files import write_whole

TEMPLATES = Path(__file__).parent.parent / "templates"
FOLDER = "mine"  # of the config files, in the folder where the commands are typed
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_BENCHMARK = "+benchmark=digits"

_DESCRIPTION = f"""\
Writes three files that run as they are, and prints the commands that run and test them:

  DIR/NAME.py                 the class, with FILL IN where yours differs
  DIR/{FOLDER}/KIND/NAME.yaml     its config: what users type, and the hyper-parameters
  DIR/test_NAME.py            what it must keep to

A data set has a list of its images, too: DIR/{FOLDER}/lists/NAME.txt."""


@dataclass(frozen=True)
class Kind:
    """Something that can be added.

    Args:
        group: its config group.
        words: of the run that shows it; `NAME` stands for its name.
        files: template → file, likewise; besides the module, its test and its yaml.
    """

    group: str
    words: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()


KINDS = {
    "method": Kind("method", ("method=NAME",)),
    "training": Kind("training", ("training=NAME", "method=msp")),
    "backbone": Kind("backbone", ("backbone=NAME", "method=msp")),
    "dataset": Kind(
        "dataset",
        ("+dataset@benchmark.far.NAME=NAME", "method=msp"),
        (("list", f"{FOLDER}/lists/NAME.txt"),),
    ),
}


def main(argv: list[str]) -> int:
    """Write the files of something new and print the commands that run it.

    Raises:
        ConfigError: a name that cannot be used or is taken, or files that are there already.
    """
    parser = argparse.ArgumentParser(
        prog="python -m openbench new",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="what users type: lower-case letters, digits and underscores")
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help="where to write (the working directory)"
    )
    arguments = parser.parse_args(argv)
    kind, name, folder = KINDS[arguments.kind], arguments.name, arguments.dir.expanduser()
    _check_name(kind, name, folder)
    for file in _write(_contents(kind, name), folder):
        print(f"wrote {file}")
    print("\n".join(["", *_commands(kind, name, folder)]))
    return OK


def _check_name(kind: Kind, name: str, folder: Path) -> None:
    """Refuse what cannot be a module's name, and what would hide something or be hidden by it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or not is_name(name):
        raise ConfigError(
            f"name '{name}' — allowed: lower-case letters, digits and underscores, the first a letter, at most 60 of "
            "them, and no word of Python or yaml, e.g. nearest_mean"
        )
    if re.search(rf"\b{_class_name(name)}\b", _template(kind, "module.py")):
        raise ConfigError(
            f"name '{name}' — its class would be called {_class_name(name)}, as is something that it needs — choose "
            "another name"
        )
    mine = folder / FOLDER
    if name in options(kind.group, mine if mine.is_dir() else None):
        raise ConfigError(
            f"{kind.group} '{name}' exists (python -m openbench show {kind.group} {name}) — choose another name"
        )
    if importlib.util.find_spec(name) is not None and not (folder / f"{name}.py").exists():
        raise ConfigError(f"name '{name}' is that of an installed module, which would hide yours — choose another name")


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _contents(kind: Kind, name: str) -> dict[str, str]:
    """Path below the folder → text, of every file."""
    templates = {
        "module.py": f"{name}.py",
        "config.yaml": f"{FOLDER}/{kind.group}/{name}.yaml",
        "test.py": f"test_{name}.py",
        **{source: path.replace("NAME", name) for source, path in kind.files},
    }
    words = {
        "name": name,
        "class_name": _class_name(name),
        "folder": FOLDER,
        "year": str(datetime.now(UTC).year),
    }
    return {path: Template(_template(kind, source)).substitute(words) for source, path in templates.items()}


def _template(kind: Kind, source: str) -> str:
    return (TEMPLATES / kind.group / f"{source}.txt").read_text(encoding="utf-8")


def _write(contents: Mapping[str, str], folder: Path) -> list[Path]:
    """Write all files, or none.

    Raises:
        ConfigError: one is there already, or cannot be written.
    """
    files = {folder / path: text.encode() for path, text in contents.items()}
    if there := [str(file) for file in files if file.exists() or file.is_symlink()]:
        raise ConfigError(f"{', '.join(there)} exists — nothing was written — choose another name or --dir DIR")
    made = [part for file in files for part in reversed([file.parent, *file.parent.parents]) if not part.exists()]
    done: list[Path] = []
    try:
        for file, content in files.items():
            done.append(file)
            write_whole(file, content)
    except BaseException as error:
        for file in done:
            file.unlink(missing_ok=True)
        for part in reversed(list(dict.fromkeys(made))):
            with suppress(OSError):
                part.rmdir()
        if not isinstance(error, OSError):
            raise
        raise ConfigError(
            f"'{folder}' cannot be written — {error.strerror or error} — nothing was written — choose another: "
            "--dir DIR"
        ) from error
    return list(files)


def _commands(kind: Kind, name: str, folder: Path) -> list[str]:
    """What to type next, in the folder."""
    words = [shlex.quote(word.replace("NAME", name)) for word in kind.words]
    enter = [] if folder.resolve() == Path.cwd() else [f"       cd {shlex.quote(str(folder))}"]
    return [
        *enter,
        f"test:  python -m pytest test_{name}.py",
        f"run:   python -m openbench run --config-dir {FOLDER} {_BENCHMARK} {' '.join(words)}",
        f"list:  python -m openbench list {kind.group} --config-dir {FOLDER}",
        f"then:  fill in {name}.py and {FOLDER}/{kind.group}/{name}.yaml where they say FILL IN",
    ]
