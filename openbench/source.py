"""What code an object comes from: its class's module and what that imports, as it was loaded; read, never executed.

What openbench ships is identified by name and version. Foreign code is identified by its files: the module of each
class or function and, through all imports, the modules beside it. Where the code that was loaded is not that of its
file (which was edited since, or a function of it was replaced), the loaded code counts. Files that this
code only opens (weights, tables) and values that it changes while it runs do not: the probes ask for what they do.
"""

import ast
import inspect
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

from openbench.digest import digest, file_sha256

OURS = "openbench"
# The versions of libraries are in the provenance.
_LIBRARIES = frozenset(
    {"torch", "torchvision", "numpy", "scipy", "sklearn", "faiss", "timm", "open_clip", "PIL"}
    | {"transformers", "huggingface_hub", "onnxruntime"}
)
_KNOWN = frozenset({OURS, *sys.stdlib_module_names}) | _LIBRARIES
LOADED = "loaded "  # what the SHA-256 of code that is not in its file begins with
_MAKERS = "makers_"
_NONCE = "nonce_"
_INSTALLED = ("site-packages", "dist-packages")
_STDLIB = Path(sysconfig.get_paths()["stdlib"]).resolve()

Code = type | Callable[..., Any]
_Functions = Mapping[str, tuple[CodeType, ...]]  # by qualified name, of which one may have several
# Module → its spec, which a reload replaces, and its file's SHA-256 and functions when it was as the file says.
_FIRST: dict[str, tuple[Any, str, _Functions]] = {}


def foreign_sources(*parts: object) -> dict[str, str]:
    """Return {module: SHA-256 of its file} of the code behind some parts that is not as openbench ships it.

    This covers the classes of the parts, their bases and the classes of what they hold, the functions that made them,
    and the modules beside these that they import, at the top or later. A class without a file, e.g. one that was typed
    into a session, gets a random word that belongs to this object: what it makes never equals what was made before. A
    class of openbench counts only if its code was replaced.

    Args:
        *parts: methods, trainings, backbones, data sources, or classes and functions.
    """
    starts: dict[str, Path] = {}
    found: dict[str, str] = {}
    codes: dict[str, dict[str, Code]] = {}
    for part in parts:
        for code in classes_of(part):
            file, top = file_of(code), _top(code.__module__)
            if top in _LIBRARIES or top in sys.stdlib_module_names:
                continue
            codes.setdefault(code.__module__, {})[code.__qualname__] = code
            if file is None:
                if top != OURS:
                    found[f"{code.__module__}.{code.__qualname__}"] = f"unknown {_nonce(part)}"
            elif top != OURS:
                starts[code.__module__] = file
            elif (sha256 := loaded_sha256(code.__module__, file, codes[code.__module__])).startswith(LOADED):
                found[code.__module__] = sha256
    found |= {name: loaded_sha256(name, file, codes.get(name, {})) for name, file in closure(starts).items()}
    return dict(sorted(found.items()))


def loaded_sha256(name: str, file: Path, codes: Mapping[str, Code] | None = None) -> str:
    """Return the SHA-256 of the file of a module as it was when it was loaded; of its functions if that is gone.

    Args:
        name: of the module.
        file: its source.
        codes: classes and functions of it by qualified name that are in use, though the module may have others now.
    """
    module, state = sys.modules.get(name), _state(file)
    spec = getattr(module, "__spec__", None)
    if module is None or (spec is not None and type(spec.loader) is not SourceFileLoader):
        return _sha256(file, *state)
    spaces = {**vars(module), **(codes or {})}
    now = spec, _sha256(file, *state), _functions_of(file, *state)
    first: tuple[Any, str, _Functions] = _FIRST.get(name, now)
    found: dict[str, str] = {}
    for _, sha256, functions in (first, now) if first[0] is spec else (now,):
        if not (found := _replaced(spaces, functions, module.__file__ or str(file))):
            _FIRST[name] = spec, sha256, functions
            return sha256
    return LOADED + digest(found)


def changed_since_loaded(sources: Mapping[str, str]) -> list[str]:
    """Return the modules among sources whose file is not the code that was loaded, or no longer."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sources}
    there = {
        name: _sha256(Path(file), *_state(Path(file))) for name, file in files.items() if file and Path(file).is_file()
    }
    return [name for name, sha256 in there.items() if sha256 != sources[name]]


def _replaced(spaces: Mapping[str, Any], functions: _Functions, file: str) -> dict[str, str]:
    """What is loaded of a module's functions, if any of them is not as in its source; else empty."""
    loaded = {name: code for name in functions if (code := _code_of(_found(spaces, name))) is not None}
    for owner in [value for value in spaces.values() if isinstance(value, type)]:
        for code in filter(None, map(_code_of, vars(owner).values())):
            if code.co_filename == file:
                loaded.setdefault(code.co_qualname, code)
    same = all(code in functions.get(name, ()) for name, code in loaded.items())
    return {} if same else {name: repr(_content(code)) for name, code in loaded.items()}


def _found(spaces: Mapping[str, Any], name: str) -> Any:
    """What stands in a module under a qualified name; None where nothing does."""
    owner, _, attribute = name.rpartition(".")
    if name in spaces or not owner:
        return spaces.get(name)
    there = _found(spaces, owner)
    return vars(there).get(attribute) if isinstance(there, type) else None


def _code_of(value: Any) -> CodeType | None:
    """The code of a function, also one that is decorated; None of anything else."""
    for attribute in ("__func__", "fget", "func"):
        value = getattr(value, attribute, value)
    return getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None


def _content(code: CodeType) -> tuple[Any, ...]:
    """What a function does, without the address that its code is at."""
    consts = [_content(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts]
    return code.co_code.hex(), code.co_names, code.co_varnames, consts


def unknown_sources(sources: Mapping[str, str]) -> list[str]:
    """Return the names of classes among sources that have no file to read."""
    return [name for name, sha256 in sources.items() if sha256.startswith("unknown")]


def foreign_code(part: object) -> list[Code]:
    """Return the classes and functions behind a part that come from outside openbench, Python and known libraries."""
    return [code for code in classes_of(part) if _top(code.__module__) not in _KNOWN]


def own_modules(*parts: object) -> set[str]:
    """Return the modules of openbench that hold the classes of parts, of their bases and of what they hold."""
    return {code.__module__ for part in parts for code in classes_of(part) if _top(code.__module__) == OURS}


def classes_of(part: object, bases: bool = True) -> list[Code]:
    """Return the classes of a part and of what it holds, with their bases, and functions that made them.

    Args:
        part: an object, or a class or function itself.
        bases: whether the classes that these derive from belong to it.
    """
    found: dict[Code, None] = {}
    for code in _held(part, {}):
        found |= dict.fromkeys(code.__mro__ if bases and isinstance(code, type) else (code,))
    return list(found)


def note_maker(made: object, maker: Code, values: Iterable[object]) -> None:
    """Note on an object the foreign functions that made it or its arguments; a class is known from the object.

    Args:
        made: what the maker returned.
        maker: a class or function.
        values: what the maker was given.
    """
    makers = [maker] if not isinstance(maker, type) and _top(maker.__module__) not in _KNOWN else []
    makers += [noted for value in values for noted in makers_of(value)]
    if makers:
        with suppress(TypeError, AttributeError):  # an object without room for notes
            object.__setattr__(made, _MAKERS, tuple(dict.fromkeys((*makers_of(made), *makers))))


def makers_of(made: object) -> tuple[Code, ...]:
    """Return the foreign functions that made an object or its arguments."""
    return tuple(getattr(made, _MAKERS, ()))


def file_of(code: Code) -> Path | None:
    """Return the file that defines a class or function; None for one that was typed into a session."""
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
    if file is None:
        with suppress(TypeError, OSError):
            file = inspect.getsourcefile(code)
    return Path(file).resolve() if file and Path(file).is_file() else None


def closure(starts: Mapping[str, Path], ours: bool = False) -> dict[str, Path]:
    """Return {module: file} of modules and of all that they import from beside themselves.

    A module is beside another if it belongs to the same top-level package, or if it is not installed: it then lies in
    the same folder or elsewhere on Python's path.

    Args:
        starts: {module: file} to begin with.
        ours: whether openbench's own modules are followed too.
    """
    found: dict[str, Path] = {}
    pending = list(starts.items())
    while pending:
        name, file = pending.pop()
        if name in found or not file.is_file():
            continue
        found[name] = file
        package = file.stem == "__init__"
        for level, module, imported in _imports_of(file, *_state(file)):
            base = name.split(".")[: name.count(".") + 1 - level + package] if level else []
            wanted = ".".join(part for part in (*base, module, imported) if part)
            if _top(wanted) == OURS and not ours:
                continue  # before it is looked for: most imports of a method of one's own are of openbench
            for other, there in _resolved(wanted, name, file, package):
                if other not in found and _counts(other, there, name):
                    pending.append((other, there))
    return found


def _held(value: object, seen: dict[int, object]) -> Iterator[Code]:
    """The classes and functions of a value and of what it holds, except values in `seen`, which keeps them alive."""
    if id(value) in seen or value is None or isinstance(value, str | int | float | bytes):
        return
    seen[id(value)] = value
    if isinstance(value, Mapping):
        for child in value.values():
            yield from _held(child, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for child in value:
            yield from _held(child, seen)
    elif isinstance(value, partial):
        for child in (value.func, value.args, value.keywords):
            yield from _held(child, seen)
    elif isinstance(value, type) or inspect.isfunction(value):
        yield value
    elif inspect.ismethod(value):
        yield from _held(value.__func__, seen)
        yield from _held(value.__self__, seen)
    else:
        yield type(value)
        yield from makers_of(value)
        yield from _held(getattr(value, "made_of", ()), seen)
        if is_dataclass(value):
            for child in fields(value):
                yield from _held(getattr(value, child.name, None), seen)


def _nonce(part: object) -> str:
    """A random word, the same for one object as long as it lives."""
    with suppress(TypeError, AttributeError):
        if _NONCE not in vars(part):
            object.__setattr__(part, _NONCE, secrets.token_hex(8))
        return str(vars(part)[_NONCE])
    return secrets.token_hex(8)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _installed(file: Path) -> bool:
    return any(part in _INSTALLED for part in file.parts) or _STDLIB in file.parents


def _counts(module: str, file: Path, importer: str) -> bool:
    top = _top(module)
    if top == OURS:
        return True
    if top in _KNOWN:
        return False
    return top == _top(importer) or not _installed(file)


def _state(file: Path) -> tuple[int, int, int]:
    state = os.stat(file)
    return state.st_mtime_ns, state.st_size, state.st_ino


@cache
def _sha256(file: Path, *state: int) -> str:
    """Read once in a state."""
    return file_sha256(file)


@cache
def _imports_of(file: Path, *state: int) -> tuple[tuple[int, str, str], ...]:
    """(level, module, name) of every import in a file in a state."""
    tree = _tree(file)
    return tuple(dict.fromkeys(_imports(tree))) if tree else ()


@cache
def _functions_of(file: Path, *state: int) -> _Functions:
    """The functions that a file defines in a state."""
    tree, found = _tree(file), dict[str, tuple[CodeType, ...]]()
    pending = [compile(tree, file, "exec", dont_inherit=True)] if tree else []
    while pending:
        for code in pending.pop().co_consts:
            if isinstance(code, CodeType):
                found[code.co_qualname] = (*found.get(code.co_qualname, ()), code)
                pending.append(code)
    return found


def _tree(file: Path) -> ast.Module | None:
    """The syntax of a file; None where it has none: of a library, or of what cannot be imported either."""
    with suppress(SyntaxError, ValueError):
        return ast.parse(file.read_bytes()) if file.suffix == ".py" else None
    return None


def _imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            named = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if isinstance(named, str):
                yield len(named) - len(named.lstrip(".")), named.lstrip("."), ""


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a module except those below `if TYPE_CHECKING`, which only type checkers read."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            pending += node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def _resolved(wanted: str, importer: str, file: Path, package: bool) -> Iterator[tuple[str, Path]]:
    """The modules that an import of a dotted name executes: each package on the way, and the module."""
    parts = wanted.split(".")
    if parts[0] in _LIBRARIES or parts[0] in sys.stdlib_module_names:
        return
    folders = _folders(parts[0], importer, file, package)
    for depth, part in enumerate(parts, 1):
        there, folders = _below(folders, part)
        if there is not None:
            yield ".".join(parts[:depth]), there
        if not folders:
            return


def _folders(top: str, importer: str, file: Path, package: bool) -> tuple[Path, ...]:
    """Where an outermost name is looked for: where Python finds it, else beside the outermost package of a file."""
    root = file.parents[importer.count(".") + package]
    if top == _top(importer):
        return (root,)
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(top)
        if spec is not None and spec.submodule_search_locations:
            return tuple(Path(folder).resolve().parent for folder in spec.submodule_search_locations)
        if spec is not None and spec.origin and Path(spec.origin).is_file():
            return (Path(spec.origin).resolve().parent,)
    return (root,)


def _below(folders: Iterable[Path], part: str) -> tuple[Path | None, tuple[Path, ...]]:
    """The file of a module in one of some folders, and the folders of its own modules if it is a package."""
    for folder in folders:
        if (folder / part / "__init__.py").is_file():
            return folder / part / "__init__.py", (folder / part,)
        for suffix in (".py", *EXTENSION_SUFFIXES):
            if (folder / f"{part}{suffix}").is_file():
                return folder / f"{part}{suffix}", ()
    return None, tuple(folder / part for folder in folders if (folder / part).is_dir())
