"""Warnings about scores that rank nothing, or little: all equal, or infinite."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openbench.core.scores import SetScores

_TURNED = 0.4  # an AUROC below this in every set speaks of scores with the other sign
WARNINGS = "warnings"  # key of a record's provenance: what was said of the scores, and of memory


def remarks(whose: str, scores: Sequence[SetScores], said: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of a record's provenance that warns of all-equal or infinite scores; empty if there are none.

    Args:
        whose: what gave the scores, e.g. `method 'knn'`.
        scores: of all splits.
        said: what was to be warned of before there were scores.
    """
    pooled = np.concatenate([split.scores for split in scores])
    if (pooled == pooled[0]).all():
        found = [
            f"WARNING: {whose} gives all {len(pooled):,} images of all sets the score {pooled[0]:g}: nothing "
            "is ranked by it, so AUROC is 50 whatever the images show"
        ]
    else:
        found = [text for split in scores if (text := _of_set(whose, split))]
    return {WARNINGS: [*said, *found]} if said or found else {}


def turned(whose: str, scores: Sequence[SetScores], values: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line that asks about the sign of scores whose AUROC is far below one half in every OOD set."""
    found = [values[s.name]["auroc"] for s in scores if s.role in ("near", "far") and "auroc" in values[s.name]]
    if not found or max(found) >= _TURNED:
        return ()
    most = f"{100 * max(found):.4g}"
    return (f"WARNING: {whose}: AUROC is {most} at most: is a larger score more OOD? Else turn the sign of all scores",)


def _of_set(whose: str, split: SetScores) -> str:
    where, found = f"{split.role} {split.name}", split.scores
    infinite = int(np.isinf(found).sum())
    if len(found) > 1 and (found == found[0]).all():
        return f"WARNING: {whose} gives all {len(found):,} images of {where} the score {found[0]:g}"
    if infinite:
        return (
            f"WARNING: {whose}: {infinite:,} of {len(found):,} scores of {where} are infinite, which makes "
            "these images equal in every ranking"
        )
    return ""
