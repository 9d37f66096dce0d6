"""A page for each benchmark: its sets, how many images they list, where these come from and under which licence."""

from generate.formula import sentence
from generate.markdown import code, hidden_contents, page, table
from generate.sheets import sheet
from openbench.cli import registry
from openbench.cli.commands.data import benchmark_config
from openbench.cli.commands.listing import usage
from openbench.cli.registry import Entry
from openbench.core.request import Role
from openbench.data.build import survey
from openbench.data.dataset import Located
from openbench.data.download import DataSource, data_sources

ROLES = {
    Role.ID_TRAIN: "ID train",
    Role.ID_VAL: "ID validation",
    Role.ID_TEST: "ID test",
    Role.OOD_TRAIN: "outliers for training",
    Role.OOD_VAL: "validation OOD",
    Role.NEAR: "near OOD",
    Role.FAR: "far OOD",
    Role.CSID: "covariate-shifted ID",
}


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    entries = registry.entries("benchmark")
    sources = data_sources()
    return {"benchmark/index": index(entries)} | {
        f"benchmark/{entry.name}": benchmark(entry, sources) for entry in entries
    }


def index(entries: list[Entry]) -> str:
    """All benchmarks."""
    rows = [(f"[{entry.name}]({entry.name}.md)", sentence(entry.summary)) for entry in entries]
    lead = (
        "A benchmark says which images are in-distribution, which are out, and what may be used for what. It is named "
        "with `+benchmark=NAME`. Class lists of the two sides have nothing in common, and the same image on two sides "
        "is an error."
    )
    return page(
        "Benchmarks", lead, table(("name", "what it is"), rows), hidden_contents(entry.name for entry in entries)
    )


def benchmark(entry: Entry, sources: dict[str, DataSource]) -> str:
    """All about one benchmark."""
    config = benchmark_config([entry.name], None)
    sets = survey(config)
    rows = [
        (
            f"`{one.path}`",
            ROLES.get(one.role, str(one.role)),
            f"`{one.name}`",
            f"{one.expected:,}" if one.expected else "",
        )
        for one in sets
    ]
    return page(
        entry.name,
        sentence(entry.summary),
        code(usage(entry, None)),
        "## Sets\n\n" + table(("set", "role", "data set", "images listed"), rows),
        _origins(sets, sources),
        sheet(entry.name, sets),
        "## On your machine\n\n"
        + code(f"python -m openbench data list {entry.name}\npython -m openbench data verify {entry.name}"),
        "## The file\n\n" + code(entry.text, "yaml"),
    )


def _origins(sets: list[Located], sources: dict[str, DataSource]) -> str:
    names = dict.fromkeys(one.name for one in sets if one.name in sources)
    rows = []
    for name in names:
        source = sources[name]
        size = (
            "by hand" if not source.files else "size unknown" if source.size is None else f"{source.size / 1e6:,.0f} MB"
        )
        rows.append(
            (f"`{name}`", f"[{source.title}]({source.page})" if source.page else source.title, size, source.licence)
        )
    return (
        "## Where the images come from\n\n" + table(("data set", "title", "download", "licence"), rows) if rows else ""
    )
