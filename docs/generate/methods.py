"""A page for each post-hoc method, from its class, its config and the records."""

import inspect
from contextlib import suppress
from functools import cache

from generate.formula import sentence
from generate.markdown import Docstring, arxiv_linked, cell, code, hidden_contents, page, table
from generate.rows import differences_of, rows_of
from openbench.api.methods import beyond_features, chosen_method
from openbench.cli import registry
from openbench.cli.commands.listing import usage
from openbench.cli.registry import Entry, method_facts, parameters_of
from openbench.config.overrides import STREAM
from openbench.errors import OpenbenchError
from openbench.report.site.facts import MethodFacts
from openbench.results.records.settings import hyper_parameters

SPACE = "_space_"
FAMILIES = {
    "logits": "Logits alone",
    "features": "Features alone",
    "features and classifier": "Features and the classifier",
    "layers": "Maps of inner layers",
    "gradients or images": "Input gradients, or the network itself",
    "text": "Text",
}


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    entries = registry.entries("method")
    found = {f"method/{entry.name}": method(entry) for entry in entries}
    return {**found, "method/index": index(entries)}


def index(entries: list[Entry]) -> str:
    """All methods by what they read."""
    facts = _facts()
    parts = []
    for family, title in FAMILIES.items():
        rows = [
            (f"[{entry.name}]({entry.name}.md)", sentence(entry.about()[1]), entry.about()[0], _needs(entry))
            for entry in entries
            if _family(facts.get(entry.name)) == family
        ]
        parts.append(f"## {title}\n\n" + table(("method", "score", "year", "also needs"), rows) if rows else "")
    others = [entry for entry in entries if entry.name not in facts]
    rows = [(f"[{entry.name}]({entry.name}.md)", sentence(entry.about()[1])) for entry in others]
    parts.append("## Of extras that are not installed here\n\n" + table(("method", "score"), rows) if rows else "")
    lead = (
        f"The {len(entries)} post-hoc methods, by what they read. A score is larger for what looks more "
        "out-of-distribution. Any of them runs with"
    )
    example = code("python -m openbench run +benchmark=digits method=NAME")
    return page("Methods", lead, example, *parts, hidden_contents(entry.name for entry in entries))


def method(entry: Entry) -> str:
    """All about one method."""
    made_by, config = entry.made_by(), entry.config()
    text = Docstring.parse(inspect.getdoc(made_by) or "")
    space, known = config.get(SPACE) or {}, parameters_of(made_by)
    given = {k: hyper_parameters({"": v}).removeprefix("=") for k, v in config.items() if k[0] != "_"}
    parameters = [
        (
            f"`{name}`",
            f"`{default}`" if default else "",
            known.get(name, ("", ""))[1],
            ", ".join(hyper_parameters({"": v}).removeprefix("=") for v in space.get(name, ())),
            sentence(text.arguments.get(name, "")),
        )
        for name, default in ({name: default for name, (default, _) in known.items()} | given).items()
    ]
    settings = table(("name", "default", "allowed", "searched on validation", "meaning"), parameters)
    errors = [f"- `{name}`: {sentence(when)}" for name, when in text.raises.items()]
    reference = arxiv_linked(text.reference or getattr(made_by, "reference", ""))
    compared, measured = differences_of(str(config["_target_"])), rows_of(entry.name)
    return page(
        entry.name,
        f"*{sentence(text.summary)}*",
        text.body(),
        f"Reads: {entry.needs()}.",
        code(usage(entry, None)),
        "## Hyper-parameters\n\n" + settings if settings else "It has no hyper-parameters.",
        "## Errors\n\n" + "\n".join(errors) if errors else "",
        "## Source, and what differs from it\n\n" + reference if reference else "",
        "## Beside independent references\n\n" + compared if compared else "",
        "## Measured\n\n" + measured if measured else "",
        f"## Streams\n\n`method.{STREAM}.KEY=VALUE`: {hyper_parameters(config[STREAM])}." if STREAM in config else "",
        "## From Python\n\n" + code(_python(entry.name), "python"),
    )


def _python(name: str) -> str:
    told = f"""\
import openbench as ob

results = ob.evaluate(model, benchmark="digits", methods=["{name}"])   # your network"""
    with suppress(OpenbenchError):  # an extra that is not installed
        if beyond_features(chosen_method(name).method):
            return told
    return f"""{told}
scores = ob.method("{name}").fit(X, y, head=(W, b)).score(X_test)      # or your features"""


@cache
def _facts() -> dict[str, MethodFacts]:
    return method_facts()


def _family(facts: MethodFacts | None) -> str:
    return facts.reads if facts else ""


def _needs(entry: Entry) -> str:
    facts = _facts().get(entry.name)
    return cell(", ".join(facts.needs)) if facts else ""
