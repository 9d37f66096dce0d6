"""What a method's class says about itself, read from its source: nothing is imported, so torch is not either.

To ask the classes would be shorter, but `list` and `show` would take seconds for torch, and would run the code of
whatever folder a user names. An index that is made by importing could hold our own methods alone: the rest would still
be read here, and the index would be one more thing to be out of date.
"""

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openbench
from openbench.cli.annotation_source import allowed
from openbench.errors import ConfigError

_YEAR = re.compile(r"(?<![\d./])(?:19|20)\d{2}(?![\d.]*\d)")
_ARXIV = re.compile(r"\b(\d{2})(?:0[1-9]|1[0-2])\.\d{4,5}\b")


@dataclass(frozen=True)
class Needs:
    """A Request as text.

    Args:
        fields: e.g. `("features", "labels")`.
        fit_on: e.g. `id_train`; None if there is nothing to fit.
        head: whether the classifier's weights are used.
        layers: maps that are read.
        pool: how maps are reduced.
        perturb: whether an input-gradient step is made.
        images: whether the method runs the network itself.
        texts: whether embeddings of text are read.
    """

    fields: tuple[str, ...] = ("logits",)
    fit_on: str | None = None
    head: bool = False
    layers: tuple[str, ...] = ()
    pool: str = "none"
    perturb: bool = False
    images: bool = False
    texts: bool = False

    def __str__(self) -> str:
        parts = ["images"] if self.images else [", ".join(self.fields)]
        parts += [f"{', '.join(self.layers)} ({self.pool})"] if self.layers else []
        parts += ["head"] if self.head else []
        parts += ["input gradient"] if self.perturb else []
        parts += [f"fit on {self.fit_on}"] if self.fit_on else []
        return "; ".join(parts)


@dataclass(frozen=True)
class MethodSource:
    """A method class as its source describes it.

    Args:
        docstring: cleaned of indentation.
        reference: the class variable, empty if there is none.
        needs: what it asks for.
        parameters: {hyper-parameter: default in the code as text, empty if there is none}.
        ranges: {hyper-parameter: what its annotation allows, in words, empty if that cannot be told}.
        path: the file.
    """

    docstring: str
    reference: str
    needs: Needs
    parameters: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    path: Path = Path()

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.docstring.split("\n", 1)[0]

    @property
    def year(self) -> str:
        """The year in the reference, else that of its arXiv id; empty if it names none."""
        if match := _YEAR.search(self.reference):
            return match.group()
        return f"20{match.group(1)}" if (match := _ARXIV.search(self.reference)) else ""


@dataclass(frozen=True)
class _Module:
    name: str
    path: Path
    tree: ast.Module


@dataclass(frozen=True)
class _Class:
    module: _Module
    node: ast.ClassDef


def method_source(target: str, folders: Sequence[Path] = ()) -> MethodSource:
    """Read the class that a `_target_` names.

    Args:
        target: dotted, e.g. `openbench.methods.knn.KNN`.
        folders: where modules are looked for besides Python's path.

    Raises:
        ConfigError: no such module or class, or its file is not Python.
    """
    module, _, name = target.rpartition(".")
    found = _find_class(module, name, folders)
    if found is None:
        raise ConfigError(
            f"source of '{target}' not found — looked on Python's path for a module '{module}' with a class '{name}' — "
            "correct `_target_` in the method's yaml, or install the package"
        )
    family = list(_family(found, folders))
    reference = _assigned(family, "reference")
    given = _parameters(family, folders)
    return MethodSource(
        docstring=ast.get_docstring(found.node) or "",
        reference=_text(reference),
        needs=_needs(family, folders),
        parameters={name: "" if value is None else ast.unparse(_default(value)) for name, (value, _) in given.items()},
        ranges={name: text for name, (_, text) in given.items()},
        path=found.module.path,
    )


# A list of methods needs the same bases many times. Nothing changes the trees, so they can be shared.
_parsed = functools.cache(ast.parse)


def _module(name: str, folders: Sequence[Path]) -> _Module | None:
    parts = name.split(".")
    roots = [Path(openbench.__file__).parent.parent, *folders, *(Path(entry or ".") for entry in sys.path)]
    for root in roots:
        base = root.joinpath(*parts)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if name and path.is_file():
                try:
                    return _Module(name, path, _parsed(path.read_text(encoding="utf-8")))
                except (SyntaxError, UnicodeDecodeError) as error:
                    raise ConfigError(f"{path}: not valid Python — {error} — correct the file") from error
    return None


def _find_class(module: str, name: str, folders: Sequence[Path], depth: int = 0) -> _Class | None:
    """The class, followed through `from … import` up to where it is defined."""
    source = _module(module, folders)
    if source is None or depth > 8:
        return None
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Class(source, node)
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _find_class(_absolute(node, source), alias.name, folders, depth + 1)
    return None


def _absolute(node: ast.ImportFrom, source: _Module) -> str:
    package = source.name if source.path.name == "__init__.py" else source.name.rpartition(".")[0]
    relative = "." * node.level + (node.module or "")
    return importlib.util.resolve_name(relative, package) if node.level else relative


def _family(found: _Class, folders: Sequence[Path]) -> Iterator[_Class]:
    """The class and its bases, nearest first."""
    yield found
    for base in found.node.bases:
        if isinstance(base, ast.Name) and base.id not in ("ABC", "object"):
            parent = _find_class(found.module.name, base.id, (*folders, found.module.path.parent))
            if parent is not None:
                yield from _family(parent, folders)


def _assigned(family: Sequence[_Class], name: str) -> ast.expr | None:
    """The value of a class variable, from the nearest class that sets it."""
    return next((value for member in family for key, value in _assignments(member.node.body) if key == name), None)


def _assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _needs(family: Sequence[_Class], folders: Sequence[Path]) -> Needs:
    value = _assigned(family, "needs")
    keywords = _keywords(value, family, folders) if value is not None else {}
    known = {"fields", "fit_on", "head", "layers", "pool", "perturb", "second_pass", "texts"}
    texts = {key: ast.unparse(node) for key, node in keywords.items() if key in known}
    # A live method may read nothing but images: `frozenset()`.
    fields = re.findall(r"Field\.(\w+)", texts.get("fields", "Field.LOGITS"))
    fit_on = re.search(r"Role\.(\w+)", texts.get("fit_on", ""))
    in_request = any(
        isinstance(node, ast.FunctionDef) and node.name == "request" and "perturb" in ast.unparse(node)
        for member in family
        for node in member.node.body
    )
    return Needs(
        fields=tuple(sorted(name.lower() for name in fields)),
        fit_on=fit_on.group(1).lower() if fit_on else None,
        head=texts.get("head") == "True",
        layers=tuple(re.findall(r"'(\w+)'", texts.get("layers", ""))),
        pool=texts.get("pool", "none").strip("'"),
        perturb=any(texts.get(key, "None") != "None" for key in ("perturb", "second_pass")) or in_request,
        images=any(member.node.name == "LiveMethod" for member in family),
        texts="texts" in texts,
    )


def _keywords(value: ast.expr, family: Sequence[_Class], folders: Sequence[Path]) -> dict[str, ast.expr]:
    """The keywords of `Request(…)` or `replace(Base.needs, …)`, also behind a name at the top of the module."""
    if isinstance(value, ast.Name):
        named = dict(_assignments(family[0].module.tree.body)).get(value.id)
        return {} if named is None else _keywords(named, family, folders)
    if isinstance(value, ast.Attribute) and value.attr == "needs" and isinstance(value.value, ast.Name):
        owner = _find_class(family[0].module.name, value.value.id, folders)
        bases = [] if owner is None else list(_family(owner, folders))
        inherited = _assigned(bases, "needs")
        return {} if inherited is None else _keywords(inherited, bases, folders)
    if not isinstance(value, ast.Call):
        return {}
    start: dict[str, ast.expr] = {}
    if ast.unparse(value.func).endswith("replace") and value.args:
        start = _keywords(value.args[0], family, folders)
    behind = dict(_assignments(family[0].module.tree.body))
    given = {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
    return start | {
        key: behind.get(node.id, node) if isinstance(node, ast.Name) else node for key, node in given.items()
    }


def _parameters(family: Sequence[_Class], folders: Sequence[Path]) -> dict[str, tuple[ast.expr | None, str]]:
    """The default and the range of each dataclass field, bases first; a field set again keeps its place."""
    found: dict[str, tuple[ast.expr | None, str]] = {}
    for member in reversed(family):
        if not any("dataclass" in ast.unparse(decorator) for decorator in member.node.decorator_list):
            continue
        for node in member.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if "ClassVar" not in ast.unparse(node.annotation):
                look_up = functools.partial(_named, member.module, folders=(*folders, member.module.path.parent))
                found[node.target.id] = (node.value, allowed(node.annotation, look_up))
    return found


def _named(source: _Module, name: str, folders: Sequence[Path]) -> ast.expr | None:
    """The expression behind a name at the top of a module, followed through imports but for those of constraints."""
    for found, value in _assignments(source.tree.body):
        if found == name:
            return value
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom) and _absolute(node, source).startswith("openbench.methods."):
            for alias in node.names:
                other = _module(_absolute(node, source), folders) if (alias.asname or alias.name) == name else None
                if other is not None:
                    return _named(other, alias.name, folders)
    return None


def _default(value: ast.expr) -> ast.expr:
    """What a field is without being given: the `default` of a call to `field`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return next((keyword.value for keyword in value.keywords if keyword.arg == "default"), value)
    return value


def _text(value: ast.expr | None) -> str:
    if value is None:
        return ""
    try:
        return str(ast.literal_eval(value))
    except ValueError:
        return ast.unparse(value)
