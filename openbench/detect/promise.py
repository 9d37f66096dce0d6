"""A detector's guarantee in words: what it says, and what it does not."""

from openbench.detect.calibration import Calibration

_NOT = (
    "Nothing is promised about the share of OOD images that are found, nor about images that are not drawn like the "
    "calibration images (another camera, another season): watch the stream of p-values."
)


def promise_of(calibration: Calibration) -> str:
    """Return the guarantee of a calibrated detector.

    Args:
        calibration: of the detector.
    """
    terms, percent = calibration.terms, f"{100 * calibration.terms.alpha:g} %"
    n, groups = sum(calibration.sizes), len(calibration.groups)
    images = f"{n} calibration images" + (
        f" in {groups} groups (at least {min(calibration.sizes)} in each)" * bool(groups)
    )
    among = "in each group, " if groups else ""
    if calibration.weights is not None:
        said = (
            f"If new ID images come with the density that the weights say, at most {percent} of them are called OOD, "
            f"{among}on average over draws of the {images}."
        )
    elif terms.guarantee == "marginal":
        said = (
            f"Of new ID images that are exchangeable with the calibration images, at most {percent} are called OOD, "
            f"{among}on average over draws of the {images}. For the set at hand the share may be larger; "
            f"p_value_conditional holds for it with probability {1 - terms.delta:g}."
        )
    else:
        said = (
            f"With probability {1 - terms.delta:g} over the draw of the {images}, {among}at most {percent} of new ID "
            "images from the same distribution are called OOD, however many are looked at."
        )
    if calibration.quantile is not None:
        said += (
            f" The prediction set of a new ID image holds its class with probability {terms.level:g} or more, on "
            "average over calibration sets."
        )
    return f"{said} {_NOT}"
