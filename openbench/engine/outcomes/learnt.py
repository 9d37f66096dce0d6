"""What a record says of a network: what it is, and by which training, augmentation and outliers it learnt."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from openbench.backbones.base import Backbone
from openbench.config.overrides import AUGMENT
from openbench.core.benchmark import Split
from openbench.data.outliers import outliers_name
from openbench.training.base import TrainingMethod


@dataclass(frozen=True, eq=False)
class Learnt:
    """How weights that were not released came about.

    Args:
        training: as users type it.
        outliers: what it learnt from besides the ID images; None for nothing.
        method: the training itself.
        reused: version, commit and time of the training; empty if the weights are new.
    """

    training: str
    outliers: Split | None = None
    method: TrainingMethod | None = None
    reused: str = ""


def describe_backbone(backbone: Backbone, learnt: Learnt | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's part of a record; a fitted head, augmentation and outliers only if there are any.

    Args:
        backbone: with weights.
        learnt: how they were trained; None for released weights.
        config: the scientific nodes, of which `training` is read.
    """
    described = {
        "name": backbone.name,
        "digest": backbone.digest,
        "weights_sha256": backbone.weights_sha256,
        "num_classes": backbone.num_classes,
        "feature_dim": backbone.feature_dim,
        "preprocess": asdict(backbone.preprocess),
        "training": None if learnt is None else learnt.training,
        **({} if backbone.fitted_head is None else {"head": dict(backbone.fitted_head)}),
    }
    return described if learnt is None else described | named(learnt, config)


def named(learnt: Learnt, config: Mapping[str, Any]) -> dict[str, str]:
    """Return what a record names besides the training: the augmentation as typed and the outliers, if any."""
    augment, outliers = config.get("training", {}).get(AUGMENT), learnt.outliers
    found = {} if outliers is None else {"outliers": outliers_name(outliers), "outliers_digest": outliers.digest}
    return {"augment": augment, **found} if augment else found
