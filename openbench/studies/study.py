"""A study as a value: what its yaml says, checked."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from openbench import paths
from openbench.config.constraints import Count, check_value
from openbench.errors import ConfigError, available, check_choice, check_known, did_you_mean
from openbench.metrics.keys import bounds, higher_is_better
from openbench.results.tables.render import Kind
from openbench.storage.yaml_file import read_yaml

Layout = Literal["grid", "rejection", "thresholds", "mixture"]
Best = Literal["max", "min", "none"]
_SEED = "seed"
_Model = TypeVar("_Model", bound=BaseModel)


def _words(value: Any) -> Any:
    given = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in given):
        raise ValueError("a text or a number, or a list of them")
    return tuple(map(str, given))


def _texts(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(text, str | int | float) for text in value.values()):
        raise ValueError("a mapping to texts or numbers")
    return {str(key): str(text) for key, text in value.items()}


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]  # overrides or values: one, or a list of them
Texts = Annotated[dict[str, str], BeforeValidator(_texts)]


class _Node(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Line(_Node):
    """A row or a column, or a group of them.

    Args:
        name: as printed.
        group: the heading that it stands under; empty for none.
        run: overrides of its runs.
        published: {column of the file of figures: what stands there}.
    """

    name: str = ""
    group: str = ""
    run: Words = ()
    published: Texts = {}

    @property
    def path(self) -> str:
        """Its name with its group's, as `--rows` and `--columns` take it."""
        return f"{self.group}.{self.name}" if self.group else self.name


class Row(_Line):
    """One row: usually a method, or a training with its score.

    Args:
        without: {column or group of columns, or nothing for all: why the row has no cell there}.
        there: {column or group of columns: overrides of the row's runs there}.
        rows: those of a group.
    """

    without: Annotated[Texts, BeforeValidator(lambda given: {"": given} if isinstance(given, str) else given)] = {}
    there: dict[str, Words] = Field(default={}, alias="with")
    rows: dict[Any, Any] | None = None


class Column(_Line):
    """One column of numbers.

    Args:
        value: SET.METRIC: the set or group of sets that the number is about, and its metric; empty in layouts that
            bring their numbers.
        best: which values are better.
        seeds: the values that the study's `repeat` takes here.
        figure: column of the file of figures that holds the number; empty for the study's.
        std: the one that holds its deviation; likewise.
        columns: those of a group.
    """

    value: str = ""
    best: Best = "none"
    seeds: Words = ()
    figure: str = ""
    std: str = ""
    columns: dict[Any, Any] | None = None

    @property
    def set(self) -> str:
        """The set or group of sets that the number is about, e.g. `near`."""
        return self.value.partition(".")[0]

    @property
    def key(self) -> str:
        """The metric, e.g. `auroc`."""
        return self.value.partition(".")[2]

    @property
    def kind(self) -> Kind:
        """How its numbers are written: rates in percent."""
        limits = bounds(self.key)
        return "percent" if (limits.low, limits.high) == (0.0, 1.0) or self.key == "detection_error" else "number"


class Figures(_Node):
    """Where the published figures of a study stand.

    Args:
        file: a CSV among the reference files, or beside the study's own.
        row: its column with the names of rows; empty if rows say it themselves.
        value: its column with the number.
        std: its column with the deviation over runs; empty for none.
        percent: whether the numbers are percentages.
        runs: how many runs a mean is of.
        match: {column: what must stand there} of all figures.
    """

    file: str
    row: str = ""
    value: str = "value"
    std: str = ""
    percent: bool = False
    runs: Count = 3
    match: Texts = {}


class _File(_Node):
    """What a yaml says, rows and columns as they stand there; the rest as `Study` has it."""

    title: str = ""
    source: str = ""
    layout: Layout = "grid"
    run: Words = ()
    seeds: Words = ("0",)
    repeat: dict[str, Words] = {}
    rows: dict[Any, Any] = Field(min_length=1)
    columns: dict[Any, Any] = Field(min_length=1)
    figures: Figures | None = Field(default=None, alias="published")
    only_published: bool = False
    test: str = ""
    deviations: list[str] = []
    options: dict[str, Any] = {}


class Study(_Node):
    """What a table is made of.

    Args:
        name: what users type.
        path: its file.
        title: as printed.
        source: where the published table stands; empty for a study of one's own.
        layout: how the numbers become tables.
        run: overrides of all runs.
        repeat: the key whose values a cell is the mean over; `seed` usually.
        rows: from top to bottom.
        columns: from left to right.
        figures: the published ones, if there are any.
        only_published: whether cells without a published figure stay empty.
        test: the row that the others are compared with in pairs; empty for no test.
        deviations: how the study differs from the paper, and why.
        options: what its layout takes besides.
    """

    name: str
    path: Path
    title: str
    source: str
    layout: Layout
    run: tuple[str, ...]
    repeat: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    figures: Figures | None
    only_published: bool
    test: str
    deviations: list[str]
    options: dict[str, Any]

    def narrowed(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> "Study":
        """Return the study with some rows and columns only.

        Args:
            rows: names of rows or of their groups, with `*` for any text; empty for all.
            columns: likewise.

        Raises:
            ConfigError: a name that fits none.
        """
        kept = _chosen(self.rows, rows, "--rows")
        test = self.test if self.test in [row.path for row in kept] else ""
        chosen = {"rows": kept, "columns": _chosen(self.columns, columns, "--columns"), "test": test}
        return self.model_copy(update=chosen)


def read_study(path: Path, name: str) -> Study:
    """Return the study in a file.

    Args:
        path: a yaml.
        name: what users type for it.

    Raises:
        ConfigError: not a mapping, an unknown or missing key, a value of another kind, or a name twice.
    """
    node, where = read_yaml(path), f"study '{name}'"
    file = _parsed(_File, node, where)
    if file.repeat and ("seeds" in node or len(file.repeat) != 1):
        raise ConfigError(
            f"{where}: repeat — found {', '.join(file.repeat)}{' beside seeds' * ('seeds' in node)} — allowed: one key "
            "with its values, e.g. {benchmark.draw: [1, 2, 3]}; `seeds: [0, 1, 2]` is short for {seed: [0, 1, 2]}"
        )
    ((repeat, values),) = (file.repeat or {_SEED: file.seeds}).items()
    measured = file.layout in ("grid", "mixture")
    rows = tuple(_rows(file.rows, f"{where}: rows"))
    columns = tuple(_columns(file.columns, f"{where}: columns", measured, Column(seeds=values)))
    _check_once([row.path for row in rows], f"{where}: rows")
    _check_once([column.path for column in columns], f"{where}: columns")
    said = {key: getattr(file, key) for key in Study.model_fields if key in _File.model_fields}
    own = {"name": name, "path": path, "title": file.title or name, "repeat": repeat, "rows": rows, "columns": columns}
    found = Study(**{**said, **own})
    _check_names(found, where)
    return found


def _parsed(model: type[_Model], node: Any, where: str) -> _Model:
    """A node of the yaml as a value of a model.

    Raises:
        ConfigError: it is not one; the first error is named.
    """
    check_value(node, dict, where)
    keys = [field.alias or key for key, field in model.model_fields.items() if key not in ("name", "group")]
    check_known(map(str, node), keys, where)
    try:
        return model.model_validate(node)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        given = "nothing" if first["type"] == "missing" else repr(first["input"])
        place = ".".join(map(str, first["loc"]))
        allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        raise ConfigError(f"{where}: {place} — found {given} — allowed: {allowed}") from None


def _check_names(study: Study, where: str) -> None:
    """Rows and columns that are named elsewhere are there, and seeds are seeds."""
    for column in study.columns:
        if not column.seeds or (study.repeat == _SEED and not all(map(str.isdecimal, column.seeds))):
            kind = "whole numbers ≥ 0" if study.repeat == _SEED else f"values of {study.repeat}"
            raise ConfigError(
                f"{where}: columns.{column.path}: seeds — found [{', '.join(column.seeds)}] — allowed: {kind}, at "
                "least one"
            )
    names = [row.path for row in study.rows]
    if study.test:
        check_choice(f"{where}: test", study.test, names)
    places = {place for column in study.columns for place in (column.name, column.group, column.path)}
    for row in study.rows:
        named = [place for place in (*row.without, *row.there) if place]
        check_known(named, sorted(places - {""}), f"{where}: rows.{row.name}")


def _rows(node: Mapping[Any, Any], where: str, common: Row | None = None) -> Iterator[Row]:
    """The rows of a mapping; those of a group have its heading and its overrides."""
    for name, entry in node.items():
        row = _parsed(Row, entry if isinstance(entry, dict) else {"run": entry}, f"{where}.{name}")
        if row.rows is not None and common is None:
            yield from _rows(
                row.rows, f"{where}.{name}.rows", row.model_copy(update={"group": str(name), "rows": None})
            )
            continue
        joined: dict[str, Any] = {"name": str(name)}
        if common is not None:
            joined |= {"group": common.group, "run": (*common.run, *row.run)}
            joined |= {key: {**getattr(common, key), **getattr(row, key)} for key in ("published", "without", "there")}
        yield row.model_copy(update=joined)


def _columns(node: Mapping[Any, Any], where: str, measured: bool, common: Column) -> Iterator[Column]:
    """The columns of a mapping; those of a group have its heading, its overrides and its figures.

    Args:
        node: {name: what the yaml says}.
        where: for messages.
        measured: whether a column is a metric, and not runs alone.
        common: what all of them have.
    """
    for name, entry in node.items():
        place = f"{where}.{name}"
        given = entry if isinstance(entry, dict) else {"value": entry} if measured else {"run": entry}
        column = _parsed(Column, given, place)
        joined: dict[str, Any] = {
            "run": (*common.run, *column.run),
            "published": {**common.published, **column.published},
            "seeds": column.seeds if "seeds" in given else common.seeds,
        }
        if column.columns is not None and not common.group:
            group = column.model_copy(update={**joined, "group": str(name)})
            yield from _columns(column.columns, f"{place}.columns", measured, group)
            continue
        if measured and not (column.set and column.key):
            raise ConfigError(
                f"{place}: value — found {column.value!r} — allowed: SET.METRIC, as `show record latest --view all` "
                "has them, e.g. near.auroc, id.accuracy, full_spectrum/far.fpr95"
            )
        best = (
            column.best if "best" in given else {True: "max", False: "min", None: "none"}[higher_is_better(column.key)]
        )
        yield column.model_copy(update={**joined, "name": str(name), "group": common.group, "best": best})


def _check_once(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where} — found {', '.join(twice)} twice — allowed: each name once")


def _chosen(lines: Sequence[_Line], patterns: tuple[str, ...], option: str) -> tuple[Any, ...]:
    """The rows or columns that patterns name; all without a pattern."""
    found = {line.path: {line.name, line.group, line.path} - {""} for line in lines}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for names in found.values() for name in names):
            known = list(dict.fromkeys(name for line in lines for name in (line.name, line.group, line.path) if name))
            raise ConfigError(
                f"{option} '{pattern}' fits nothing{did_you_mean(pattern, known)} — available: {', '.join(known)}"
            )
    fits = [line for line in lines if any(fnmatchcase(name, one) for name in found[line.path] for one in patterns)]
    return tuple(fits if patterns else lines)


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
            f"study '{name}' not found in configs/study{hint} — available: {available(known, name)} — a file of "
            "your own ends in .yaml (python -m openbench list study)"
        )
    return read_study(known[name], name)


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix().removesuffix(_YAML)
