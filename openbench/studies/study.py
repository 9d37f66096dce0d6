"""A study as a value: what its yaml says, checked."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from openbench import paths
from openbench.config.constraints import Count, check_value
from openbench.errors import ConfigError, available, check_known, did_you_mean
from openbench.metrics.keys import bounds, higher_is_better
from openbench.results.tables.render import Kind
from openbench.storage.yaml_file import read_yaml

Layout = Literal["grid", "rejection", "thresholds", "mixture"]
Best = Literal["max", "min", "none"]
_KEYS = (
    *("title", "source", "layout", "run", "repeat", "seeds", "rows", "columns", "published", "test", "deviations"),
    *("only_published", "options"),
)
_ROW = ("run", "published", "without", "with")
_COLUMN = ("run", "value", "best", "published", "seeds", "figure", "std")
_GROUP = {"rows": ("run", "rows", "without", "with", "published"), "columns": ("run", "seeds", "columns", "published")}
_FIGURES = ("file", "row", "value", "std", "percent", "runs", "match")
_SEED = "seed"


@dataclass(frozen=True)
class Row:
    """One row: usually a method, or a training with its score.

    Args:
        name: as printed.
        group: the heading that it stands under; empty for none.
        run: overrides of its runs.
        published: {column of the file of figures: what stands there for this row}.
        without: {column or group of columns, or nothing for all: why the row has no cell there}.
        there: {column or group of columns: overrides of the row's runs there}.
    """

    name: str
    group: str = ""
    run: tuple[str, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    there: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Its name with its group's, as `--rows` takes it."""
        return f"{self.group}.{self.name}" if self.group else self.name


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Args:
        name: as printed.
        group: the heading above it; empty for none.
        run: overrides of its runs.
        set: the set or group of sets that the number is about, e.g. `near`; empty in layouts that bring their numbers.
        key: of the metric, e.g. `auroc`.
        best: which values are better.
        published: {column of the file of figures: what stands there for this column}.
        repeated: the values that the study's `repeat` takes here.
        figure: column of the file of figures that holds the number; empty for the study's.
        std: the one that holds its deviation; likewise.
    """

    name: str
    group: str
    run: tuple[str, ...]
    set: str
    key: str
    best: Best
    published: Mapping[str, str]
    repeated: tuple[str, ...]
    figure: str = ""
    std: str = ""

    @property
    def path(self) -> str:
        """Its name with its group's, as `--columns` takes it."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def kind(self) -> Kind:
        """How its numbers are written: rates in percent."""
        limits = bounds(self.key)
        return "percent" if (limits.low, limits.high) == (0.0, 1.0) or self.key == "detection_error" else "number"


@dataclass(frozen=True)
class Figures:
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
    runs: int = 3
    match: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
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
    figures: Figures | None = None
    only_published: bool = False
    test: str = ""
    deviations: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def narrowed(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> "Study":
        """Return the study with some rows and columns only.

        Args:
            rows: names of rows or of their groups, with `*` for any text; empty for all.
            columns: likewise.

        Raises:
            ConfigError: a name that fits none.
        """
        kept_rows = _chosen([(row, (row.name, row.group, row.path)) for row in self.rows], rows, "--rows")
        kept = _chosen([(one, (one.name, one.group, one.path)) for one in self.columns], columns, "--columns")
        test = self.test if self.test in [row.path for row in kept_rows] else ""
        return replace(self, rows=tuple(kept_rows), columns=tuple(kept), test=test)


def read_study(path: Path, name: str) -> Study:
    """Return the study in a file.

    Args:
        path: a yaml.
        name: what users type for it.

    Raises:
        ConfigError: not a mapping, an unknown or missing key, a value of another kind, or a name twice.
    """
    node = read_yaml(path)
    where = f"study '{name}'"
    check_value(node, dict, where)
    check_known(map(str, node), _KEYS, where)
    for key in ("rows", "columns"):
        if not isinstance(node.get(key), dict) or not node[key]:
            raise ConfigError(
                f"{where}: {key} — found {node.get(key)!r} — allowed: a mapping from names to overrides or metrics, "
                "e.g. KNN: method=knn, or near: near.auroc (python -m openbench show study openood_v1.5/table1)"
            )
    layout = _checked(node, "layout", Layout, where, "grid")
    repeat, values = _repeat(node, where)
    rows = tuple(_rows(node["rows"], f"{where}: rows"))
    columns = tuple(_columns(node["columns"], f"{where}: columns", values, measured=layout in ("grid", "mixture")))
    _check_once([row.path for row in rows], f"{where}: rows")
    _check_once([column.path for column in columns], f"{where}: columns")
    found = Study(
        name=name,
        path=path,
        title=_checked(node, "title", str, where, name),
        source=_checked(node, "source", str, where, ""),
        layout=layout,
        run=_words(node.get("run"), f"{where}: run"),
        repeat=repeat,
        rows=rows,
        columns=columns,
        figures=_figures(node["published"], where) if "published" in node else None,
        only_published=_checked(node, "only_published", bool, where, False),
        test=_checked(node, "test", str, where, ""),
        deviations=tuple(_checked(node, "deviations", list[str], where, [])),
        options=_checked(node, "options", dict[str, Any], where, {}),
    )
    _check_names(found, where)
    return found


def _check_names(study: Study, where: str) -> None:
    """Rows and columns that are named elsewhere are there, and seeds are seeds."""
    for column in study.columns:
        if not column.repeated or (study.repeat == _SEED and not all(map(str.isdecimal, column.repeated))):
            kind = "whole numbers ≥ 0" if study.repeat == _SEED else f"values of {study.repeat}"
            raise ConfigError(
                f"{where}: columns.{column.path}: seeds — found [{', '.join(column.repeated)}] — allowed: {kind}, at "
                "least one"
            )
    names = [row.path for row in study.rows]
    if study.test and study.test not in names:
        raise ConfigError(
            f"{where}: test — found '{study.test}'{did_you_mean(study.test, names)} — allowed: {', '.join(names)}"
        )
    places = {place for column in study.columns for place in (column.name, column.group, column.path)}
    for row in study.rows:
        named = [place for place in (*row.without, *row.there) if place]
        check_known(named, sorted(places - {""}), f"{where}: rows.{row.name}")


def _rows(node: Mapping[Any, Any], where: str, group: str = "", before: Row | None = None) -> Iterator[Row]:
    """The rows of a mapping; those of a group have its heading and its overrides."""
    common = before or Row("")
    for name, entry in node.items():
        place = f"{where}.{name}"
        if isinstance(entry, dict) and "rows" in entry and not group:
            check_known(map(str, entry), _GROUP["rows"], place)
            check_value(entry["rows"], dict, f"{place}.rows")
            run, published = _words(entry.get("run"), f"{place}.run"), _texts(entry, "published", place)
            shared = Row("", "", run, published, _without(entry, place), _there(entry, place))
            yield from _rows(entry["rows"], f"{place}.rows", str(name), shared)
            continue
        given = entry if isinstance(entry, dict) else {"run": entry}
        check_known(map(str, given), _ROW, place)
        run = (*common.run, *_words(given.get("run"), f"{place}.run"))
        published = {**common.published, **_texts(given, "published", place)}
        without = {**common.without, **_without(given, place)}
        yield Row(str(name), group, run, published, without, {**common.there, **_there(given, place)})


def _without(node: Mapping[Any, Any], where: str) -> dict[str, str]:
    """Why a row has no cell in a column; in any, if one text is given."""
    given = node.get("without")
    return {"": given} if isinstance(given, str) else _texts(node, "without", where)


def _there(node: Mapping[Any, Any], where: str) -> dict[str, tuple[str, ...]]:
    given = node.get("with") or {}
    check_value(given, dict, f"{where}: with")
    return {str(column): _words(words, f"{where}: with.{column}") for column, words in given.items()}


def _columns(
    node: Mapping[Any, Any], where: str, values: tuple[str, ...], group: str = "", measured: bool = True
) -> Iterator[Column]:
    """The columns of a mapping; those of a group have its heading, its overrides and its figures."""
    for name, entry in node.items():
        place = f"{where}.{name}"
        if isinstance(entry, dict) and "columns" in entry and not group:
            check_known(map(str, entry), _GROUP["columns"], place)
            check_value(entry["columns"], dict, f"{place}.columns")
            run, shared = _words(entry.get("run"), f"{place}.run"), _texts(entry, "published", place)
            own = _words(entry["seeds"], f"{place}.seeds") if "seeds" in entry else values
            for column in _columns(entry["columns"], f"{place}.columns", own, str(name), measured):
                yield replace(column, run=(*run, *column.run), published={**shared, **column.published})
            continue
        given = entry if isinstance(entry, dict) else {"value": entry} if measured else {"run": entry}
        yield _column((group, str(name)), given, place, values, measured)


def _column(
    named: tuple[str, str], given: Mapping[Any, Any], place: str, values: tuple[str, ...], measured: bool
) -> Column:
    check_known(map(str, given), _COLUMN, place)
    value = _checked(given, "value", str, place, "")
    of, _, key = value.partition(".")
    if measured and not (of and key):
        raise ConfigError(
            f"{place}: value — found {given.get('value')!r} — allowed: SET.METRIC, as `show record latest --view all` "
            "has them, e.g. near.auroc, id.accuracy, full_spectrum/far.fpr95"
        )
    better = {True: "max", False: "min", None: "none"}[higher_is_better(key)]
    return Column(
        name=named[1],
        group=named[0],
        run=_words(given.get("run"), f"{place}.run"),
        set=of,
        key=key,
        best=_checked(given, "best", Best, place, better),
        published=_texts(given, "published", place),
        repeated=_words(given["seeds"], f"{place}.seeds") if "seeds" in given else values,
        figure=_checked(given, "figure", str, place, ""),
        std=_checked(given, "std", str, place, ""),
    )


def _repeat(node: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """The key whose values a cell is the mean over, and the values."""
    if "repeat" not in node:
        return _SEED, _words(node.get("seeds", [0]), f"{where}: seeds")
    given = node["repeat"]
    if "seeds" in node or not isinstance(given, dict) or len(given) != 1:
        raise ConfigError(
            f"{where}: repeat — found {given!r}{' beside seeds' * ('seeds' in node)} — allowed: one key with its "
            "values, e.g. {benchmark.draw: [1, 2, 3]}; `seeds: [0, 1, 2]` is short for {seed: [0, 1, 2]}"
        )
    ((key, values),) = given.items()
    return str(key), _words(values, f"{where}: repeat.{key}")


def _figures(node: Any, where: str) -> Figures:
    place = f"{where}: published"
    check_value(node, dict, place)
    check_known(map(str, node), _FIGURES, place)
    if "file" not in node:
        raise ConfigError(f"{place}: file is missing — name a CSV of results/reference, or one beside the study")
    kinds: dict[str, Any] = {"file": str, "row": str, "value": str, "std": str, "percent": bool, "runs": Count}
    given = {key: _checked(node, key, kind, place, None) for key, kind in kinds.items() if key in node}
    return Figures(**given, match=_texts(node, "match", place))


def _checked(node: Mapping[Any, Any], key: str, kind: Any, where: str, default: Any) -> Any:
    """A value of a node, checked; the default if it is absent."""
    value = node.get(key, default)
    if key in node:
        check_value(value, kind, f"{where}: {key}")
    return value


def _words(value: Any, where: str) -> tuple[str, ...]:
    """Overrides or values: one, or a list of them."""
    given = [] if value is None else value if isinstance(value, list) else [value]
    check_value(given, list[str | int | float], where)
    return tuple(str(one) for one in given)


def _texts(node: Mapping[Any, Any], key: str, where: str) -> dict[str, str]:
    value = node.get(key) or {}
    check_value(value, dict[str, str | int | float], f"{where}: {key}")
    return {str(name): str(text) for name, text in value.items()}


def _check_once(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where} — found {', '.join(twice)} twice — allowed: each name once")


def _chosen(named: list[tuple[Any, tuple[str, ...]]], patterns: tuple[str, ...], option: str) -> list[Any]:
    from fnmatch import fnmatchcase

    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for _, names in named for name in names):
            known = list(dict.fromkeys(name for _, names in named for name in names if name))
            raise ConfigError(
                f"{option} '{pattern}' fits nothing{did_you_mean(pattern, known)} — available: {', '.join(known)}"
            )
    fits = [thing for thing, names in named if any(fnmatchcase(n, p) for n in names for p in patterns)]
    return fits if patterns else [thing for thing, _ in named]


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


_PLAIN = re.compile(r"[A-Za-z_+~][\w+~@=./ ×·()-]*")
_SPECIAL = {"null", "true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Draft:
    """What a study of a sweep says.

    Args:
        title: as printed.
        command: what makes its tables, for the first comment.
        run: overrides of all its runs.
        seeds: what cells are means over.
        rows: {name: overrides}.
        groups: {name of a benchmark: overrides} where there are several; columns then stand below each.
        columns: {name: SET.METRIC}.
    """

    title: str
    command: str
    run: Sequence[str]
    seeds: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    groups: Mapping[str, Sequence[str]]
    columns: Mapping[str, str]

    def text(self) -> str:
        """Return the yaml."""
        lines = [f"# {self.title}", f"#   {self.command}", f"title: {_scalar(self.title)}"]
        lines += [f"run: {_list(self.run)}"] * bool(self.run)
        lines += [f"seeds: [{', '.join(self.seeds)}]", "rows:"]
        lines += [f"  {_scalar(name)}: {_list(words)}" for name, words in self.rows.items()]
        lines.append("columns:")
        for name, words in self.groups.items():
            columns = ", ".join(f"{_scalar(title)}: {_scalar(value)}" for title, value in self.columns.items())
            lines.append(f"  {_scalar(name)}: {{run: {_list(words)}, columns: {{{columns}}}}}")
        if not self.groups:
            lines += [f"  {_scalar(name)}: {_scalar(value)}" for name, value in self.columns.items()]
        first = next(iter(self.rows))
        lines.append(f"# test: {_scalar(first)}   # compares every row with this one, in pairs")
        return "\n".join(lines) + "\n"


def _list(words: Sequence[str]) -> str:
    return _scalar(words[0]) if len(words) == 1 else f"[{', '.join(map(_scalar, words))}]"


def _scalar(text: str) -> str:
    """A text as yaml reads it back."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _SPECIAL and text == text.strip()
    return text if plain else json.dumps(text, ensure_ascii=False)
