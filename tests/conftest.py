import os
from pathlib import Path

import pytest

# One thread per worker: the suite runs in parallel, and results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def real_data() -> Path:
    """The folder of real images, or a skip that says what is missing."""
    folder = os.environ.get("OPENBENCH_DATA")
    if not folder:
        pytest.skip("real images: OPENBENCH_DATA is not set")
    return Path(folder.split(os.pathsep)[0])
