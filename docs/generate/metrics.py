"""A page for each metric: formula from `metrics.yaml`, the rest from the function that computes it and its key."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import yaml

from generate.formula import sentence
from generate.markdown import Docstring, arxiv_linked, hidden_contents, page, table
from openbench.metrics.keys import bounds, higher_is_better

FILE = Path(__file__).parents[1] / "metrics.yaml"
FAMILIES = ("ranking", "threshold", "selective", "conformal", "prediction sets", "calibration", "counts")


@dataclass(frozen=True)
class Metric:
    """An entry of `metrics.yaml`.

    Args:
        name: its title.
        slug: its page.
        family: which family of metrics it belongs to.
        keys: a pattern of the keys of records.
        example: one of them.
        function: below `openbench.metrics`.
        formula: in TeX.
    """

    name: str
    slug: str
    family: str
    keys: str
    example: str
    function: str
    formula: str

    def docstring(self) -> Docstring:
        """What the function says about itself."""
        return Docstring.parse(inspect.getdoc(resolve_name(f"openbench.metrics.{self.function}")) or "")

    @property
    def direction(self) -> str:
        """Which way is better."""
        return {True: "larger is better", False: "smaller is better", None: "no direction"}[
            higher_is_better(self.example)
        ]


def entries() -> list[Metric]:
    """Return all entries."""
    return [Metric(**entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))]


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    found = entries()
    return {"metric/index": index(found)} | {f"metric/{entry.slug}": metric(entry) for entry in found}


def index(found: list[Metric]) -> str:
    """All metrics by family."""
    parts = []
    for family in FAMILIES:
        rows = [
            (f"[{one.name}]({one.slug}.md)", f"`{one.example}`", one.direction) for one in found if one.family == family
        ]
        parts.append(f"## {family.capitalize()}\n\n" + table(("metric", "a key of it", "direction"), rows))
    lead = (
        "Metrics take ID scores and OOD scores as two arrays, so that neither a label nor a sign can be swapped. "
        "`near` and `far` are means over their sets; a key that begins with `pooled_` is that of the pooled sets; "
        "`_low` and `_high` are the ends of its 95 % interval."
    )
    return page("Metrics", lead, *parts, hidden_contents(one.slug for one in found))


def metric(entry: Metric) -> str:
    """All about one metric."""
    text = entry.docstring()
    facts = table(
        ("key", "direction", "range", "function"),
        [(f"`{entry.example}`", entry.direction, str(bounds(entry.example)), f"`openbench.metrics.{entry.function}`")],
    )
    return page(
        entry.name,
        sentence(text.summary),
        f"$$\n{entry.formula}\n$$",
        text.body(),
        facts,
        "## Source, and what differs from it\n\n" + arxiv_linked(text.reference) if text.reference else "",
    )
