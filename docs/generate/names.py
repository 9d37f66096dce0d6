"""The Python face: a page for each public name, from its signature and docstring."""

import enum
import importlib
import inspect
from typing import Any

import openbench as ob
from generate.formula import sentence
from generate.markdown import Docstring, arxiv_linked, code, hidden_contents, page

WIDTH = 90
MODULES = ("metrics", "testing")


def pages() -> dict[str, str]:
    """Return {path below the part: page}."""
    names = [name for name in ob.__all__ if not name.startswith("_") and name not in MODULES]
    found = {f"python/{name}": _page(f"openbench.{name}", getattr(ob, name)) for name in names}
    for name in MODULES:
        module = importlib.import_module(f"openbench.{name}")
        found[f"python/{name}"] = _module(module)
    lead = "What `import openbench as ob` offers. The import itself loads neither torch nor pandas."
    rows = [f"- [`ob.{name}`]({name}.md): {_summary(getattr(ob, name))}" for name in (*names, *MODULES)]
    found["python/index"] = page("Python", lead, "\n".join(rows), hidden_contents((*names, *MODULES)))
    return found


def _module(module: Any) -> str:
    parts = [
        f"## {name}\n\n{_described(getattr(module, name), name, 3)}"
        for name in sorted(module.__all__)
        if not inspect.ismodule(getattr(module, name))
    ]
    text = Docstring.parse(inspect.getdoc(module) or "")
    return page(module.__name__, sentence(text.summary), text.body(), *parts)


def _page(title: str, thing: Any) -> str:
    return page(title, _described(thing, title.replace("openbench.", "ob."), 2))


def _described(thing: Any, name: str, level: int) -> str:
    parts = []
    signature = _signature(thing, name)
    if signature:
        parts.append(code(signature, "python"))
    parts.append(_text(inspect.getdoc(thing) or "", level))
    if inspect.isclass(thing):
        parts += [
            f"{'#' * level} {member}\n\n{_described(value, member, level + 1)}"
            for member, value in _members(thing)
            if inspect.getdoc(value)
        ]
    return "\n\n".join(part for part in parts if part)


def _text(docstring: str, level: int) -> str:
    text = Docstring.parse(docstring)
    arguments = [f"`{name}`\n: {sentence(told)}\n" for name, told in text.arguments.items()]
    errors = [f"`{name}`\n: {sentence(when)}\n" for name, when in text.raises.items()]
    returned = text.sections.get("Returns", "")
    parts = [
        sentence(text.summary),
        text.body(),
        "**Arguments**\n\n" + "\n".join(arguments) if arguments else "",
        "**Returns** " + sentence(returned) if returned else "",
        "**Errors**\n\n" + "\n".join(errors) if errors else "",
        "**Reference** " + arxiv_linked(text.reference) if text.reference else "",
    ]
    return "\n\n".join(part for part in parts if part.strip())


def _signature(thing: Any, name: str) -> str:
    if isinstance(thing, property) or (inspect.isclass(thing) and issubclass(thing, enum.Enum)):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    shown = [_named(one.replace(annotation=inspect.Parameter.empty)) for one in signature.parameters.values()]
    text = f"{name}{signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)}"
    if len(text) <= WIDTH:
        return text
    inner, starred = [], False
    for parameter in shown:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            inner += [] if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in shown) else ["*"]
        inner.append(str(parameter))
    return name + "(\n" + "".join(f"    {one},\n" for one in inner) + ")"


class _Name(str):
    """A text that is shown without quotes."""

    __repr__ = str.__str__


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter, with a function as its default shown by its name: not by where it lies in memory."""
    return (
        parameter.replace(default=_Name(parameter.default.__name__))
        if inspect.isfunction(parameter.default)
        else parameter
    )


def _members(thing: type) -> list[tuple[str, Any]]:
    found = []
    for name, value in vars(thing).items():
        if name.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(plain) or isinstance(plain, property):
            found.append((name, plain))
    return found


def _summary(thing: Any) -> str:
    return sentence(Docstring.parse(inspect.getdoc(thing) or "").summary)
