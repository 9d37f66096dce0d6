"""`check`: verify data, splits and weights before anything is computed."""

from omegaconf import DictConfig

from openbench.cli.hydra.app import Call, carry_out, launch
from openbench.cli.hydra.job import Done
from openbench.cli.hydra.outcome import FAILED_STATUS
from openbench.cli.process.exits import FAILED, OK


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
