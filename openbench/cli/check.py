"""`check`: verify data, splits and weights before anything is computed."""

from omegaconf import DictConfig

from openbench.cli.exits import FAILED, OK
from openbench.cli.hydra_app import Call, carry_out, launch
from openbench.cli.job import Done
from openbench.cli.outcome import FAILED_STATUS


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code: 1 if anything does not hold."""
    return launch("check", argv, job)


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "check", act)


def act(call: Call) -> Done:
    """Check, print the report and its verdict, and fail if there are problems."""
    from openbench.engine import api

    report = api.check(call.config, call.runtime, call.say)
    print(f"{report}\n{report.verdict}")
    return Done(OK, report.verdict) if report.ok else Done(FAILED, report.verdict, FAILED_STATUS)
