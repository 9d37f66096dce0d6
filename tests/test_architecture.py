"""What the design promises about the source: who imports whom, what configs name."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import openbench
from openbench import paths
from openbench.config.build import target_of
from openbench.public import TARGET
from openbench.storage.yaml_file import read_yaml

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


@cache
def walked(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


def imports(nodes: Iterable[ast.AST]) -> list[str]:
    """Every dotted name that is imported; `from a import b` counts as `a.b`."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def at_import(source: str) -> list[str]:
    """What is imported when a module is, leaving out functions and `if TYPE_CHECKING`."""
    found, pending = [], [walked(source)[0]]
    while pending:
        node = pending.pop()
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if late or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            continue
        found += imports([node])
        pending += list(ast.iter_child_nodes(node))
    return found


def wrong_imports(source: str, home: str) -> list[str]:
    """The imports by which a module of layer `home` reaches where it may not."""
    reached = [(name, layer(name)) for name in imports(walked(source))]
    return [name for name, there in reached if there not in (None, home) and there not in ALLOWED[home]]


def imported(source: str, libraries: set[str]) -> list[str]:
    """What a module imports of some libraries, anywhere in it."""
    return [name for name in imports(walked(source)) if name.split(".")[0] in libraries]


def long_signatures(source: str) -> list[str]:
    """The functions with more than five positional parameters."""
    found = []
    for node in walked(source):
        if isinstance(node, ast.FunctionDef):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            found += [f"line {node.lineno}: {node.name} has {len(names)}"] * (len(names) > 5)
    return found


def of_a_locale(source: str) -> list[str]:
    """Where text is read or written in an encoding, or with line ends, that differ by machine."""
    found = []
    for node in walked(source):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
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


def with_two_dashes(source: str) -> list[str]:
    """The texts but docstrings, such as messages, with more than one dash."""
    nodes = walked(source)
    texts = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for text in texts for part in text.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
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
    planted = "from openbench.core import record\ndef f():\n    import openbench.engine.run"
    assert wrong_imports(planted, "data") == ["openbench.engine.run"]


def test_scripts_import_what_there_is():
    for file in (PACKAGE.parent / "scripts").glob("*.py"):
        for name in imported(file.read_text(), {"openbench"}):
            assert pkgutil.resolve_name(name), file


def test_a_message_has_one_dash_at_most():
    assert not offenders({name_of(file): with_two_dashes(file.read_text()) for file in MODULES})
    assert with_two_dashes('"""a — b — c"""\nx = f"{y} — a" " — b"\nz = "a — b"') == ["line 2"]


def used_elsewhere(source: str, package: str) -> list[str]:
    """The imports of private modules of another package than that of the source."""
    found = [re.match(r"openbench\.(\w+)(\.\w+)*?\._[a-z]\w*", name) for name in imports(walked(source))]
    modules = [match.group() for match in found if match and match.group(1) != package]
    # ISH trains with the gain that SCALE scores by: one computation for both.
    return [module for module in modules if (package, module) != ("training", "openbench.methods._stats")]


def test_private_modules_are_used_in_their_own_package_only():
    package = {file: file.relative_to(PACKAGE).parts[0] for file in MODULES}
    assert not offenders({name_of(file): used_elsewhere(file.read_text(), package[file]) for file in MODULES})
    planted = "from openbench.engine._heads import with_fitted_head\nfrom openbench.engine import _heads"
    assert used_elsewhere(planted, "api") == ["openbench.engine._heads"] * 2
    assert used_elsewhere(planted, "engine") == []


def test_methods_do_not_import_one_another():
    found = {}
    for file in (PACKAGE / "methods").glob("*.py"):
        names = [n for n in imports(walked(file.read_text())) if n.startswith("openbench.methods.")]
        found[name_of(file)] = [n for n in names if not n.split(".")[2].startswith("_")]
    assert not offenders(found)


def test_only_composing_and_the_command_line_know_hydra():
    below = [file for file in MODULES if home_of(file) not in ("compose", "cli")]
    assert not offenders({name_of(f): imported(f.read_text(), {"hydra", "omegaconf"}) for f in below})
    assert imported("def f():\n    from hydra import compose", {"hydra"}) == ["hydra.compose"]


def test_torch_is_not_loaded_where_answers_must_be_quick():
    found = {}
    for file in MODULES:
        if home_of(file) in ("compose", "cli", "metrics", "results", "report", "studies"):
            loaded = {name.split(".")[0] for name in at_import(file.read_text())}
            found[name_of(file)] = sorted(loaded & {"torch", "torchvision", "timm", "open_clip"})
    assert not offenders(found)
    assert at_import("import torch\ndef f():\n    import timm") == ["torch"]


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
    assert not offenders({name_of(file): long_signatures(file.read_text()) for file in MODULES})
    found = long_signatures("def f(self, a, b, c, d, e): ...\ndef g(a, b, c, d, e, f): ...")
    assert found == ["line 2: g has 6"]


def test_text_is_the_same_on_every_machine():
    assert not offenders({name_of(file): of_a_locale(file.read_text(encoding="utf-8")) for file in MODULES})
    wrong = 'p.read_text()\np.write_text(x)\nopen(p, "w")\nsubprocess.run(c, text=True)\n'
    assert len(of_a_locale(wrong)) == 5
    assert of_a_locale('p.read_text(encoding="utf-8")\nfound.read_text("RECORD")\nopen(p, "rb")') == []


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
        nodes = targets(read_yaml(file), file.stem)
        wrong = [(where, unknown_keys(node, where)) for where, node in nodes]
        found[str(file.relative_to(paths.config_dir()))] = [entry for entry in wrong if entry[1]]
    assert not offenders(found)
    node = {TARGET: "openbench.engine.tune.Tuning", "strategy": "none", "stratgy": "none", "_space_": {"x": [1]}}
    assert unknown_keys(node, "tune") == ["stratgy", "x"]


def test_every_group_file_says_in_a_comment_what_it_is_for():
    for file in CONFIGS:
        assert file.read_text().startswith("#"), file
