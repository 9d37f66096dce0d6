"""The files of the site: one page, its data as scripts (browsers load no JSON from a disk), and its libraries."""

import gc
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from openbench.core.record import ResultRecord
from openbench.errors import ConfigError, OpenbenchError, RecordError, pip_install
from openbench.report.run_page import run_page, run_style, template
from openbench.report.site._boards import Facts, board_data, details, keep, methods_of, number
from openbench.report.site._others import other_boards, published, table_of
from openbench.results.checks import read_checks
from openbench.results.frame import runs
from openbench.results.leaderboard.across import across, across_csv, needed
from openbench.results.leaderboard.matrix import VIEWS, Matrix, matrices, packed_boards, table_csv
from openbench.results.leaderboard.pages import published_boards
from openbench.results.leaderboard.plots import accuracy_picture
from openbench.results.leaderboard.ranking import Board, board_keys, boards_of
from openbench.results.plots import critical_difference, saved
from openbench.results.records.store import RecordStore, load, parsed
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.tables.published import load_published
from openbench.results.tables.render import Column, cell_text, to_csv, to_latex
from openbench.results.tables.views import GROUPS, kind_of
from openbench.storage.checksum import KEY as STATED
from openbench.storage.files import write_whole

MARK = "openbench-site"
NETWORKS = "networks.html"
CommandOf = Callable[[ResultRecord], str]
_HERE = Path(__file__).parent
_FEW = 20  # pages, for which more processes would take longer to start
_SHARDS = 2  # hex digits of a run id: records that open together are in one file
_EXPORT = re.compile(r"export\s*\{([^{}]*)\}\s*;?\s*(?=/\*|$)")


def write_site(
    results: Path, folder: Path, facts: Facts, command_of: CommandOf | None = None
) -> tuple[list[Path], list[OpenbenchError]]:
    """Write the site of a results folder and return its files, and an error for each record or page left out.

    Equal records give equal bytes. A folder that holds something else than a site is refused.

    Args:
        results: the folder with `records`, `scores`, `checks` and `reference`, and tables of other comparisons.
        folder: of the site; made if it is missing, and what an earlier site left there is replaced.
        facts: what each method is.
        command_of: tells what makes a record again, for the pages of runs with scores; None to leave pages out.

    Raises:
        ConfigError: a library is missing, or the folder is not one of a site.
        RecordError: a reference file cannot be read, or the folder cannot be written.
    """
    libraries = _libraries()
    _check_folder(folder)
    unreadable: list[OpenbenchError] = []
    store, scores = RecordStore(results), ScoreStore(results / PUBLISHED)
    figures, files = load_published(results / "reference"), {path.stem: path for path in store.paths(lambda _: None)}
    scored = [run_id for run_id in files if command_of is not None and scores.path(run_id).is_file()]
    try:
        # Pages are drawn by other processes meanwhile. Not by fork: pyarrow has threads here.
        # Pictures are many small objects without cycles, which need not be searched for garbage so often.
        rarely, context = (100_000, 50, 50), get_context("spawn")
        with ProcessPoolExecutor(mp_context=context, initializer=gc.set_threshold, initargs=rarely) as workers:
            in_order = partial(workers.map, chunksize=4) if len(scored) >= _FEW else map
            one = partial(_write_page, scores, folder / "reports", command_of)
            errors = in_order(one, [files[run_id] for run_id in scored])
            every = list(runs(store, unreadable.append, keep, needed("overview"), board_keys))
            paths, boards = {run.run_id: store.folder / run.file for run in every}, boards_of(every)
            data = board_data(boards, figures, scores)
            others = [*other_boards(results, data), *map(published, published_boards(results / "reference", boards))]
            data += others
            networks = networks_page(boards, packed_boards(results, unreadable.append))
            texts = {
                "index.html": template(_HERE / "templates" / "index.html.j2").render(
                    mark=MARK,
                    rows=sum(not row.given for board in boards for row in board.rows),
                    benchmarks=len({board.benchmark for board in boards}),
                    left_out=len(unreadable),
                    networks=NETWORKS if networks else "",
                ),
                "assets/run.css": run_style(),
                "assets/site.css": (_HERE / "templates" / "site.css").read_text(encoding="utf-8"),
                "assets/site.js": (_HERE / "templates" / "site.js").read_text(encoding="utf-8"),
                **libraries,
                **_tables(boards),
                **{f"tables/{board['id']}.csv": to_csv(table_of(board)) for board in others},
                **{f"tables/{board['id']}.tex": to_latex(table_of(board)) for board in others},
                **pictures(data),
                **networks,
            }
            texts["assets/data.js"] = _script("data", {"boards": data, "methods": methods_of(data, facts)})
            found = {run_id: error for run_id, error in zip(scored, errors, strict=True) if run_id in paths}
        unreadable += filter(None, found.values())
        pages = {run_id: f"reports/{run_id}.html" for run_id, error in found.items() if error is None}
        _clear(folder, pages)
        _write(folder, {**texts, **_behind(results, paths, pages, unreadable.append)})
    except OSError as error:
        raise RecordError(
            f"site '{folder}' cannot be written ({error.strerror or error}) — choose another folder"
        ) from error
    return sorted(path for path in folder.rglob("*") if path.is_file()), unreadable


def _write_page(published: ScoreStore, folder: Path, command_of: CommandOf | None, path: Path) -> OpenbenchError | None:
    """Write the page of one record; damaged scores leave it out, since the site is being written already."""
    try:
        record = load(path)
        sets = published.read_whole(record.run_id)
        command = command_of(record) if command_of else ""
        text = run_page(record, sets, command=command, stylesheet="../assets/run.css")
        _write(folder, {f"{record.run_id}.html": text})
    except OpenbenchError as error:
        return error
    return None


def _behind(
    results: Path, paths: Mapping[str, Path], pages: Mapping[str, str], on_error: Callable[[OpenbenchError], None]
) -> dict[str, str]:
    """Name and text of the files that open behind the rows: each holds the records that begin alike.

    Args:
        results: the folder.
        paths: run id → file of every record that could be read.
        pages: run id → its page.
        on_error: receives an error for each record that has gone since.
    """
    checks, published = read_checks(results), ScoreStore(results / PUBLISHED)
    texts: dict[str, str] = defaultdict(str)
    for run_id, path in sorted(paths.items()):
        try:
            content = parsed(path)
        except RecordError as error:
            on_error(error)
            continue
        check = checks.get(run_id)
        if check is not None and not check.of(content[STATED], published.state(run_id)):
            check = None
        scores, page = published.path(run_id).is_file(), pages.get(run_id, "")
        texts[f"records/{run_id[:_SHARDS]}.js"] += _script("record", details(content, check, scores=scores, page=page))
    return texts


def _tables(boards: Iterable[Board]) -> dict[str, str]:
    """Every set of every board as CSV and LaTeX."""
    files: dict[str, str] = {}
    for board in boards:
        name = f"tables/{board.benchmark}{'_full_spectrum' if board.full_spectrum else ''}-{board.digest[:6]}"
        files[f"{name}.csv"] = to_csv(across_csv([board], "overview"))
        files[f"{name}.tex"] = "\n".join(to_latex(table) for table in across([board], "overview"))
    return files


def _script(function: str, value: Any) -> str:
    """A call that hands a value to the page: JSON in which nothing ends a script or a line."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return f"openbench.{function}({text.replace('<', chr(92) + 'u003c')});\n"


def _libraries() -> dict[str, str]:
    """The libraries of the page, from their packages: DataTables with jQuery, and plotly."""
    return {
        "assets/datatables.js": _classic(_file("itables", "html/dt_bundle.js")),
        "assets/datatables.css": _file("itables", "html/dt_bundle.css"),
        "assets/plotly.js": _file("plotly", "package_data/plotly.min.js"),
    }


def _classic(module: str) -> str:
    """An ES module as a script that leaves jQuery in `window`: browsers load no module from a disk."""
    exported = _EXPORT.search(module)
    if exported is None:
        raise ConfigError(f"itables: its bundle exports nothing — install another version: {pip_install('site')}")
    names = {public: inner for inner, _, public in (part.partition(" as ") for part in exported.group(1).split(","))}
    body = module[: exported.start()] + module[exported.end() :]
    return f"(() => {{\n{body}\nwindow.jQuery = window.$ = {names['jQuery'].strip()};\n}})();\n"


def _file(package: str, name: str) -> str:
    spec = find_spec(package)
    path = Path(spec.origin or "").parent / name if spec else None
    if path is None or not path.is_file():
        raise ConfigError(f"the site needs {package} with {name}, which is not installed — {pip_install('site')}")
    return path.read_text(encoding="utf-8")


def _check_folder(folder: Path) -> None:
    """Refuse to replace what is not a site."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"'{folder}' is not a folder — give one of its own to the site")
    page = folder / "index.html"
    ours = page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise ConfigError(f"'{folder}' holds other files — give the site an empty folder, or that of an earlier site")


def _clear(folder: Path, pages: Mapping[str, str]) -> None:
    """Remove what an earlier site left, but for the pages just written."""
    for part in ("records", "tables", "assets", "pictures"):
        if (folder / part).is_dir() and not (folder / part).is_symlink():
            shutil.rmtree(folder / part)
    reports = folder / "reports"
    for page in () if reports.is_symlink() else reports.glob("*.html"):
        if page.stem not in pages:
            page.unlink()
    (folder / NETWORKS).unlink(missing_ok=True)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text.encode())


_NOT_SETS = (*GROUPS, "id", "mean")


def pictures(boards: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return {file: SVG} of the boards that have AUROCs on two sets at least, and note each file in its board.

    Methods that lack a set are left out. Where nothing is ranked, the rows that are shown take part.

    Args:
        boards: as the page reads them.
    """
    svgs: dict[str, str] = {}
    for board in boards:
        board["picture"] = None
        metrics = [(metric["of"], metric["id"]) for metric in board["metrics"]]
        sets = [at for at, (of, key) in enumerate(metrics) if key == f"{of}.auroc" and of not in _NOT_SETS]
        rows = [row for row in board["rows"] if row["rank"] is not None] or board["rows"]
        values = {_name(row, rows): [number(row["values"][at]) for at in sets] for row in rows}
        whole = {name: [v for v in line if v is not None] for name, line in values.items() if None not in line}
        if len(sets) < 2 or len(whole) < 2 or board["id"].endswith("-autc"):
            continue
        figure = critical_difference(list(whole), list(whole.values()), "AUROC")
        board["picture"] = f"pictures/{board['id']}.svg"
        svgs[board["picture"]] = saved(figure, "svg").decode()
    return svgs


def _name(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The method, with what tells it from other rows of the method."""
    alike = [other for other in rows if other["method"] == row["method"]]
    keys = [key for key in ("training", "backbone", "augment", "settings") if len({other[key] for other in alike}) > 1]
    return " · ".join([row["method"], *(str(row[key]) for key in keys)])


def networks_page(boards: Sequence[Board], trained: Sequence[Board] = ()) -> dict[str, str]:
    """Return {file: text} of the page of networks × methods, its pictures and its CSV; none without several networks.

    Args:
        boards: of runs with AUROCs.
        trained: boards that compare trainings only.
    """
    of = {"networks": boards, "trainings": [*boards, *trained]}
    found = [matrix for view in VIEWS for matrix in matrices(of[view], view)]
    if not found:
        return {}
    files, sections = {"tables/networks.csv": to_csv(table_csv(found))}, []
    for at, matrix in enumerate(found):
        pictures = _matrix_pictures(matrix)
        named = {f"pictures/networks-{at}-{what}.svg": svg for what, svg in pictures.items()}
        files |= named
        sections.append(_section(matrix) | {"pictures": list(zip(pictures, named, strict=True))})
    page = template(_HERE / "templates" / "networks.html.j2")
    return files | {NETWORKS: page.render(mark=MARK, sections=sections)}


def _section(matrix: Matrix) -> dict[str, Any]:
    """A matrix as the page shows it: the colour of a cell follows from its rank, so that columns can be compared."""
    k, n = matrix.compared
    column = Column("", kind_of(matrix.key))
    rows = []
    for at, (method, line) in enumerate(zip(matrix.methods, matrix.values, strict=True)):
        cells = []
        for b, value in enumerate(line[:n]):
            text = "" if np.isnan(value) else cell_text(float(value), column)
            rank = float(matrix.ranks[at, b]) if at < k else None
            cells.append((text, "" if rank is None else f"{rank:g}", 0 if rank is None else 1 - (rank - 1) / (k - 1)))
        mean, ranks = matrix.place(at)
        rows.append(
            {"method": method, "mean": "" if mean is None else f"{mean:.1f}", "ranks": ranks or "", "cells": cells}
        )
    taus = [
        [
            None if a == b else (*(f"{number:.2f}" for number in matrix.taus[a, b]), max(0.0, matrix.taus[a, b, 0]))
            for b in range(n)
        ]
        for a in range(n)
    ]
    accuracy = [f"{100 * one.accuracy:.2f} %" if one.accuracy == one.accuracy else "" for one in matrix.networks[:n]]
    networks = [one.label for one in matrix.networks[:n]]
    return {"matrix": matrix, "networks": networks, "accuracy": accuracy, "rows": rows, "taus": taus}


def _matrix_pictures(matrix: Matrix) -> dict[str, str]:
    """{what it shows: SVG} of mean ranks, and of the metric against ID accuracy where that is known."""
    k, n = matrix.compared
    figures = {"mean-ranks": critical_difference(matrix.methods[:k], matrix.complete, matrix.name, matrix.view)}
    if len({network.accuracy for network in matrix.networks[:n] if network.accuracy == network.accuracy}) > 1:
        figures["accuracy"] = accuracy_picture(matrix)
    return {what: saved(figure, "svg").decode() for what, figure in figures.items()}
