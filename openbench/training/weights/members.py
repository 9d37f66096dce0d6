"""Networks of an ensemble: each is found or trained separately, with its own seed."""

import copy
from collections.abc import Mapping
from typing import Any

from openbench.backbones.ensemble import Ensemble
from openbench.backbones.network import NetworkBackbone
from openbench.core.benchmark import Benchmark
from openbench.say import Say, silent
from openbench.training.weights.ensure import Trained, TrainingRuntime, ensure_trained


def ensure_members(
    ensemble: Ensemble,
    benchmark: Benchmark,
    config: Mapping[str, Any],
    runtime: TrainingRuntime,
    say: Say = silent,
) -> Trained:
    """Return the ensemble of members with the weights that a training gives them; one with weights as it is.

    Member i of m is the network that `seed = m·seed + i` gives alone: it is shared with runs of that network, and
    ensembles of different seeds share no member.

    Args:
        ensemble: left as it is.
        benchmark: as for a single network.
        config: the scientific nodes, of which `training`, `seed` and the backbone's `member` are read.
        runtime: as for a single network.
        say: receives a line whenever a training begins.

    Raises:
        CheckpointError, ConfigError, TrainingError: as for a single network.
    """
    if ensemble.trained:
        return Trained(ensemble, None)
    m = len(ensemble.members)
    single = {**config, "backbone": (config.get("backbone") or {}).get("member") or {}}
    found = [
        ensure_trained(copy.deepcopy(member), benchmark, {**single, "seed": m * config["seed"] + i}, runtime, say)
        for i, member in enumerate(ensemble.members)
    ]
    members = [one.backbone for one in found if isinstance(one.backbone, NetworkBackbone) and one.backbone.trained]
    # Under torchrun only the first process has the weights, and only that one goes on.
    return Trained(ensemble.of(members) if len(members) == m else ensemble, None, tuple(found))
