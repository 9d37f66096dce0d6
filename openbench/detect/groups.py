"""The groups of images, e.g. cameras or predicted classes, within which a detector keeps its promise."""

from typing import Any

import numpy as np

from openbench.detect.calibration import Calibration, Codes
from openbench.detect.features import Scored
from openbench.errors import ConfigError, DataError

PREDICTED_CLASS = "predicted_class"
_SHOWN = 8  # groups named in a message


def calibration_groups(groups: Any, found: Scored) -> tuple[tuple[str, ...], Codes | None]:
    """Return the names of the groups, and the group (n,) of each calibration image; none where there are no groups.

    Args:
        groups: (n,) the group of each, `predicted_class`, or None.
        found: what the images yield.

    Raises:
        ConfigError: another text.
        DataError: another number of groups than of images.
    """
    if groups is None:
        return (), None
    if isinstance(groups, str):
        if groups != PREDICTED_CLASS:
            raise ConfigError(
                f"calibrate.groups — found '{groups}' — allowed: one group per image, or '{PREDICTED_CLASS}'"
            )
        return tuple(f"{PREDICTED_CLASS} {y}" for y in range(found.logits.shape[1])), found.predicted
    given = [str(group) for group in groups]
    if len(given) != len(found.scores):
        raise DataError(f"groups: {len(given)} for {len(found.scores)} images — one per image expected")
    names = tuple(sorted(set(given)))
    places = {name: code for code, name in enumerate(names)}
    return names, np.array([places[name] for name in given], dtype=np.int64)


def groups_to_judge(calibration: Calibration, groups: Any, found: Scored) -> Codes | None:
    """Return the group (m,) of each image to judge; None where the detector was calibrated without groups.

    Args:
        calibration: of the detector.
        groups: one per image, one for all, or None.
        found: what the images yield.

    Raises:
        DataError: groups are missing, unknown, or given where there are none.
    """
    if not calibration.groups:
        if groups is not None:
            raise DataError("groups: the detector was calibrated without groups — leave them out")
        return None
    if all(name.startswith(f"{PREDICTED_CLASS} ") for name in calibration.groups):
        return found.predicted
    if groups is None:
        more = ", …" * (len(calibration.groups) > _SHOWN)
        raise DataError(
            f"groups: not given — the detector was calibrated group by group ({', '.join(calibration.groups[:_SHOWN])}"
            f"{more}) — say of which group each image is: predict(images, groups=[…])"
        )
    names = [groups] * len(found.scores) if isinstance(groups, str) else list(groups)
    return calibration.code_of([str(name) for name in names])
