"""The source files behind an object, and what git says of those of openbench's own checkout; read, never executed.

What openbench ships is identified by name and version. Other code is identified by the files of its modules, as they
were loaded: the module of an object's class and what that imports. Weights and tables that this code opens do not
count: the probes compare what the object computes.
"""

import ast
import importlib
import inspect
import marshal
import secrets
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

import openbench
from openbench.digest import bytes_sha256, file_sha256
from openbench.errors import ConfigError

OURS = "openbench"
# The versions of libraries are in the provenance.
_LIBRARIES = frozenset(
    {"torch", "torchvision", "numpy", "scipy", "sklearn", "faiss", "timm", "open_clip", "PIL"}
    | {"transformers", "huggingface_hub", "onnxruntime", *sys.stdlib_module_names}
)
# Whose detectors are methods: identified by version, and by the files of the classes that are used.
_VERSIONED = frozenset({"pytorch_ood", "openood", "oodeel"})
LOADED = "loaded "  # prefix of the digest of code that differs from its file
_MAKERS = "makers_"
_NONCE = "nonce_"
_INSTALLED = ("site-packages", "dist-packages")

Code = type | Callable[..., Any]
_Functions = Mapping[str, list[CodeType]]  # by qualified name
# Module → its spec (a reload replaces it), the SHA-256 of its file when it was loaded, and the functions in that file.
_seen: dict[str, tuple[ModuleSpec | None, str, _Functions]] = {}


def foreign_sources(*parts: object) -> dict[str, str]:
    """Return {module: SHA-256 of its file} of the code behind some objects that openbench does not ship.

    This covers the classes of the objects and of their attributes, with their bases, the functions that made them, and
    all modules that these import from the same project. A class without a file, e.g. one typed into a session, gets a
    random word, so that no result is reused. A class of openbench counts only if its code was replaced.

    Args:
        *parts: methods, trainings, backbones, data sources, or classes and functions.
    """
    sources: dict[str, str] = {}
    starts: dict[str, Path] = {}
    codes: dict[str, dict[str, Code]] = defaultdict(dict)
    for part in parts:
        for code in _code_behind(part):
            codes[code.__module__][code.__qualname__] = code
            if (file := starts.get(code.__module__) or file_of(code)) is not None:
                starts[code.__module__] = file
            elif _top(code.__module__) != OURS:
                sources[f"{code.__module__}.{code.__qualname__}"] = f"unknown {_nonce(part)}"
    libraries = {name: file for name, file in starts.items() if _top(name) in _VERSIONED}
    sources |= {f"version of {top}": installed(top) or "not installed" for top in map(_top, libraries)}
    foreign = libraries | closure({k: file for k, file in starts.items() if _top(k) not in (OURS, *_VERSIONED)})
    for name, file in {**starts, **foreign}.items():
        sha256 = loaded_sha256(name, file, codes.get(name, {}))
        if name in foreign or sha256.startswith(LOADED):
            sources[name] = sha256
    return dict(sorted(sources.items()))


def loaded_sha256(name: str, file: Path, codes: Mapping[str, Code] | None = None) -> str:
    """Return the SHA-256 of a module's file when it was loaded; of the loaded functions where these differ from it.

    Args:
        name: name of the module.
        file: its source.
        codes: classes and functions in use by qualified name; after a reload the module may have others.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None or (spec is not None and type(spec.loader) is not SourceFileLoader):
        return file_sha256(file)
    first = _seen.get(name)
    if first is None or first[0] is not spec:
        first = spec, file_sha256(file), _functions_in(file)
    functions = first[2]
    classes = {key.rpartition(".")[0] for key in functions}
    # What a module has imported is not in its file, and may be large.
    own = {
        key: value
        for key, value in {**vars(module), **(codes or {})}.items()
        if (value.__qualname__ in classes if isinstance(value, type) else key in functions)
    }
    changed = [code for key, code in _loaded_functions(own) if code not in functions.get(key, [code])]
    if not changed:
        _seen[name] = first
        return first[1]
    return LOADED + bytes_sha256(b"".join(marshal.dumps(code, 2) for code in changed))


def _loaded_functions(values: Mapping[str, Any]) -> Iterator[tuple[str, CodeType]]:
    """The functions of a module and of its classes, under the name by which they are called."""
    for name, value in values.items():
        members = {f"{value.__qualname__}.{k}": v for k, v in vars(value).items()} if isinstance(value, type) else {}
        for key, member in (members or {name: value}).items():
            for attribute in ("__func__", "fget", "func"):  # of class methods, properties, cached properties
                member = getattr(member, attribute, member)
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if code is not None:
                yield key, code


def _functions_in(file: Path) -> _Functions:
    """The functions that a file defines; none if it is compiled or invalid."""
    functions: dict[str, list[CodeType]] = defaultdict(list)
    pending: list[CodeType] = []
    with suppress(SyntaxError, ValueError):
        pending += [compile(file.read_bytes(), file, "exec", dont_inherit=True)] if file.suffix == ".py" else []
    while pending:
        for code in pending.pop().co_consts:
            if isinstance(code, CodeType):
                functions[code.co_qualname].append(code)
                pending.append(code)
    return functions


def changed_since_loaded(sources: Mapping[str, str]) -> list[str]:
    """Return the modules among sources whose file no longer is the code that was loaded."""
    files = {name: Path(getattr(sys.modules.get(name), "__file__", None) or "") for name in sources}
    return [name for name, file in files.items() if file.is_file() and file_sha256(file) != sources[name]]


def unknown_sources(sources: Mapping[str, str]) -> list[str]:
    """Return the names of classes among sources that have no file."""
    return [name for name, sha256 in sources.items() if sha256.startswith("unknown")]


def foreign_code(part: object) -> list[Code]:
    """Return the classes and functions behind an object that neither openbench, Python nor a known library ships."""
    return [code for code in _code_behind(part) if _top(code.__module__) != OURS]


def modules_of(*parts: object) -> dict[str, Path]:
    """Return {module: file} of the classes of objects and of their attributes, with their bases; no libraries."""
    codes = [code for part in parts for code in _code_behind(part)]
    return {code.__module__: file for code in codes if (file := file_of(code)) is not None}


def file_of(code: Code) -> Path | None:
    """Return the file that defines a class or function; None for one that was typed into a session."""
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
    return _resolved(file) if file and Path(file).is_file() else None


@cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


def note_maker(obj: object, maker: Code, values: Iterable[object]) -> None:
    """Note on an object the foreign functions that made it or its arguments; a class is known from the object.

    Args:
        obj: what the maker returned.
        maker: a class or function.
        values: its arguments.
    """
    foreign = not isinstance(maker, type) and _top(maker.__module__) not in (OURS, *_LIBRARIES)
    makers = [maker] * foreign + [of_value for value in values for of_value in getattr(value, _MAKERS, ())]
    if makers:
        with suppress(TypeError, AttributeError):  # an object without room for notes
            object.__setattr__(obj, _MAKERS, tuple(dict.fromkeys((*getattr(obj, _MAKERS, ()), *makers))))


def _code_behind(part: object) -> list[Code]:
    """The classes of an object and of its attributes, with their bases, and the functions that made them."""
    codes: dict[Code, None] = {}
    for code in code_in(part, _parts_of, (str, int, float, bytes)):
        codes |= dict.fromkeys(code.__mro__ if isinstance(code, type) else (code,))
    return [code for code in codes if _top(code.__module__) not in _LIBRARIES]


def code_in(value: object, parts_of: Callable[[Any], Iterable[object]], skipped: tuple[type, ...]) -> tuple[Code, ...]:
    """Return the classes and functions that an object holds, in containers, partials and methods.

    Args:
        value: any object.
        parts_of: what to look at of a class, a function or another object.
        skipped: types of values that hold no code, besides None.
    """
    codes: dict[Code, None] = {}
    seen: dict[int, object] = {}  # keeps them alive
    pending = [value]
    while pending:
        part: Any = pending.pop()
        if id(part) in seen or part is None or isinstance(part, skipped):
            continue
        seen[id(part)] = part
        if isinstance(part, Mapping):
            pending += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            pending += part
        elif isinstance(part, partial):
            pending += [part.func, part.args, part.keywords]
        elif inspect.ismethod(part):
            pending += [part.__func__, part.__self__]
        else:
            codes[part if isinstance(part, type) or inspect.isfunction(part) else type(part)] = None
            pending += parts_of(part)
    return tuple(codes)


def _parts_of(value: Any) -> Iterable[object]:
    """The makers and fields of an object, and what it says that it is made of."""
    if isinstance(value, type) or inspect.isfunction(value):
        return ()
    attributes = [getattr(value, f.name, None) for f in fields(value)] if is_dataclass(value) else []
    return *getattr(value, _MAKERS, ()), getattr(value, "made_of", ()), *attributes


def _nonce(part: object) -> str:
    """A random word, the same for one object as long as it lives."""
    word = secrets.token_hex(8)
    with suppress(TypeError, AttributeError):  # an object without room for notes
        return str(vars(part).setdefault(_NONCE, word))
    return word


def closure(starts: Mapping[str, Path], ours: bool = False) -> dict[str, Path]:
    """Return {module: file} of modules and of all that they import from their own project.

    Modules are of one project if they share a top-level package, or if they are not installed.

    Args:
        starts: {module: file} to begin with.
        ours: whether openbench's own modules are followed too.
    """
    modules: dict[str, Path] = {}
    found = set[tuple[str, str, bool]]()  # what several modules import is looked up once
    pending = list(starts.items())
    skipped = (_LIBRARIES if ours else {OURS, *_LIBRARIES}) | _VERSIONED
    while pending:
        name, file = pending.pop()
        if name in modules or not file.is_file():
            continue
        modules[name] = file
        package = name if file.stem == "__init__" else name.rpartition(".")[0]
        root = str(file.parents[name.count(".") + (package == name)])
        for text in _imports_of(file, file.stat().st_mtime_ns):
            with suppress(ImportError):  # a relative import in a module without a package
                imported = resolve_name(text, package)
                same = _top(imported) == _top(name)
                if _top(imported) not in skipped and (imported, root, same) not in found:
                    found.add((imported, root, same))
                    pending += [
                        (module, path)
                        for module, path in _modules_on_the_way(imported, root, same)
                        if same or not any(part in _INSTALLED for part in path.parts)
                    ]
    return modules


@cache
def _imports_of(file: Path, modified: int) -> tuple[str, ...]:
    """What a file imports, e.g. `json`, `.base.name`; nothing if it is compiled or invalid."""
    with suppress(SyntaxError, ValueError):
        return tuple(dict.fromkeys(_imports(ast.parse(file.read_bytes())))) if file.suffix == ".py" else ()
    return ()


def _imports(node: ast.AST) -> Iterator[str]:
    """What a piece of code imports, except below `if TYPE_CHECKING`."""
    if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
        node = ast.Module(node.orelse, [])
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (f"{node.module}." if node.module else "")
        yield from (module + alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        yield from [name] if isinstance(name, str) else []
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def _modules_on_the_way(name: str, root: str, same: bool) -> Iterator[tuple[str, Path]]:
    """The packages on the way to a dotted name and its module, with their files; what follows the module is ignored.

    Args:
        name: e.g. `package.module.Class`.
        root: folder of the importing module's outermost package.
        same: whether it is the importing module's own package.
    """
    parts = name.split(".")
    spec = None
    with suppress(ImportError, ValueError):
        spec = None if same else find_spec(parts[0])
    spec = spec or PathFinder.find_spec(parts[0], [root])
    for depth in range(2, len(parts) + 2):
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield spec.name, Path(spec.origin).resolve()
        if spec.submodule_search_locations is None or depth > len(parts):
            return
        spec = PathFinder.find_spec(".".join(parts[:depth]), list(spec.submodule_search_locations))


@cache
def installed(library: str) -> str | None:
    """Return the version of a library; None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(library)
    return None


def _top(module: str) -> str:
    return module.partition(".")[0]


# Folders that can change a number. Configs and manifests count for `dirty` only, as run ids and digests cover them.
_WATCHED = ("openbench", "configs", "data_manifests")
_PATIENCE = 60  # seconds


def uncommitted(*modules: str, parts: tuple[object, ...] = ()) -> dict[str, str]:
    """Return {file: SHA-256} of the files with uncommitted changes among some modules and all that they import.

    Args:
        *modules: of openbench, e.g. `openbench.engine.run`.
        parts: objects; the modules of their classes are added.

    Returns:
        Paths from the checkout's root; empty without changes or without a checkout.

    Raises:
        ConfigError: git cannot say what has changed.
    """
    changed = _changed()
    if not changed:
        return {}
    named = {name: Path(str(importlib.import_module(name).__file__)).resolve() for name in modules}
    imported = _imported(tuple(sorted({**named, **modules_of(*parts)}.items())))
    used = {name: file for name, file in sorted(changed.items()) if file in imported and file.is_file()}
    dotted = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in used]
    return {name: loaded_sha256(module, used[name]) for name, module in zip(used, dotted, strict=True)}


def code_digests(module: str, *parts: object, data: tuple[object, ...] = ()) -> dict[str, dict[str, str]]:
    """Return {"sources": …, "uncommitted": …}, digests of code besides openbench's committed one; without empty ones.

    Args:
        module: of openbench, which does the work.
        *parts: objects whose classes may be foreign.
        data: further objects whose modules may have uncommitted changes.
    """
    digests = {"sources": foreign_sources(*parts), "uncommitted": uncommitted(module, parts=(*parts, *data))}
    return {kind: files for kind, files in digests.items() if files}


@cache
def _imported(starts: tuple[tuple[str, Path], ...]) -> frozenset[Path]:
    return frozenset(closure(dict(starts), ours=True).values())


def made_now() -> str:
    """Return the origin of a cached result: version, commit and time."""
    changed = " with changes" if dirty() else ""
    utc = datetime.now(UTC).isoformat(timespec="seconds")
    return f"openbench {openbench.__version__}, commit {(commit() or 'unknown')[:12]}{changed}, {utc}"


@cache
def commit() -> str | None:
    """Return the commit that is checked out; None for an installed wheel, or where git does not say."""
    with suppress(ConfigError):
        return _git("rev-parse", "HEAD") or None
    return None


@cache
def dirty() -> bool | None:
    """Return whether code, configs or manifests differ from the commit; None where that is not known."""
    with suppress(ConfigError):
        changes = _git("status", "--porcelain", "--", *_WATCHED)
        return None if changes is None else bool(changes)
    return None


@cache
def _changed() -> Mapping[str, Path]:
    """{path from the root: file} of modules of openbench that were changed since the commit, or are not part of it."""
    changes = _git("status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", OURS)
    names = [entry[3:] for entry in (changes or "").split("\0") if entry[:2].strip()]
    return {name: _root() / name for name in names if name.endswith(".py")}


def _root() -> Path:
    return Path(openbench.__file__).resolve().parent.parent


def _git(*args: str) -> str | None:
    """What git says of the checkout; None where there is none.

    Raises:
        ConfigError: git is not there, or refuses to answer.
    """
    if not (_root() / ".git").exists():
        return None
    command = ["git", "-C", str(_root()), *args]
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=_PATIENCE, check=True
        ).stdout.strip("\n")
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).splitlines()[0]
        raise ConfigError(
            f"git cannot say what has changed in openbench's checkout '{_root()}' ({reason}) — install git, or let it "
            f"read the folder: git config --global --add safe.directory {shlex.quote(str(_root()))}"
        ) from error
