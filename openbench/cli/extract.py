"""`extract`: fill the feature cache with the columns that a method needs."""

from omegaconf import DictConfig

from openbench.cli.exits import OK
from openbench.cli.hydra_app import Call, carry_out, launch


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    return launch("extract", argv, job, unused=("tune", "metrics"))


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "extract", act)


def act(call: Call) -> tuple[int, str]:
    """Extract and say what is cached where."""
    from openbench.engine import api

    line = str(api.extract(dict(call.config), dict(call.runtime)))
    print(line)
    return OK, line
