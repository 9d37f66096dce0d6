"""Everything that a study shows: its tables in every format, and its pictures."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from openbench.core.record import ResultRecord
from openbench.report.style import save
from openbench.results.comparisons.kept import OnLost
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import rendered
from openbench.studies.cells import Asked, Cell, archive_of, cells
from openbench.studies.layout.chart import files as chart_files
from openbench.studies.layout.chart import summary
from openbench.studies.layout.curves import charts
from openbench.studies.layout.kept import check_options, kept_tables, pictures
from openbench.studies.layout.paired import paired
from openbench.studies.layout.sheet import paired_sheet, sheets
from openbench.studies.layout.write import texts
from openbench.studies.mixture import mixture_cells
from openbench.studies.study import Study

SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}
_KEPT = ("rejection", "thresholds")


@dataclass(frozen=True)
class Sources:
    """Where a study's numbers come from.

    Args:
        records: reads them, as often as it is called.
        scores: the kept scores.
        on_lost: receives an error for each run whose scores cannot be read.
    """

    records: Callable[[], Iterator[ResultRecord]]
    scores: ScoreStore
    on_lost: OnLost


class Outputs:
    """What a study shows.

    Args:
        study: narrowed or not.
        asked: on the command line.
        sources: where its numbers come from.
    """

    def __init__(self, study: Study, asked: Asked, sources: Sources) -> None:
        check_options(study)
        self._study, self._sources, self._named = study, sources, " ".join(asked.words)
        measured = study.layout != "mixture"
        self._cells = cells(study, asked, archive_of(study, asked, sources.records())) if measured else []
        self._cells = self._cells or mixture_cells(study)
        self._texts = self._kept() if study.layout in _KEPT else self._measured()
        self._charts = charts(study, self._cells, sources.scores)

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells, row by row."""
        return self._cells

    def text(self, form: str) -> str:
        """Return the tables in a format: console, markdown, latex or csv; that of curves is a file of its own."""
        told = [] if form == "csv" else rendered([summary(chart) for chart in self._charts], form)
        return "\n".join([self._texts[form](), *told])

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (what is appended to the study's name, content) of every file."""
        from openbench.studies.layout.picture import draw

        for form, suffix in SUFFIXES.items():
            yield f".{suffix}", self.text(form).encode()
        picture = draw(self._study, self._cells, self._named)
        if picture is not None:
            yield ".png", picture
        for chart in self._charts:
            yield from ((f"-{chart.kind}{suffix}", content) for suffix, content in chart_files(chart))
        for name, figure in pictures(self._study, self._cells, self._sources.scores):
            stream = io.BytesIO()
            save(figure, stream, "png")
            yield f"-{name}.png", stream.getvalue()

    def _measured(self) -> dict[str, Callable[[], str]]:
        study, found = self._study, self._cells
        every = sheets(study, found, self._named)
        if study.test and len(found) > 1 and any(cell.ours is not None for line in found for cell in line):
            every.append(paired_sheet(study, paired(study, found, self._sources.scores.read), self._named))
        return texts(every, found)

    def _kept(self) -> dict[str, Callable[[], str]]:
        wanted = {made.run.run_id for made in _made(self._cells)}
        records = [record for record in self._sources.records() if record.run_id in wanted]
        tables = kept_tables(self._study, self._cells, records, self._sources.scores, self._sources.on_lost)
        return {form: (lambda form=form: "\n".join(rendered(tables, form))) for form in ("console", *SUFFIXES)}  # type: ignore[misc]


def _made(cells: Sequence[Sequence[Cell]]) -> Iterator:  # type: ignore[type-arg]
    return (made for line in cells for cell in line for made in cell.made.values())
