"""What code an object comes from: its class's module and what that imports, as it was loaded; read, never executed.

What openbench ships is identified by name and version. Foreign code is identified by its files: the module of each
class or function and, through all imports, the modules beside it. Where the code that was loaded is not that of its
file (which was edited since, or a function of it was replaced), the loaded code counts. Files that this
code only opens (weights, tables) and values that it changes while it runs do not: the probes ask for what they do.
"""

import ast
import inspect
import marshal
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

from openbench.digest import bytes_sha256, digest, file_sha256

OURS = "openbench"
# The versions of libraries are in the provenance.
_LIBRARIES = frozenset(
    {"torch", "torchvision", "numpy", "scipy", "sklearn", "faiss", "timm", "open_clip", "PIL"}
    | {"transformers", "huggingface_hub", "onnxruntime", *sys.stdlib_module_names}
)
LOADED = "loaded "  # what the SHA-256 of code that is not in its file begins with
_MAKERS = "makers_"
_NONCE = "nonce_"
_INSTALLED = ("site-packages", "dist-packages")

Code = type | Callable[..., Any]
_Functions = Mapping[str, tuple[CodeType, ...]]  # by qualified name, of which one may have several
# Module → its spec, which a reload replaces, and its file's SHA-256 and functions when it was as the file says.
_FIRST: dict[str, tuple[ModuleSpec | None, str, _Functions]] = {}


def foreign_sources(*parts: object) -> dict[str, str]:
    """Return {module: SHA-256 of its file} of the code behind some parts that is not as openbench ships it.

    This covers the classes of the parts, their bases and the classes of what they hold, the functions that made them,
    and the modules beside these that they import, at the top or later. A class without a file, e.g. one that was typed
    into a session, gets a random word that belongs to this object: what it makes never equals what was made before. A
    class of openbench counts only if its code was replaced.

    Args:
        *parts: methods, trainings, backbones, data sources, or classes and functions.
    """
    found: dict[str, str] = {}
    codes: dict[str, dict[str, Code]] = {}
    for part in parts:
        for code in _own_code(part):
            codes.setdefault(code.__module__, {})[code.__qualname__] = code
            if file_of(code) is None and _top(code.__module__) != OURS:
                found[f"{code.__module__}.{code.__qualname__}"] = f"unknown {_nonce(part)}"
    starts = modules_of(*parts)
    foreign = closure({name: file for name, file in starts.items() if _top(name) != OURS})
    for name, file in {**starts, **foreign}.items():
        sha256 = loaded_sha256(name, file, codes.get(name, {}))
        if name in foreign or sha256.startswith(LOADED):
            found[name] = sha256
    return dict(sorted(found.items()))


def loaded_sha256(name: str, file: Path, codes: Mapping[str, Code] | None = None) -> str:
    """Return the SHA-256 of the file of a module as it was when it was loaded; of its functions if that is gone.

    Args:
        name: of the module.
        file: its source.
        codes: classes and functions of it by qualified name that are in use, though the module may have others now.
    """
    state, module = _state(file), sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None or (spec is not None and type(spec.loader) is not SourceFileLoader):
        return _sha256(file, *state)
    first = _FIRST.get(name)
    if first is None or first[0] is not spec:
        first = spec, _sha256(file, *state), _functions_of(file, *state)
    _, sha256, functions = first
    every = [code for same_name in functions.values() for code in same_name]
    loaded = _loaded({**vars(module), **(codes or {})}, functions, module.__file__ or str(file))
    if all(code in functions.get(key, every) for key, code in loaded.items()):
        _FIRST[name] = first
        return sha256
    return LOADED + digest({key: bytes_sha256(marshal.dumps(code, 2)) for key, code in loaded.items()})


def _loaded(values: Mapping[str, Any], functions: _Functions, file: str) -> dict[str, CodeType]:
    """The functions in a module and its classes that bear a name of its file's, or come from the file."""
    found: dict[str, CodeType] = {}
    for name, value in values.items():
        owned = isinstance(value, type)
        members = {f"{value.__qualname__}.{key}": of for key, of in vars(value).items()} if owned else {name: value}
        for key, member in members.items():
            code = _code_of(member) if owned or key in functions or inspect.isfunction(member) else None
            if code is not None and (key in functions or code.co_filename == file):
                found[key] = code
    return found


def _code_of(value: Any) -> CodeType | None:
    """The code of a function, also one that is decorated; None of anything else."""
    for attribute in ("__func__", "fget", "func"):
        value = getattr(value, attribute, value)
    return getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None


def changed_since_loaded(sources: Mapping[str, str]) -> list[str]:
    """Return the modules among sources whose file is not the code that was loaded, or no longer."""
    files = {name: Path(getattr(sys.modules.get(name), "__file__", None) or "") for name in sources}
    return [name for name, file in files.items() if file.is_file() and file_sha256(file) != sources[name]]


def unknown_sources(sources: Mapping[str, str]) -> list[str]:
    """Return the names of classes among sources that have no file to read."""
    return [name for name, sha256 in sources.items() if sha256.startswith("unknown")]


def foreign_code(part: object) -> list[Code]:
    """Return the classes and functions behind a part that come from outside openbench, Python and known libraries."""
    return [code for code in _own_code(part) if _top(code.__module__) != OURS]


def modules_of(*parts: object) -> dict[str, Path]:
    """Return {module: file} of the classes of parts, of their bases and of what they hold, but for libraries'."""
    codes = [code for part in parts for code in _own_code(part)]
    return {code.__module__: file for code in codes if (file := file_of(code)) is not None}


def _own_code(part: object) -> list[Code]:
    """The classes of a part and of what it holds, with their bases, and functions that made them; no library's."""
    found: dict[Code, None] = {}
    for code in _held(part, {}):
        found |= dict.fromkeys(code.__mro__ if isinstance(code, type) else (code,))
    return [code for code in found if _top(code.__module__) not in _LIBRARIES]


def note_maker(made: object, maker: Code, values: Iterable[object]) -> None:
    """Note on an object the foreign functions that made it or its arguments; a class is known from the object.

    Args:
        made: what the maker returned.
        maker: a class or function.
        values: what the maker was given.
    """
    foreign = not isinstance(maker, type) and _top(maker.__module__) not in (OURS, *_LIBRARIES)
    makers = [maker] * foreign + [noted for value in values for noted in makers_of(value)]
    if makers:
        with suppress(TypeError, AttributeError):  # an object without room for notes
            object.__setattr__(made, _MAKERS, tuple(dict.fromkeys((*makers_of(made), *makers))))


def makers_of(made: object) -> tuple[Code, ...]:
    """Return the foreign functions that made an object or its arguments."""
    return tuple(getattr(made, _MAKERS, ()))


def file_of(code: Code) -> Path | None:
    """Return the file that defines a class or function; None for one that was typed into a session."""
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
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
    skipped = _LIBRARIES if ours else {OURS, *_LIBRARIES}
    while pending:
        name, file = pending.pop()
        if name in found or not file.is_file():
            continue
        found[name] = file
        package = name if file.stem == "__init__" else name.rpartition(".")[0]
        root = str(file.parents[name.count(".") + (package == name)])
        for text in _imports_of(file, *_state(file)):
            with suppress(ImportError):  # relative, in a module without a package
                wanted = resolve_name(text, package)
                beside = _top(wanted) == _top(name)
                if _top(wanted) not in skipped:
                    executed = _executed_by(wanted, root, beside)
                    pending += [(other, there) for other, there in executed if beside or not _is_installed(there)]
    return found


def _held(value: object, seen: dict[int, object]) -> Iterator[Code]:
    """The classes and functions of a value and of what it holds, except values in `seen`, which keeps them alive."""
    if id(value) in seen or value is None or isinstance(value, str | int | float | bytes):
        return
    seen[id(value)] = value
    children: Iterable[object] = ()
    if isinstance(value, Mapping):
        children = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        children = value
    elif isinstance(value, partial):
        children = value.func, value.args, value.keywords
    elif isinstance(value, type) or inspect.isfunction(value):
        yield value
    elif inspect.ismethod(value):
        children = value.__func__, value.__self__
    else:
        yield type(value)
        yield from makers_of(value)
        own = fields(value) if is_dataclass(value) else ()
        children = getattr(value, "made_of", ()), *(getattr(value, child.name, None) for child in own)
    for child in children:
        yield from _held(child, seen)


def _nonce(part: object) -> str:
    """A random word, the same for one object as long as it lives."""
    word = secrets.token_hex(8)
    with suppress(TypeError, AttributeError):  # an object without room for notes
        return str(vars(part).setdefault(_NONCE, word))
    return word


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_installed(file: Path) -> bool:
    return any(part in _INSTALLED for part in file.parts)


def _state(file: Path) -> tuple[int, int, int]:
    state = os.stat(file)
    return state.st_mtime_ns, state.st_size, state.st_ino


@cache
def _sha256(file: Path, *state: int) -> str:
    """Read once in a state."""
    return file_sha256(file)


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


@cache
def _imports_of(file: Path, *state: int) -> tuple[str, ...]:
    """What a file in a state imports, in an order of its own: `json`, `.beside.name`."""
    tree = _tree(file)
    return tuple(dict.fromkeys(_imports(tree))) if tree else ()


def _imports(node: ast.AST) -> Iterator[str]:
    """What a piece of code imports, but for what stands below `if TYPE_CHECKING`, which only type checkers read."""
    if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
        node = ast.Module(node.orelse, [])
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (f"{node.module}." if node.module else "")
        yield from (module + alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        named = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        yield from [named] if isinstance(named, str) else []
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def _executed_by(wanted: str, root: str, beside: bool) -> Iterator[tuple[str, Path]]:
    """The modules that an import of a dotted name executes, each package on the way and the module; none is executed.

    Args:
        wanted: the name; what follows a module's name in it, such as a class, is left out.
        root: the folder of the outermost package of who imports it.
        beside: whether it is of the same package.
    """
    parts = wanted.split(".")
    spec = None
    with suppress(ImportError, ValueError):
        spec = None if beside else find_spec(parts[0])
    spec = spec or PathFinder.find_spec(parts[0], [root])
    for depth in range(2, len(parts) + 2):
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield spec.name, Path(spec.origin).resolve()
        if spec.submodule_search_locations is None or depth > len(parts):
            return
        spec = PathFinder.find_spec(".".join(parts[:depth]), list(spec.submodule_search_locations))
