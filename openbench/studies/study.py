"""A study: the runs, layout and published figures that its yaml names."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from openbench.config.constraints import Count, Probability, check_value
from openbench.config.folders import config_folders, read_config
from openbench.errors import ConfigError, check_choice, check_known, did_you_mean, not_found
from openbench.metrics.keys import bounds
from openbench.results.tables import render
from openbench.results.tables.views import arrow

Layout = Literal["grid", "rejection", "thresholds", "mixture", "tuning"]
Curve = Literal["oscr", "oscr_selective", "conformal", "corrections", "autc", "fluctuation", "calibration"]
# Of layouts that have others than `curves`.
_OPTIONS = {"rejection": ("curves", "tpr", "doubles"), "mixture": ("ood_mean", "samples"), "tuning": ()}
_SEED = "seed"


def _words(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]  # overrides or values: one, or a list of them
Texts = dict[str, str]


class _Node(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class _Line(_Node):
    """A row or a column, or a group of them.

    Args:
        name: as printed; its key in the yaml.
        group: the heading above it; empty for none.
        run: overrides of its runs.
        published: {column of the file of figures: the text in it}.
    """

    name: str = ""
    group: str = ""
    run: Words = ()
    published: Texts = {}

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        """A text or a list is short for a mapping: the value of a column, or overrides."""
        if isinstance(value, dict):
            return value
        is_value = "value" in cls.model_fields and isinstance(value, str) and "=" not in value
        return {"value" if is_value else "run": value}

    @property
    def path(self) -> str:
        """Its name with its group's, as `--rows` and `--columns` take it."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def places(self) -> tuple[str, ...]:
        """What it may be named by, the narrowest first."""
        return self.path, self.name, self.group


class Row(_Line):
    """One row: usually a method, or a training with its score.

    Args:
        without: {column or group of columns, or nothing for all: why the row has no cell there}.
        there: {column or group of columns: overrides of the row's runs there}.
        rows: those of a group.
    """

    without: Annotated[Texts, BeforeValidator(lambda value: {"": value} if isinstance(value, str) else value)] = {}
    there: dict[str, Words] = Field(default={}, alias="with")
    rows: dict[str, "Row"] | None = None


class Column(_Line):
    """One column of numbers.

    Args:
        value: SET.METRIC: the set or group of sets, and the metric; empty in layouts that bring their numbers.
        best: which values are better; by default those of the metric.
        seeds: the values that the study's `repeat` takes here.
        figure: column of the file of figures that holds the number; empty for the study's.
        std: the column that holds its deviation; likewise.
        columns: those of a group.
    """

    value: str = ""
    best: Literal["max", "min", "none", ""] = ""
    seeds: Words = ()
    figure: str = ""
    std: str = ""
    columns: dict[str, "Column"] | None = None

    @property
    def set(self) -> str:
        """The set or group of sets, e.g. `near`."""
        return self.value.partition(".")[0]

    @property
    def key(self) -> str:
        """The metric, e.g. `auroc`."""
        return self.value.partition(".")[2]

    @property
    def arrow(self) -> str:
        """↑ or ↓, whichever is better, after a space; empty for neither."""
        return {"max": " ↑", "min": " ↓", "none": ""}.get(self.best, arrow(self.key).removeprefix(self.key))

    @property
    def heading(self) -> render.Column:
        """How its numbers are written: rates in percent, with two digits, risks, which are small, with three."""
        limits = bounds(self.key)
        rate = (limits.low, limits.high) == (0.0, 1.0) or self.key == "detection_error"
        return render.Column(self.name, "percent" if rate else "number", 3 if "risk" in self.key else 2)


def _flat(lines: Mapping[str, Any], parent: Any = None) -> tuple[Any, ...]:
    """Rows or columns without their groups: each has the overrides and figures of its group, and its heading."""
    flat: list[_Line] = []
    for name, line in lines.items():
        joined: dict[str, Any] = {"name": name}
        if parent is not None:
            dicts = [key for key in ("published", "without", "there") if hasattr(line, key)]
            joined |= {key: {**getattr(parent, key), **getattr(line, key)} for key in dicts}
            joined |= {"group": parent.name, "run": (*parent.run, *line.run)}
            if "seeds" in parent.model_fields_set and "seeds" not in line.model_fields_set:
                joined["seeds"] = parent.seeds
        line = line.model_copy(update=joined)
        members = line.rows if isinstance(line, Row) else line.columns
        flat += [line] if members is None else _flat(members, line)
    return tuple(flat)


if TYPE_CHECKING:
    Rows = tuple[Row, ...]
    Columns = tuple[Column, ...]
else:
    Rows = Annotated[dict[str, Row], Field(min_length=1), AfterValidator(_flat)]
    Columns = Annotated[dict[str, Column], Field(min_length=1), AfterValidator(_flat)]


class Figures(_Node):
    """Where the published figures of a study are.

    Args:
        file: a CSV among the reference files, or beside the study's yaml.
        row: its column with the names of rows; empty if rows say it themselves.
        value: its column with the number.
        std: its column with the deviation over runs; empty for none.
        percent: whether the numbers are percentages.
        runs: how many runs a mean is of.
        match: {column: the text in it} of all figures.
    """

    file: str
    row: str = ""
    value: str = "value"
    std: str = ""
    percent: bool = False
    runs: Count = 3
    match: Texts = {}


class Options(_Node):
    """What a layout can do besides.

    Args:
        curves: pictures of the runs' scores.
        tpr: share of ID accepted, at which methods are compared.
        doubles: double scores, each as two methods joined by a plus.
        ood_mean: of the mixture.
        samples: ID inputs of the mixture.
    """

    curves: tuple[Curve, ...] = ()
    tpr: Probability = 0.8
    doubles: tuple[str, ...] = ()
    ood_mean: float = 2.0
    samples: Count = 400_000


class Study(_Node):
    """What a table is made of.

    Args:
        name: what users type.
        path: its file.
        title: as printed.
        source: where the published table is; empty for a study of one's own.
        layout: how the numbers become tables.
        run: overrides of all runs.
        seeds: over which a cell is the mean.
        repeated: {another key over whose values a cell is the mean: its values}.
        rows: from top to bottom.
        columns: from left to right.
        figures: the published ones, if there are any.
        only_published: whether cells without a published figure stay empty.
        test: the row that the others are compared with in pairs; empty for no test.
        deviations: how the study differs from the paper, and why.
        options: those of its layout.
    """

    name: str
    path: Path
    title: str
    source: str = ""
    layout: Layout = "grid"
    run: Words = ()
    seeds: Words = ("0",)
    repeated: dict[str, Words] = Field(default={}, alias="repeat", max_length=1)
    rows: Rows
    columns: Columns
    figures: Figures | None = Field(default=None, alias="published")
    only_published: bool = False
    test: str = ""
    deviations: list[str] = []
    options: Options = Options()

    @property
    def repeat(self) -> str:
        """The key over whose values a cell is the mean; `seed` usually."""
        return next(iter(self.repeated), _SEED)

    @property
    def about(self) -> list[str]:
        """Notes below its tables: the paper, and how the study differs from it."""
        paper = [f"paper: {self.source}"] * bool(self.source)
        return paper + [f"deviates: {text}" for text in self.deviations]

    def narrowed(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> "Study":
        """Return the study with some rows and columns only.

        Args:
            rows: names of rows or of their groups, with `*` for any text; empty for all.
            columns: likewise.

        Raises:
            ConfigError: a name that matches none.
        """
        some = {"rows": _chosen(self.rows, rows, "--rows"), "columns": _chosen(self.columns, columns, "--columns")}
        test = self.test if self.test in [row.path for row in some["rows"]] else ""
        return self.model_copy(update={**some, "test": test})


def read_study(path: Path, name: str) -> Study:
    """Return the study in a file.

    Args:
        path: a yaml.
        name: what users type for it.

    Raises:
        ConfigError: not a mapping, an unknown or missing key, or a value of another kind.
    """
    node, where = read_config(path), f"study '{name}'"
    check_value(node, dict, where)
    if "repeat" in node and "seeds" in node:
        raise ConfigError(f"{where}: both repeat and seeds — allowed: one; `seeds: [0]` is short for {{seed: [0]}}")
    try:
        study = Study.model_validate({"title": name, **node, "name": name, "path": path})
    except ValidationError as error:
        raise ConfigError(_described(error, where)) from None
    values = study.repeated.get(study.repeat, study.seeds)
    columns = [c if "seeds" in c.model_fields_set else c.model_copy(update={"seeds": values}) for c in study.columns]
    study = study.model_copy(update={"columns": tuple(columns)})
    _check(study, where)
    return study


def _described(error: ValidationError, where: str) -> str:
    """The first error of a yaml as a message: of an unknown key, if there is one."""
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    *place, last = map(str, first["loc"]) if first["loc"] else [""]
    if first["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"published": Figures, "rows": Row, "columns": Column, "options": Options}
        known = models.get(place[0], Study) if place else Study
        keys = [field.alias or key for key, field in known.model_fields.items() if key not in ("name", "path", "group")]
        named = ": ".join(filter(None, (where, ".".join(place))))
        return f"{named} has no key '{last}'{did_you_mean(last, keys)} — allowed: {', '.join(keys)}"
    value = "nothing" if first["type"] == "missing" else repr(first["input"])
    allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{where}: {'.'.join([*place, last])}: found {value} — allowed: {allowed}"


def _check(study: Study, where: str) -> None:
    """Check what the keys of a study say of one another."""
    check_known(study.options.model_fields_set, _OPTIONS.get(study.layout, ("curves",)), f"{where}: options")
    for column in study.columns:
        at = f"{where}: columns.{column.path}"
        if study.layout in ("grid", "mixture") and not (column.set and column.key):
            e_g = "SET.METRIC, e.g. near.auroc, id.accuracy, full_spectrum/far.fpr95"
            raise ConfigError(f"{at}: value: found {column.value!r} — allowed: {e_g}")
        if not column.seeds or (study.repeat == _SEED and not all(map(str.isdecimal, column.seeds))):
            kind = "whole numbers ≥ 0" if study.repeat == _SEED else f"values of {study.repeat}"
            raise ConfigError(f"{at}: seeds: found [{', '.join(column.seeds)}] — allowed: {kind}, at least one")
    if study.test:
        check_choice(f"{where}: test", study.test, [row.path for row in study.rows])
    places = sorted({place for column in study.columns for place in column.places} - {""})
    for row in study.rows:
        check_known((place for place in (*row.without, *row.there) if place), places, f"{where}: rows.{row.name}")


def _chosen(lines: Sequence[_Line], patterns: tuple[str, ...], option: str) -> tuple[Any, ...]:
    """The rows or columns that match patterns; all without a pattern."""
    known = list(dict.fromkeys(place for line in lines for place in line.places if place))
    for pattern in patterns:
        if not any(fnmatchcase(place, pattern) for place in known):
            raise ConfigError(not_found(f"{option} '{pattern}'", pattern, known))
    return tuple(
        line for line in lines if not patterns or any(fnmatchcase(n, p) for n in line.places for p in patterns)
    )


_YAML = ".yaml"


def names(config_dir: Path | None = None) -> dict[str, Path]:
    """Return {name: file} of every study, sorted; a name is the path below configs/study, e.g. `openood_v1.5/table1`.

    Args:
        config_dir: the user's folder of group files.
    """
    roots = [folder.path / "study" for folder in config_folders(config_dir)]
    files = [(root, file) for root in roots for file in root.rglob(f"*{_YAML}")]
    return dict(sorted((file.relative_to(root).as_posix().removesuffix(_YAML), file) for root, file in files))


def study(name: str, config_dir: Path | None = None) -> Study:
    """Return a study by its name, or by its file where that ends in `.yaml`.

    Args:
        name: what the user typed.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: there is none, or its yaml is invalid.
    """
    if name.endswith(_YAML):
        return read_study(Path(name), Path(name).stem)
    known = names(config_dir)
    if name not in known:
        alike = [path for path in known if path.rpartition("/")[2] == name]
        what = f"study '{name}' not found in configs/study (a file of your own ends in .yaml)"
        raise ConfigError(not_found(what, name, alike or known, "list study"))
    return read_study(known[name], name)
