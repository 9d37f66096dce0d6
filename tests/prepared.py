"""A run of a plain config, as the command line carries it out."""

from collections.abc import Mapping
from typing import Any

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
