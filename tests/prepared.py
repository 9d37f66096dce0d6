"""Configs of words, and a run of a plain config, as the command line carries it out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openbench.compose.config import composed
from openbench.core.runtime import Runtime
from openbench.engine.prepare import SharedObjects, prepare
from openbench.engine.provenance import RunOutcome
from openbench.engine.run import run


def run_config(
    config: Mapping[str, Any], runtime: Mapping[str, Any], shared: SharedObjects | None = None
) -> RunOutcome:
    """The outcome of a run of the scientific nodes under a runtime node."""
    setting = Runtime.from_config(runtime)
    return run(prepare(config, setting, shared=shared), setting)


def job(folder: Path, *words: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The scientific nodes and the runtime node of `run` with some words, whose cache and results are in a folder."""
    made = composed("run", words)
    own = {"cache": str(folder / "cache"), "results": str(folder / "results"), "progress": False, "device": "cpu"}
    return made.config, {**made.runtime, **own}
