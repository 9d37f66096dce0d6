"""Pages of the config groups: one for each training and augmentation, one with all entries for each of the others."""

import inspect
from typing import Any

from generate.formula import sentence
from generate.markdown import Docstring, arxiv_linked, code, hidden_contents, page, table
from generate.rows import rows_of_training
from openbench.cli import registry
from openbench.cli.commands.listing import usage
from openbench.cli.registry import Entry, parameters_of
from openbench.config.build import target_of
from openbench.config.folders import shipped

APART = ("method", "benchmark", "training", "augment")  # with a page for each entry
TITLES = {
    "training": "Trainings",
    "augment": "Augmentations",
    "metrics": "Metric options",
    "recipe": "Recipes",
    "tune": "Tuning",
    "runtime": "Runtime",
}
LEADS = {
    "training": "How a backbone without released weights is trained. Each names the method that its paper scores "
    "with; `+scorer=published` takes it.",
    "augment": "What is done to training images. They are put before those of the recipe with `+augment=NAME`.",
    "backbone": "Networks by name. `python -m openbench list backbone` shows the same in a terminal; one's own is an "
    "entry of this group too.",
    "dataset": "Sets of images from which benchmarks are made. Which of their images belong to a set is in the "
    "manifest that the benchmark names.",
}


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    found = {}
    for group in registry.groups():
        entries = registry.entries(group)
        if group in ("method", "benchmark"):
            continue
        if group in APART:
            found |= {f"{group}/{entry.name}": apart(entry) for entry in entries}
        found[f"{group}/index"] = together(group, entries)
    return found


def together(group: str, entries: list[Entry]) -> str:
    """All entries of a group."""
    title, lead = TITLES.get(group, group.capitalize() + "s"), LEADS.get(group, "")
    if group in APART:
        rows = [(f"[{entry.name}]({entry.name}.md)", sentence(entry.summary)) for entry in entries]
        return page(title, lead, table(("name", "what it is"), rows), hidden_contents(entry.name for entry in entries))
    parts = [f"## {entry.name}\n\n{sentence(entry.summary)}\n\n{code(entry.text, 'yaml')}" for entry in entries]
    return page(title, lead, *parts)


def apart(entry: Entry) -> str:
    """All about one training or augmentation."""
    node: dict[str, Any] = shipped(entry.group, entry.name) or entry.config()
    made_by = target_of(node) if "_target_" in node else None
    text = Docstring.parse((inspect.getdoc(made_by) or "") if made_by else "")
    parameters = parameters_of(made_by) if made_by else {}
    defaults = {name: default for name, (default, _) in parameters.items()}
    defaults |= {name: str(value) for name, value in node.items() if _is_parameter(name)}
    rows = [
        (
            f"`{name}`",
            f"`{value}`" if value else "",
            parameters.get(name, ("", ""))[1],
            sentence(text.arguments.get(name, "")),
        )
        for name, value in defaults.items()
    ]
    settings = table(("name", "default", "allowed", "meaning"), rows)
    measured = rows_of_training(entry.name) if entry.group == "training" else ""
    return page(
        entry.name,
        f"*{sentence(entry.summary)}*",
        sentence(text.summary),
        text.body(),
        code(usage(entry, None)),
        "## Parameters\n\n" + settings if settings else "",
        "## Source, and what differs from it\n\n" + arxiv_linked(text.reference) if text.reference else "",
        "## Measured\n\n" + measured if measured else "",
        "## The file\n\n" + code(entry.text, "yaml"),
    )


def _is_parameter(name: str) -> bool:
    return not name.startswith("_") and name not in ("recipe", "defaults")
