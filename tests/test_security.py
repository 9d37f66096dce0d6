"""SECURITY.md is true: the tests that it names exist, and the source does nothing of what it says is never done."""

import ast
import re
from pathlib import Path

import pytest

import openbench

PACKAGE = Path(openbench.__file__).parent
PAGE = PACKAGE.parent / "SECURITY.md"
# The restricted reader of CIFAR, the contract check that pickles a method of the caller's own.
MAY_PICKLE = ("data/sources/archives.py", "testing/_checks.py")


def test_the_page_names_tests_that_exist():
    if not PAGE.is_file():
        pytest.skip("no SECURITY.md beside the package: it was installed without it")
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name or 'test_'}" not in (PAGE.parent / file).read_text(encoding="utf-8")
    ]
    assert len(named) > 10
    assert missing == []


# A file without any of these words has no such call, and need not be parsed.
WORDS = re.compile(r"\b(eval|exec|system|popen|(\w*_)?loads?|\w*Unpickler)\s*\(|\b(shell|trust_remote_code)\s*=")


def forbidden(call: ast.Call, file: str) -> bool:
    """Whether a call may run what a file holds."""
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "joblib.load"):
        return True
    if name in ("yaml.safe_load", "OmegaConf.load"):  # which follow aliases and keep the last of two equal keys
        return True
    if name.endswith(("pickle.load", "pickle.loads", "Unpickler")):
        return not file.endswith(MAY_PICKLE)
    if name == "torch.load":
        return given.get("weights_only") != "True"
    if name == "np.load":
        return given.get("allow_pickle") != "False"
    return given.get("shell", "False") != "False" or given.get("trust_remote_code", "False") != "False"


def test_no_source_does_what_the_page_says_is_never_done():
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)[:60]}"
        for path in PACKAGE.rglob("*.py")
        if WORDS.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and forbidden(node, path.as_posix())
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        *("eval(x)", "exec(x)", "os.system(x)", "os.popen(x)", "subprocess.run(x, shell=True)"),
        *("yaml.load(x)", "yaml.unsafe_load(x)", "yaml.safe_load(x)", "OmegaConf.load(x)"),
        *("pickle.load(x)", "pickle.loads(x)", "OwnUnpickler(x)", "joblib.load(p)"),
        *("torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p)", "np.load(p, allow_pickle=True)"),
        "from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_a_source_that_did_would_be_found(line):
    (statement,) = ast.parse(line).body
    assert WORDS.search(line)
    assert forbidden(statement.value, "openbench/results/records/store.py")
