"""The groups of images, e.g. cameras or predicted classes, within which a detector keeps its promise."""

from typing import Any

import numpy as np

from openbench.detect.calibration import Calibration, Codes
from openbench.detect.features import Scored
from openbench.errors import ConfigError, DataError

PREDICTED_CLASS = "predicted_class"
_OF_CLASS = f"{PREDICTED_CLASS} "
_SHOWN = 8  # groups named in a message


def calibration_groups(groups: Any, found: Scored) -> tuple[tuple[str, ...], Codes | None]:
    """Return the names of the groups, and the group (n,) of each calibration image; none where there are no groups.

    Args:
        groups: (n,) the group of each, `predicted_class`, or None.
        found: what the images yield.

    Raises:
        ConfigError: another text.
        DataError: another number of groups than of images, a name that is taken, or no classes to group by.
    """
    if groups is None:
        return (), None
    if isinstance(groups, str):
        if groups != PREDICTED_CLASS:
            raise ConfigError(
                f"calibrate.groups — found '{groups}' — allowed: one group per image, or '{PREDICTED_CLASS}'"
            )
        if not found.logits.shape[1]:
            raise DataError(f"groups: '{PREDICTED_CLASS}', and the network has no classifier — give a group per image")
        return tuple(f"{_OF_CLASS}{y}" for y in range(found.logits.shape[1])), found.predicted
    if np.ndim(groups) != 1:
        raise DataError(f"groups: found a {type(groups).__name__} — one group per image expected, as a list")
    given = [str(group) for group in groups]
    reserved = next((name for name in given if name.startswith(_OF_CLASS)), None)
    if reserved is not None:
        raise DataError(
            f"groups: the name '{reserved}' begins as those of predicted classes do — choose another, or "
            f"groups='{PREDICTED_CLASS}'"
        )
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
    if calibration.groups[0].startswith(_OF_CLASS):
        if not (groups is None or (isinstance(groups, str) and groups == PREDICTED_CLASS)):
            raise DataError("groups: the detector's groups are the classes that it predicts — leave them out")
        return found.predicted
    if groups is None:
        more = ", …" * (len(calibration.groups) > _SHOWN)
        raise DataError(
            f"groups: not given — the detector was calibrated group by group ({', '.join(calibration.groups[:_SHOWN])}"
            f"{more}) — say of which group each image is: predict(images, groups=[…]), or --group NAME"
        )
    names = [groups] * len(found.scores) if np.ndim(groups) == 0 else list(groups)
    return calibration.code_of([str(name) for name in names])
