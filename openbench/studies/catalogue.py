"""Where studies are: shipped ones by name, a user's by name or by file."""

from pathlib import Path

from openbench import paths
from openbench.errors import ConfigError, did_you_mean
from openbench.studies.study import Study, read_study

GROUP = "study"
_YAML = ".yaml"


def names(config_dir: Path | None = None) -> dict[str, Path]:
    """Return {name: file} of every study, sorted; a name is the path below configs/study, e.g. `openood_v1.5/table1`.

    Args:
        config_dir: the user's folder of group files.
    """
    folders = [root / GROUP for root in (paths.config_dir(), config_dir) if root is not None]
    files = [(folder, file) for folder in folders for file in folder.rglob(f"*{_YAML}")]
    return dict(sorted((_name(folder, file), file) for folder, file in files))


def study(name: str, config_dir: Path | None = None) -> Study:
    """Return a study by its name, or by its file where that ends in `.yaml`.

    Args:
        name: what the user typed.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: there is none, or what it says does not hold.
    """
    if name.endswith(_YAML):
        return read_study(Path(name), Path(name).stem)
    known = names(config_dir)
    if name not in known:
        same = [f"'{path}'" for path in known if path.rpartition("/")[2] == name]
        hint = f"; did you mean {' or '.join(same)}?" if same else did_you_mean(name, known)
        raise ConfigError(
            f"study '{name}' not found in configs/study{hint} — available: {', '.join(known) or 'none'} — a file of "
            "your own ends in .yaml (python -m openbench list study)"
        )
    return read_study(known[name], name)


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix().removesuffix(_YAML)
