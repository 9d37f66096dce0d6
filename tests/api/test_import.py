"""What `import openbench` costs and offers."""

import subprocess
import sys

import pytest

import openbench

HEAVY = ("torch", "numpy", "pandas", "hydra", "matplotlib")


def test_the_import_loads_nothing_heavy():
    code = f"import sys, openbench; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_names_that_are_offered_are_the_public_ones():
    assert all(getattr(openbench, name) is not None for name in openbench.__all__)
    assert dir(openbench) == sorted(openbench.__all__)  # and not the modules that were imported for them


def test_another_name_says_what_is_offered():
    with pytest.raises(AttributeError, match=r"no attribute 'evaluat'.*Result"):
        _ = openbench.evaluat
