"""`run`: score a benchmark with a method and end in a record."""

from omegaconf import DictConfig

from openbench.cli.hydra.app import Call, carry_out, launch
from openbench.cli.hydra.job import Done
from openbench.cli.process.exits import OK


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    return launch("run", argv, job)


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "run", act)


def act(call: Call) -> Done:
    """Run, then print the overview table and where the record is; in a sweep one line instead.

    What a reader has to know before the numbers, e.g. that they were not made now, stands above the table.
    """
    from openbench.cli.tables import group_auroc, headline, print_tables
    from openbench.engine import api
    from openbench.engine.outcomes.remarks import WARNINGS
    from openbench.results.escape import console_lines
    from openbench.results.tables.views import run_tables

    outcome = api.run(call.config, call.runtime, call.say)
    line = f"{outcome.status} {outcome.path}"
    warnings = (*(outcome.record.provenance.get(WARNINGS) or ()), *outcome.warnings)
    before = warnings if call.sweep else (*warnings, *outcome.notes)
    if before:
        print(console_lines("\n".join(before)), flush=True)
    if call.sweep:
        print(f"{headline(outcome.record, call.apart)} — {line}", flush=True)
    else:
        print_tables(run_tables(outcome.record))
        print(line)
    names = {"benchmark": outcome.record.benchmark["name"], "method": outcome.record.method["name"]}
    return Done(OK, line, outcome.status, names, group_auroc(outcome.record))
