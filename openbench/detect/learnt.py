"""What a detector has besides what its caller gave: the part that is saved."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from openbench.core.benchmark import Split
from openbench.core.composite import leaves
from openbench.core.method import Method
from openbench.core.request import Role
from openbench.detect.calibration import Calibration
from openbench.detect.export.graph import Traced
from openbench.detect.network import Network
from openbench.errors import NotApplicableError


@dataclass(frozen=True, eq=False)
class Learnt:
    """A fitted method on a network that is ready, and the calibration.

    Args:
        network: ready to run.
        method: fitted.
        seen: (k, 16) uint8, digests of the images that `fit` saw.
        calibration: None before `calibrate`.
    """

    network: Network
    method: Method
    seen: NDArray[np.uint8]
    calibration: Calibration | None = None


def traced(learnt: Learnt) -> Traced:
    """Return what the graph of a calibrated detector is made of.

    Raises:
        NotApplicableError: the calibration has groups or weights.
    """
    calibration = learnt.calibration
    if calibration is None or calibration.groups or calibration.weights is not None:
        raise NotApplicableError(
            "the detector cannot be one graph: the calibration has groups or weights — calibrate without them"
        )
    known = torch.from_numpy(calibration.scores)
    return Traced(learnt.network.backbone, learnt.method, known, calibration.thresholds[""])


def learns_from(method: Method) -> frozenset[Role]:
    """Return the roles of the images that a method learns from; one made of others also reads ID validation.

    Args:
        method: unfitted.
    """
    roles = {leaf.request.fit_on for leaf in leaves(method)} | {method.request.fit_on}
    return frozenset(role for role in roles if role is not None)


def nothing() -> Split:
    """Return a split without images, for what reads none."""
    empty = np.zeros(0, np.int64)
    return Split("nothing", Role.ID_TRAIN, [], empty, [], (), "", 0, unread=True)
