"""`new`: a method, training, data set, backbone, study or package of your own that runs."""

import importlib.util
import keyword
import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

import click
import yaml

from openbench.cli import options
from openbench.cli.process import OK, writing
from openbench.compose.config import jobs, options as entries, swept_keys
from openbench.config.overrides import command_line, is_name
from openbench.errors import ConfigError
from openbench.storage.files import creating, write_whole
from openbench.studies.runs import key_of
from openbench.studies.study import study as study_of

TEMPLATES = Path(__file__).parent.parent / "templates"
_COLUMNS = "near.auroc,far.auroc,id.accuracy"  # of a study
_SEED = "seed"
FOLDER = "mine"  # of the config files, in the folder where the commands are typed
_NAME = re.compile(r"[a-z]([a-z0-9_]{0,58}[a-z0-9])?")
_BENCHMARK = "benchmark"
_DIGITS = "+benchmark=digits"
_DIR = click.option(
    "--dir", "folder", type=options.FILE, default=Path(), metavar="DIR", help="where to (default: here)"
)

# Group → the overrides of the run that shows it, NAME standing for its name; `study` is a command of its own.
KINDS = {
    "method": ("method=NAME",),
    "training": ("training=NAME", "method=msp"),
    "backbone": ("backbone=NAME", "method=msp"),
    "dataset": ("+dataset@benchmark.far.NAME=NAME", "method=msp"),
}
# Template → path of the files of a package; those of `method/` are the method's.
_PACKAGE = {
    "package/pyproject.toml": "pyproject.toml",
    "package/readme.md": "README.md",
    "package/workflow.yml": ".github/workflows/tests.yml",
    "package/init": "src/NAME/__init__.py",
    "method/module.py": "src/NAME/NAME.py",
    "method/config.yaml": "src/NAME/configs/method/NAME.yaml",
    "method/test.py": "tests/test_NAME.py",
}


@click.group(cls=options.Group, no_args_is_help=False)
def new() -> None:
    """Write something of your own that runs as it is, and print the commands that run and test it.

    Examples:
      python -m openbench new method nearest_mean
      python -m openbench new package my-methods
      python -m openbench new study mine.yaml -m +benchmark=digits method=knn,msp,vim seed=0,1,2
    """


def _kind_command(kind: str) -> click.Command:
    """The command that writes one kind."""

    @click.command(kind, cls=options.Command)
    @click.argument("name", metavar="NAME")
    @_DIR
    def write(args: Namespace) -> int:
        """Write a KIND; NAME is what users type: lower-case letters, digits and underscores.

        Three files that run as they are:
          DIR/NAME.py                 the class, with FILL IN where yours differs
          DIR/mine/KIND/NAME.yaml     its config: what users type, and the hyper-parameters
          DIR/test_NAME.py            its tests
        and, of a data set, DIR/mine/lists/NAME.csv: the list of its images.
        """
        name, folder = args.name, args.folder.expanduser()
        _check_name(kind, name, folder)
        paths = {"module.py": f"{name}.py", "config.yaml": f"{FOLDER}/{kind}/{name}.yaml", "test.py": f"test_{name}.py"}
        paths |= {"list": f"{FOLDER}/lists/{name}.csv"} if kind == "dataset" else {}
        listed = f"python -m openbench list {kind} --config-dir {FOLDER}"
        words = {**_words(name), "module": name, "listed": listed}
        _write({folder / path: _filled(f"{kind}/{source}", words) for source, path in paths.items()})
        enter = "" if folder.resolve() == Path.cwd() else f"       cd {shlex.quote(str(folder))}\n"
        run = " ".join(shlex.quote(word.replace("NAME", name)) for word in KINDS[kind])
        print(f"\n{enter}test:  python -m pytest test_{name}.py")
        print(f"run:   python -m openbench run --config-dir {FOLDER} {_DIGITS} {run}\nlist:  {listed}")
        print(f"then:  fill in {name}.py and {FOLDER}/{kind}/{name}.yaml where they say FILL IN")
        return OK

    write.help = (write.help or "").replace("KIND", kind)
    return write


for _kind in KINDS:
    new.add_command(_kind_command(_kind))


@new.command("package", cls=options.Command)
@click.argument("name", metavar="NAME")
@_DIR
def new_package(args: Namespace) -> int:
    """Write a pip package with a method, which `method=NAME` finds from any folder once it is installed.

    NAME is the package's: lower-case letters, digits, dashes and underscores. In the module and the method, dashes are
    underscores. DIR/NAME has the method, its config and tests, pyproject.toml, README.md and a workflow of GitHub.
    """
    folder, module = args.folder.expanduser(), args.name.replace("-", "_")
    _check_name("method", module, folder)
    home, listed = folder / args.name, "python -m openbench list method"
    words = {**_words(module), "package": args.name, "module": f"{module}.{module}", "listed": listed}
    _write({home / path.replace("NAME", module): _filled(source, words) for source, path in _PACKAGE.items()})
    place = shlex.quote(str(home))
    print(f"\nfirst: pip install -e {place}\ntest:  python -m pytest {place}")
    print(f"run:   python -m openbench run {_DIGITS} method={module}\nlist:  {listed}")
    print(f"then:  fill in the files in {place} where they say FILL IN")
    return OK


@new.command("study", cls=options.Command)
@click.argument("file", type=options.FILE, metavar="FILE.yaml")
@click.argument("overrides", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option("-m", "--multirun", is_flag=True, help="may be given, as for `run`")
@click.option("--columns", type=options.names, default=_COLUMNS, metavar="SET.METRIC,…", help=f"default: {_COLUMNS}")
@options.config_dir
def new_study(args: Namespace) -> int:
    """Write a study whose runs are those of a sweep: KEY=VALUE as `run -m` takes them, e.g. method=knn,msp."""
    file: Path = args.file
    if file.suffix != ".yaml" or file.exists():
        raise ConfigError(
            f"'{file}' {'exists' if file.exists() else 'does not end in .yaml'} — allowed: a new file, NAME.yaml"
        )
    text, command = _draft(file, args.overrides, args.columns, args.config_dir)
    with writing(file), creating(file) as stream:
        stream.write(text.encode())
    try:
        study_of(str(file))
    except ConfigError:
        file.unlink()
        raise
    print(f"wrote {file}\n{command}")
    return OK


def _write(files: dict[Path, bytes]) -> None:
    """Write new files.

    Raises:
        ConfigError: one is there already; then none is written.
    """
    if there := [str(file) for file in files if file.exists() or file.is_symlink()]:
        raise ConfigError(f"{', '.join(there)} exists, so nothing was written — choose another name or --dir DIR")
    for file, content in files.items():
        with writing(file, "--dir"):
            write_whole(file, content)
        print(f"wrote {file}")


def _check_name(kind: str, name: str, folder: Path) -> None:
    """Refuse what cannot be a module's name, and what would hide something or be hidden by it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or not is_name(name):
        raise ConfigError(
            f"name '{name}' — allowed: at most 60 lower-case letters, digits and underscores between them, the first "
            "a letter, and no keyword of Python or yaml, e.g. nearest_mean"
        )
    if re.search(rf"\b{_class_name(name)}\b", _template(f"{kind}/module.py")):
        raise ConfigError(
            f"name '{name}': its class would be called {_class_name(name)}, like something that it needs — choose "
            "another name"
        )
    mine = folder / FOLDER
    if name in entries(kind, mine if mine.is_dir() else None):
        shown = f"show {kind} {name}" + f" --config-dir {mine}" * (name not in entries(kind, None))
        raise ConfigError(f"{kind} '{name}' exists (python -m openbench {shown}) — choose another name")
    if importlib.util.find_spec(name) is not None and not (folder / f"{name}.py").exists():
        raise ConfigError(f"name '{name}' is that of an installed module, which would hide yours — choose another name")


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _words(name: str) -> dict[str, str]:
    """What templates have in place of words."""
    return {"name": name, "class_name": _class_name(name), "folder": FOLDER, "year": str(datetime.now(UTC).year)}


def _filled(source: str, words: dict[str, str]) -> bytes:
    return Template(_template(source)).substitute(words).encode()


def _template(source: str) -> str:
    return (TEMPLATES / f"{source}.txt").read_text(encoding="utf-8")


def _draft(path: Path, overrides: Sequence[str], columns: Sequence[str], config_dir: Path | None) -> tuple[str, str]:
    """A study of a sweep, and the command that makes its tables: what varies besides benchmark and seed makes rows.

    Args:
        path: its file.
        overrides: of the sweep, as `run -m` takes them.
        columns: SET.METRIC of each.
        config_dir: the user's folder of group files.
    """
    every, swept = jobs(overrides, config_dir), swept_keys(overrides, config_dir)
    named = [{key_of(word): word for word in job} for job in every]
    if not named or _BENCHMARK not in named[0]:
        raise ConfigError(f"new study: found {' '.join(overrides) or 'no overrides'} — add e.g. +benchmark=digits")
    varied = [key for key in swept if key not in (_SEED, _BENCHMARK)] or ["method"]
    if varied[0] not in named[0]:
        raise ConfigError(f"new study: found {' '.join(overrides)} — add what makes the rows, e.g. method=knn,msp")
    rows = {" ".join(_name(job[key]) for key in varied): [job[key] for key in varied] for job in named}
    several = _BENCHMARK in swept
    common = [word for key, word in named[0].items() if key not in (*varied, _SEED, *([_BENCHMARK] * several))]
    benchmarks = dict.fromkeys(job[_BENCHMARK] for job in named)
    title = f"{path.stem.replace('_', ' ')} on {', '.join(map(_value, benchmarks))}"
    measured: dict[str, Any] = {value.replace(".", " "): value for value in columns}
    node = {
        "title": title,
        "run": common,
        "seeds": list(dict.fromkeys(_value(job.get(_SEED, "seed=0")) for job in named)),
        "rows": rows,
        "columns": {_value(word): {"run": word, "columns": measured.copy()} for word in benchmarks}
        if several
        else measured,
    }
    command = command_line("study", [str(path), "--table", "--to", "tables"], config_dir)
    text = yaml.safe_dump(node, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    last = f"# test: {next(iter(rows))}   # compares every row with this one, in pairs"
    return f"# {title}\n#   {command}\n{text}{last}\n", command


def _name(word: str) -> str:
    """What a row is called: the file of a group, or `key=value` of anything else."""
    return _value(word) if "." not in key_of(word) else word.lstrip("+")


def _value(word: str) -> str:
    return word.partition("=")[2]
