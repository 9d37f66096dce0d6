"""`run`: score a benchmark with a method and end in a record."""

from omegaconf import DictConfig

from openbench.cli.exits import OK
from openbench.cli.hydra_app import Call, carry_out, launch


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    return launch("run", argv, job)


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "run", act)


def act(call: Call) -> tuple[int, str]:
    """Run and print the headline numbers and where the record is."""
    from openbench.cli.tables import headline
    from openbench.engine import api

    outcome = api.run(dict(call.config), dict(call.runtime))
    line = f"{outcome.status} {outcome.path}"
    print(f"{headline(outcome.record)} — {line}", flush=True)
    return OK, line
