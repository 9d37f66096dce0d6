"""Every example runs from its first cell to its last, and is in the form from which notebooks are made."""

import ast
import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from openbench import _compat  # noqa: F401 - torchvision beside a CPU-only torch

DATA_OF = {"texts": "chatterbot_corpus", "time_series": "seglearn"}  # packages with the data of examples
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_begins_with_a_title_and_has_cells(file):
    text = file.read_text(encoding="utf-8")
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "\n").split("\n")
    assert title
    assert set(line) == {"="}
    assert len(line) == len(title)
    assert text.count("\n# %%\n") >= 3


def test_no_example_imports_what_a_cpu_only_torch_cannot():
    # openbench makes torchvision's import work when it needs it; an example that comes before it would stop there.
    found = {
        (file.stem, name)
        for file in EXAMPLES
        for name in re.findall(r"^(?:import|from) (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert ("own_model", "torch") in found
    assert not {pair for pair in found if pair[1] in ("torchvision", "timm", "open_clip")}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs(file, tmp_path, monkeypatch, capsys):
    if file.stem in DATA_OF and find_spec(DATA_OF[file.stem]) is None:
        pytest.skip(f"{DATA_OF[file.stem]} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENBENCH_DATA", raising=False)
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "results"}, "it leaves files where it was started"
