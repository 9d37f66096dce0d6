"""What the design promises about the source: who imports whom, what configs name."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from omegaconf import OmegaConf

import openbench
from openbench import paths
from openbench.config.build import target_of
from openbench.public import TARGET

PACKAGE = Path(openbench.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
CONFIGS = sorted(paths.config_dir().rglob("*.yaml"))

# Layer → the layers it may import from, besides itself. `base` are the modules at the top of the package.
BASE = {"base", "storage", "config"}
LEAVES = {"metrics", "methods", "data", "backbones"}
ALLOWED = {
    "base": set(),
    "storage": {"base"},
    "config": {"base", "storage"},
    "core": BASE,
    "metrics": BASE | {"core"},
    "methods": BASE | {"core", "metrics"},
    "data": BASE | {"core"},
    "backbones": BASE | {"core"},
    "features": BASE | {"core"} | LEAVES,
    "training": BASE | {"core"} | LEAVES,
    "results": BASE | {"core", "metrics"},
    "report": BASE | {"core", "metrics", "results"},
    "engine": BASE | {"core", "features", "training", "results"} | LEAVES,
    "studies": BASE | {"core", "data", "metrics", "results", "report", "engine", "compose"},
    "testing": BASE | {"core", "features", "training", "results", "engine"} | LEAVES,
    "compose": BASE | {"core", "features", "training", "results", "engine"} | LEAVES,
    "api": BASE | {"core", "features", "training", "results", "report", "engine", "compose", "testing"} | LEAVES,
    "detect": BASE | {"core", "features", "results", "report", "engine", "api"} | LEAVES,
    # `openbench` itself, the Python face, and the command line: the front doors.
    "face": BASE | {"core", "api", "detect"},
    "cli": BASE
    | {"core", "features", "training", "results", "engine", "compose", "testing", "api", "report", "studies", "detect"}
    | LEAVES,
}


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE.parent))


def layer(module: str) -> str | None:
    """The layer of `openbench.a.b`; None outside the package."""
    parts = module.split(".")
    if parts[0] != "openbench":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ALLOWED else "base"


@dataclass(frozen=True)
class Facts:
    """What the rules are about, of a module that is parsed once for all of them.

    Args:
        imports: every dotted name that it imports; `from a import b` counts as `a.b`.
        at_import: those that are imported when the module is.
        long_signatures: functions with more than five positional parameters.
        forbidden: statements that package code must not hold.
        of_a_locale: where text is read or written in an encoding, or with line ends, that differ by machine.
        told_directly: where it prints, or logs under another name than the module's.
    """

    imports: tuple[str, ...]
    at_import: tuple[str, ...]
    long_signatures: tuple[str, ...]
    forbidden: tuple[str, ...]
    of_a_locale: tuple[str, ...]
    told_directly: tuple[str, ...]


@cache
def facts_of(source: str) -> Facts:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Facts(
        tuple(imports(nodes)),
        tuple(at_import(tree)),
        tuple(long_signatures(nodes)),
        tuple(forbidden(nodes, source)),
        tuple(of_a_locale(calls)),
        tuple(told_directly(calls)),
    )


def imports(nodes: Iterable[ast.AST]) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def at_import(tree: ast.Module) -> list[str]:
    """Leaving out functions and `if TYPE_CHECKING`."""
    found, pending = [], list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += imports([node])
        else:
            pending += list(ast.iter_child_nodes(node))
    return found


def wrong_imports(source: str, home: str) -> list[str]:
    """The imports by which a module of layer `home` reaches where it may not."""
    reached = [(name, layer(name)) for name in facts_of(source).imports]
    return [name for name, there in reached if there not in (None, home) and there not in ALLOWED[home]]


def imported(source: str, libraries: set[str]) -> list[str]:
    """What a module imports of some libraries, anywhere in it."""
    return [name for name in facts_of(source).imports if name.split(".")[0] in libraries]


def long_signatures(nodes: Iterable[ast.AST]) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            found += [f"line {node.lineno}: {node.name} has {len(names)}"] * (len(names) > 5)
    return found


def forbidden(nodes: Iterable[ast.AST], source: str) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, ast.Assert):
            found.append(f"line {node.lineno}: assert — raise an OpenbenchError, which `python -O` keeps")
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"line {node.lineno}: bare except")
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(f"line {node.lineno}: relative import — name the module in full")
    marks = [n for n, line in enumerate(source.splitlines(), 1) if "TODO" in line or "FIXME" in line]
    return found + [f"line {n}: unfinished business" for n in marks]


def name_called(call: ast.Call) -> str:
    """The last part of the name of what is called; empty where that has none."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def of_a_locale(calls: Iterable[ast.Call]) -> list[str]:
    found = []
    for node in calls:
        name = name_called(node)
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        inside = next(iter(node.args), None) if name == "read_text" else None  # of a distribution: always UTF-8
        text = name in ("read_text", "write_text") and inside is None
        text |= name == "open" and any(
            isinstance(a, ast.Constant) and a.value in ("r", "w", "a", "x") for a in node.args
        )
        text |= name in ("run", "Popen") and "text" in named
        if text and "encoding" not in named:
            found.append(f"line {node.lineno}: {name} without an encoding")
        if name == "write_text" and "newline" not in named:
            found.append(f"line {node.lineno}: write_text without newline")
    return found


def told_directly(calls: Iterable[ast.Call]) -> list[str]:
    texts = [(call.lineno, ast.unparse(call)) for call in calls if name_called(call) in ("print", "getLogger")]
    logs = tuple(f"{name}(" for name in ("print", "logging.getLogger", "getLogger"))
    return [f"line {n}: {t}" for n, t in texts if t.startswith(logs) and t != "logging.getLogger(__name__)"]


def with_two_dashes(source: str) -> list[str]:
    """The texts but docstrings, such as messages, with more than one dash."""
    tree = ast.parse(source)
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for text in texts for part in text.values}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [node for node in constants if id(node) not in parts | docstrings]
    return [f"line {text.lineno}" for text in texts if ast.unparse(text).count(" — ") > 1]


def offenders(found: dict[str, Sequence]) -> str:
    """What is wrong in which file, a file a line; empty if nothing is."""
    return "\n".join(f"{place}: {what}" for place, what in found.items() if what)


def home_of(module: Path) -> str:
    relative = module.relative_to(PACKAGE)
    # The front doors stand at the top: of the command line, and of the Python face, which names what it loads later.
    if relative == Path("__init__.py"):
        return "face"
    return "cli" if relative.name == "__main__.py" else layer("openbench." + ".".join(relative.with_suffix("").parts))


def test_imports_go_one_way():
    assert not offenders({name_of(file): wrong_imports(file.read_text(), home_of(file)) for file in MODULES})


# Each of these is one room here: what its rooms share stands beside what is made of the rooms.
ONE_ROOM = ("openbench.cli", "openbench.metrics", "openbench.results")


def room_of(module: str, modules: dict[str, Path]) -> str:
    """The folder that a module is in, as a dotted name; the front door of the command line belongs to `cli`."""
    if module == "openbench.__main__":
        return "openbench.cli"
    folder = ".".join(modules[module].parent.relative_to(PACKAGE.parent).parts)
    return next((room for room in ONE_ROOM if folder.startswith(f"{room}.")), folder)


def rooms_imported(sources: dict[str, str], modules: dict[str, Path]) -> dict[str, set[str]]:
    """Room → the other rooms that its modules import."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in facts_of(source).imports}
        rooms = {room_of(name, modules) for name in names if name in modules}
        found.setdefault(room_of(module, modules), set()).update(rooms - {room_of(module, modules)})
    return found


def circle(rooms: dict[str, set[str]]) -> list[str]:
    """Rooms of which each imports the one before it, the first and the last being the same; empty if there are none."""
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_rooms_import_one_another():
    modules = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in MODULES}
    modules = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    # The Python face, `openbench` itself, names what it loads later.
    sources = {name: file.read_text() for name, file in modules.items() if name != "openbench"}
    assert circle(rooms_imported(sources, modules)) == []
    back = {"openbench.training.base": "from openbench.training.methods.mos import MOS"}
    assert set(circle(rooms_imported(sources | back, modules))) >= {"openbench.training", "openbench.training.methods"}


def test_only_commands_and_progress_write_to_the_terminal():
    quiet = [file for file in MODULES if home_of(file) != "cli" and file.name != "progress.py"]
    assert not offenders({name_of(file): facts_of(file.read_text()).told_directly for file in quiet})
    found = facts_of("import logging\nlogging.getLogger()\nprint(1)\nlogging.getLogger(__name__)").told_directly
    assert found == ("line 2: logging.getLogger()", "line 3: print(1)")


def test_a_message_has_one_dash_at_most():
    assert not offenders({name_of(file): with_two_dashes(file.read_text()) for file in MODULES})
    assert with_two_dashes('"""a — b — c"""\nx = f"{y} — a" " — b"\nz = "a — b"') == ["line 2"]


def used_elsewhere(source: str, package: str) -> list[str]:
    """The imports of private modules of another package than that of the source."""
    found = [re.match(r"openbench\.(\w+)(\.\w+)*?\._[a-z]\w*", name) for name in facts_of(source).imports]
    modules = [match.group() for match in found if match and match.group(1) != package]
    # ISH trains with the gain that SCALE scores by: one computation for both.
    return [module for module in modules if (package, module) != ("training", "openbench.methods._stats")]


def test_private_modules_are_used_in_their_own_package_only():
    package = {file: file.relative_to(PACKAGE).parts[0] for file in MODULES}
    assert not offenders({name_of(file): used_elsewhere(file.read_text(), package[file]) for file in MODULES})
    planted = "from openbench.engine._heads import with_fitted_head\nfrom openbench.engine import _heads"
    assert used_elsewhere(planted, "api") == ["openbench.engine._heads"] * 2
    assert used_elsewhere(planted, "engine") == []


def test_an_import_against_the_grain_is_noticed():
    assert wrong_imports("from openbench.engine.run import run", "metrics") == ["openbench.engine.run.run"]
    assert wrong_imports("def f():\n    import openbench.cli.commands.jobs", "engine") == [
        "openbench.cli.commands.jobs"
    ]
    assert wrong_imports("from openbench import paths\nfrom openbench.core import record", "data") == []


def test_methods_do_not_import_one_another():
    found = {}
    for file in (PACKAGE / "methods").glob("*.py"):
        names = [n for n in facts_of(file.read_text()).imports if n.startswith("openbench.methods.")]
        found[name_of(file)] = [n for n in names if not n.split(".")[2].startswith("_")]
    assert not offenders(found)


def test_only_composing_and_the_command_line_know_hydra():
    below = [file for file in MODULES if home_of(file) not in ("compose", "cli")]
    assert not offenders({name_of(f): imported(f.read_text(), {"hydra", "omegaconf"}) for f in below})


def test_torch_is_not_loaded_where_answers_must_be_quick():
    found = {}
    for file in MODULES:
        if home_of(file) in ("compose", "cli", "metrics", "results", "report", "studies"):
            loaded = {name.split(".")[0] for name in facts_of(file.read_text()).at_import}
            found[name_of(file)] = sorted(loaded & {"torch", "torchvision", "timm", "open_clip"})
    assert not offenders(found)


def test_a_library_that_is_imported_inside_a_function_is_noticed():
    assert imported("def f():\n    from hydra import compose", {"hydra"}) == ["hydra.compose"]
    assert facts_of("import torch\ndef f():\n    import timm").at_import == ("torch",)


def test_command_line_metrics_and_results_load_without_torch():
    quick = [
        f
        for f in MODULES
        if home_of(f) in ("cli", "metrics", "results", "studies") and f.stem not in ("__init__", "__main__")
    ]
    names = [".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts) for f in quick]
    program = (
        f"import importlib, sys\nfor n in {names}:\n    importlib.import_module(n)\n"
        "    if 'torch' in sys.modules: sys.exit(n)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_functions_take_at_most_five_positional_parameters():
    assert not offenders({name_of(file): facts_of(file.read_text()).long_signatures for file in MODULES})


def test_a_sixth_positional_parameter_is_noticed():
    assert facts_of("def f(self, a, b, c, d, e): ...").long_signatures == ()
    assert facts_of("def f(a, b, c, d, e, f): ...").long_signatures == ("line 1: f has 6",)


def test_text_is_the_same_on_every_machine():
    assert not offenders({name_of(file): facts_of(file.read_text(encoding="utf-8")).of_a_locale for file in MODULES})
    wrong = 'p.read_text()\np.write_text(x)\nopen(p, "w")\nsubprocess.run(c, text=True)\n'
    assert len(facts_of(wrong).of_a_locale) == 5
    assert facts_of('p.read_text(encoding="utf-8")\nfound.read_text("RECORD")\nopen(p, "rb")').of_a_locale == ()


def test_package_code_holds_nothing_unfinished_or_stripped_by_python_o():
    assert not offenders({name_of(file): facts_of(file.read_text()).forbidden for file in MODULES})


def test_forbidden_statements_are_noticed():
    wrong = "from . import y\nassert x\ntry:\n    pass\nexcept:\n    pass\n# TODO\n"
    assert len(facts_of(wrong).forbidden) == 4


def targets(node, where):
    """Every mapping with a `_target_` in a config, with its place."""
    if isinstance(node, dict):
        if TARGET in node:
            yield where, node
        for key, value in node.items():
            yield from targets(value, f"{where}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from targets(value, f"{where}.{index}")


def unknown_keys(node, where):
    """Keys, also of the search space, that the target would not take."""
    parameters = inspect.signature(target_of(node, where)).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return []
    # `defaults` is Hydra's own: what the file goes on from.
    keys = [key for key in node if not key.startswith("_") and key != "defaults"] + list(node.get("_space_") or {})
    return [key for key in keys if key not in parameters]


def test_every_target_of_a_config_takes_its_keys():
    found = {}
    for file in CONFIGS:
        nodes = targets(OmegaConf.to_container(OmegaConf.load(file), resolve=False), file.stem)
        wrong = [(where, unknown_keys(node, where)) for where, node in nodes]
        found[str(file.relative_to(paths.config_dir()))] = [entry for entry in wrong if entry[1]]
    assert not offenders(found)


def test_a_key_that_the_target_does_not_take_is_noticed():
    node = {TARGET: "openbench.engine.tune.Tuning", "strategy": "none", "stratgy": "none", "_space_": {"x": [1]}}
    assert unknown_keys(node, "tune") == ["stratgy", "x"]


def test_every_group_file_says_in_a_comment_what_it_is_for():
    for file in CONFIGS:
        assert file.read_text().startswith("#"), file
