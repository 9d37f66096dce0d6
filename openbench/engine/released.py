"""Released weights beside a training that they would ignore: an error that says what can be done."""

from collections.abc import Iterator, Mapping
from typing import Any

from openbench.backbones.base import Backbone
from openbench.config.build import target_of
from openbench.config.overrides import AUGMENT, NAME, changes
from openbench.config.shipped import names, shipped
from openbench.core.benchmark import Benchmark
from openbench.errors import NotApplicableError
from openbench.public import TARGET
from openbench.training.base import TrainingMethod
from openbench.training.methods.cross_entropy import CrossEntropy

PLAIN = "cross_entropy"  # what released classifiers were trained with, and the default where nothing is typed
_WEIGHTS = ("weights", "checkpoint")


def check_training_counts(backbone: Backbone, benchmark: Benchmark, config: Mapping[str, Any], training: str) -> None:
    """Refuse a training or an augmentation that was chosen for a backbone that is trained already.

    Args:
        backbone: with released weights.
        benchmark: what it is to be scored on.
        config: the scientific nodes.
        training: as users type it.

    Raises:
        NotApplicableError: one was chosen; a sweep skips the combination as not applicable.
    """
    node, augment = config.get("training") or {}, (config.get("training") or {}).get(AUGMENT)
    chosen = target_of(node, "training", (TrainingMethod,)) if node.get(TARGET) else None
    plain = training == PLAIN or chosen is CrossEntropy
    typed = [f"training={training}"] * (not plain) + [f"+augment={augment}"] * bool(augment)
    if not typed:
        return
    ways = list(_ways(backbone, benchmark, config.get("backbone") or {}))
    if getattr(chosen, "fine_tunes", False):
        ways.reverse()
    raise NotApplicableError(
        f"{' '.join(typed)} would be ignored — backbone '{backbone.name}' comes with released weights — "
        f"{'; or '.join(ways)}; or leave {' and '.join(typed)} out and score the weights as they are"
    )


def _ways(backbone: Backbone, benchmark: Benchmark, node: Mapping[str, Any]) -> Iterator[str]:
    """What to type instead: the same network from random weights, and from the released ones."""
    if not backbone.classifies:
        yield "choose a backbone that is trained (python -m openbench list backbone)"
        return
    name = str(node.get(NAME))
    scratch = _untrained(node) or (
        f"backbone={name} backbone.weights=null backbone.preprocess=null" if "weights" in node else ""
    )
    yield (
        f"train from scratch: {scratch}"
        if scratch
        else ("train from scratch: a backbone without weights (python -m openbench list backbone)")
    )
    plain = shipped("backbone", name)
    words = [f"backbone=finetuned backbone@backbone.start={name}", *changes("backbone.start", plain or node, node)]
    words += ["backbone.head=new"] * (backbone.num_classes != len(benchmark.classes))
    yield f"fine-tune from these weights: {' '.join(words)}"


def _untrained(node: Mapping[str, Any]) -> str:
    """The shipped backbone that is the same network without weights, if there is one."""
    for name in names("backbone"):
        other = shipped("backbone", name) or {}
        same = all(node.get(key) and other.get(key) == node.get(key) for key in (TARGET, "model"))
        if same and not any(other.get(key) for key in _WEIGHTS):
            return f"backbone={name}"
    return ""
