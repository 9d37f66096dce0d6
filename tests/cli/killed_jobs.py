"""Jobs that kill their process: seed 1 the first time, seed 2 always. Started by test_killed.py.

Where the launcher ends all processes when one is killed (KILLED_TOGETHER), seed 0 runs beside seed 1 until then.
"""

import os
import signal
import sys
import time
from pathlib import Path

from openbench.cli.hydra.app import HydraCommand
from openbench.cli.hydra.job import Done


def act(call):
    """End well, or be killed; every try leaves a line."""
    seed, tries = call.config["seed"], Path(os.environ["TRIES"])
    with tries.open("a") as file:
        file.write(f"{seed}\n")
    first = tries.read_text().split().count(str(seed)) == 1
    if "KILLED_TOGETHER" in os.environ and seed in (0, 1) and first:
        wait(lambda: {"0", "1"} <= set(tries.read_text().split()))  # both run
        if seed == 0:
            wait(lambda: False)  # until its process ends with the other
    if seed == 2 or (seed == 1 and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return Done(0, "went well", "written")


def wait(until):
    """Wait until something holds, ten minutes at most."""
    end = time.monotonic() + 600
    while not until() and time.monotonic() < end:
        time.sleep(0.05)


if __name__ == "__main__":
    import killed_jobs  # by its own name, which the launcher's processes can import

    if "hydra/launcher=submitit_local" in sys.argv:
        from submitit.core.core import Job

        Job._results_timeout_s = 0  # seconds that a file system may take to show what a job wrote before it ended
    sys.exit(HydraCommand("run", killed_jobs.act)(sys.argv[1:]))
