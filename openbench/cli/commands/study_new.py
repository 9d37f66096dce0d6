"""`study new`: the yaml of a study whose runs are those of a sweep."""

import argparse
from pathlib import Path

from openbench.cli.process import OK
from openbench.compose.sweep import jobs, swept_keys
from openbench.config.overrides import command_line
from openbench.errors import ConfigError
from openbench.storage.files import creating
from openbench.studies.catalogue import study
from openbench.studies.draft import Draft
from openbench.studies.wanted import key_of

_COLUMNS = "near.auroc,far.auroc,id.accuracy"
_SEED, _BENCHMARK = "seed", "benchmark"


def new(argv: list[str]) -> int:
    """Write the study and say how its table is made.

    Raises:
        ConfigError: the file exists, its name does not end in .yaml, or the overrides name no rows or no benchmark.
    """
    arguments = _parser().parse_intermixed_args(argv)
    path: Path = arguments.file
    if path.suffix != ".yaml" or path.exists():
        raise ConfigError(
            f"'{path}' {'exists' if path.exists() else 'does not end in .yaml'} — allowed: a new file, NAME.yaml"
        )
    made = draft(path, arguments.overrides, arguments.columns.split(","), arguments.config_dir)
    try:
        with creating(path) as stream:
            stream.write(made.text().encode())
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written — {error.strerror or error} — choose another place") from error
    try:
        study(str(path))
    except ConfigError:
        path.unlink()
        raise
    print(f"wrote {path}\n{made.command}")
    return OK


def draft(path: Path, overrides: list[str], columns: list[str], config_dir: Path | None) -> Draft:
    """Return what a study of a sweep says: what varies besides benchmark and seed makes its rows.

    Args:
        path: its file.
        overrides: of the sweep, as `run -m` takes them.
        columns: SET.METRIC of each.
        config_dir: the user's folder of group files.
    """
    made, swept = jobs(overrides, config_dir), swept_keys(overrides, config_dir)
    named = [{key_of(word): word for word in job} for job in made]
    if not named or _BENCHMARK not in named[0]:
        raise ConfigError(f"study new: found {' '.join(overrides) or 'no overrides'} — add e.g. +benchmark=digits")
    varied = [key for key in swept if key not in (_SEED, _BENCHMARK)] or ["method"]
    if varied[0] not in named[0]:
        raise ConfigError(f"study new: found {' '.join(overrides)} — add what makes the rows, e.g. method=knn,msp")
    rows = {" ".join(_name(job[key]) for key in varied): [job[key] for key in varied] for job in named}
    several = _BENCHMARK in swept
    common = [word for key, word in named[0].items() if key not in (*varied, _SEED, *([_BENCHMARK] * several))]
    benchmarks = dict.fromkeys(job[_BENCHMARK] for job in named)
    what = ", ".join(map(_value, benchmarks))
    return Draft(
        title=f"{path.stem.replace('_', ' ')} on {what}",
        command=command_line("study", [str(path), "--table", "--to", "tables"], config_dir),
        run=common,
        seeds=list(dict.fromkeys(_value(job.get(_SEED, "seed=0")) for job in named)),
        rows=rows,
        groups={_value(word): [word] for word in benchmarks} if several else {},
        columns={value.replace(".", " "): value for value in columns},
    )


def _name(word: str) -> str:
    """What a row is called: the file of a group, or `key=value` of anything else."""
    return _value(word) if "." not in key_of(word) else word.lstrip("+")


def _value(word: str) -> str:
    return word.partition("=")[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench study new", description="Write a study whose runs are those of a sweep of `run -m`."
    )
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="a new file")
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as `run -m` takes them: method=knn,msp …")
    parser.add_argument("-m", "--multirun", action="store_true", help="may be given, as for `run`")
    parser.add_argument("--columns", default=_COLUMNS, metavar="SET.METRIC,…", help=f"default: {_COLUMNS}")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
    return parser
