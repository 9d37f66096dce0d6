import os
import subprocess
import sys
from pathlib import Path

import openbench

ROOT = Path(openbench.__file__).parents[1]


def test_metrics_need_neither_torch_nor_other_slow_imports():
    slow = {"torch", "sklearn", "pandas", "scipy.stats"}
    code = f"import sys, openbench.metrics; print(*sorted({slow} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.stdout.strip() == ""
