"""Who made a record: version, commit and time, on which processor, and how to verify it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.config.overrides import command_line
from openbench.core.record import ResultRecord
from openbench.results.records.settings import given_of


def made_by(record: ResultRecord) -> str:
    """Return the version, commit and time of a run, e.g. `openbench 0.1.0, commit 1a2b with changes, 2026-01-01`.

    The version of its prediction sets follows, where these were computed again from stored scores.
    """
    again = record.provenance.get("prediction_sets")
    given = "scores given, nobody here ran the code that made them; numbers by " * bool(given_of(record))
    later = f"; prediction sets by {_version(again)}" if isinstance(again, dict) else ""
    return given + _version(record.provenance) + later


def _version(provenance: Mapping[str, Any]) -> str:
    commit = str(provenance.get("git_sha") or "unknown")[:12] + " with changes" * bool(provenance.get("git_dirty"))
    return f"openbench {provenance.get('openbench', 'unknown')}, commit {commit}, {provenance.get('utc', 'no date')}"


def processor(record: ResultRecord) -> str:
    """Return the processor of a run with its instruction set and threads, as far as the record names them."""
    provenance = record.provenance
    named = "a processor that the record does not name"
    if "processor" in provenance:
        named = f"{provenance['processor']} ({provenance.get('instructions', 'instruction set unknown')})"
    threads = provenance.get("threads")
    return named if threads is None else f"{named}, {threads} thread{'s' * (threads != 1)}"


def same_machinery(one: ResultRecord, other: ResultRecord) -> bool:
    """Whether two runs name the same processor, device, number of threads and libraries, so that trainings end alike.

    Only libraries that both name are compared: an earlier openbench named fewer.
    """
    both = (one.provenance, other.provenance)
    facts, others = ([p.get(key) for key in ("processor", "instructions", "device", "threads")] for p in both)
    first, second = (provenance.get("libraries") or {} for provenance in both)
    shared = first.keys() & second.keys()
    return facts == others and None not in facts and bool(shared) and all(first[k] == second[k] for k in shared)


def verify_command(run_id: str, results: Path, config_dir: Path | None = None) -> str:
    """Return the command that computes a record again and compares.

    Args:
        run_id: the record's.
        results: the folder of the records.
        config_dir: the user's folder of group files that the run was given.
    """
    elsewhere = [] if results.absolute() == paths.results_dir().absolute() else ["--results", str(results)]
    return command_line("verify", [run_id, *elsewhere], config_dir)
