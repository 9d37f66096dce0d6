"""The jobs that Hydra composes: `run`, `train`, `extract` and `check`."""

from pathlib import Path

import numpy as np

from openbench.cli.hydra.app import Call, HydraCommand
from openbench.cli.hydra.outcome import FAILED_STATUS, Outcome
from openbench.cli.output import group_auroc, headline, print_tables
from openbench.cli.process import FAILED, OK
from openbench.core.record import ResultRecord
from openbench.engine.provenance import WARNINGS
from openbench.metrics.curve import auroc
from openbench.results.escape import console_lines
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.views import run_tables


def score_benchmark(call: Call) -> Outcome:
    """Run, then print warnings, notes, the overview table and the path of the record; in a sweep one line instead."""
    from openbench.core.runtime import Runtime
    from openbench.engine.prepare import prepare
    from openbench.engine.run import run

    setting = Runtime.from_config(call.runtime)
    if setting.on_existing != "verify":
        RecordStore(setting.records).check_writable()  # before a training begins
    outcome = run(prepare(call.config, setting, shared=call.shared, overrides=call.overrides), setting)
    line = f"{outcome.status} {outcome.path}"
    warnings = (*(outcome.record.provenance.get(WARNINGS) or ()), *outcome.warnings)
    before = warnings if call.sweep else (*warnings, *outcome.notes)
    if before:
        print(console_lines("\n".join(before)), flush=True)
    if call.sweep:
        print(f"{headline(outcome.record, call.label)} — {line}", flush=True)
    else:
        print_tables(run_tables(outcome.record))
        print(line)
    objective = _validation_auroc(outcome.record, setting.scores) if call.optimised else None
    return Outcome(OK, line, outcome.status, group_auroc(outcome.record), objective=objective)


def _validation_auroc(record: ResultRecord, scores: Path) -> float | None:
    """The AUROC of ID val against OOD val from the scores of a run; None if the benchmark has no OOD val."""
    sets = ScoreStore(scores).read(record.run_id)
    sides = [[s.scores for s in sets if s.role == role] for role in ("id_val", "ood_val")]
    return float(auroc(*map(np.concatenate, sides))) if all(sides) else None


def train_network(call: Call) -> Outcome:
    """Train, and print where the checkpoint is."""
    from openbench.engine.prepare import train
    from openbench.training.loop.distributed import team

    trained = train(call.config, call.runtime)
    line = f"{trained.backbone.name}: {trained.source}"
    if team(call.runtime.get("device", "auto")).leads:
        print(line)
    return Outcome(OK, line)


def fill_cache(call: Call) -> Outcome:
    """Extract, and print how many images went through the network for each split; 0 = all were cached."""
    from openbench.engine.prepare import extract

    passes = extract(call.config, call.runtime)
    for split, images in passes.items():
        print(f"{images:>10,}  {split}")
    line = f"{sum(passes.values()):,} images passed for {len(passes)} splits"
    print(line)
    return Outcome(OK, line)


def check_benchmark(call: Call) -> Outcome:
    """Check, print the report and its verdict, and fail if there are problems."""
    from openbench.engine.prepare import check

    report = check(call.config, call.runtime)
    print(f"{report}\n{report.verdict}")
    return Outcome(OK, report.verdict) if report.ok else Outcome(FAILED, report.verdict, FAILED_STATUS)


RUN = HydraCommand("run", score_benchmark)
TRAIN = HydraCommand("train", train_network, unused=("method", "tune", "metrics"))
EXTRACT = HydraCommand("extract", fill_cache, unused=("tune", "metrics"), divided=True)
CHECK = HydraCommand("check", check_benchmark)  # its exit code is 1 if anything does not hold
