import os
import subprocess
import sys
from pathlib import Path

import pytest

import openbench
import openbench.metrics

ROOT = Path(openbench.__file__).parents[1]


def loaded_by(statement):
    """The modules that a fresh interpreter holds after a statement."""
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return set(run.stdout.split())


def test_metrics_need_neither_torch_nor_other_slow_imports():
    found = loaded_by("from openbench.metrics import evaluate")
    assert found.isdisjoint({"torch", "sklearn", "pandas", "scipy.stats"})
    assert "openbench.metrics.suite" in found


def test_the_meaning_of_keys_costs_neither_numpy_nor_scipy():
    assert loaded_by("import openbench.metrics.keys").isdisjoint({"numpy", "scipy"})


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'aurok'"):
        _ = openbench.metrics.aurok


def test_every_public_name_is_there_and_listed():
    for name in openbench.metrics.__all__:
        assert getattr(openbench.metrics, name).__name__ == name
    assert set(openbench.metrics.__all__) <= set(dir(openbench.metrics))
