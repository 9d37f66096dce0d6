"""What methods read, and whether it is there: methods and networks, trainings and released weights."""

from collections.abc import Mapping
from typing import Any

from openbench.backbones.base import Backbone
from openbench.config.build import target_of
from openbench.config.overrides import AUGMENT, NAME
from openbench.core.benchmark import Benchmark
from openbench.core.method import LiveMethod, Method, leaves
from openbench.core.request import Field, Role
from openbench.engine.evaluate import mixed_with
from openbench.errors import NotApplicableError
from openbench.features.changed_images import check_corruption
from openbench.features.texts import Corpus
from openbench.public import TARGET
from openbench.training.base import TrainingMethod
from openbench.training.methods.cross_entropy import CrossEntropy

NEEDS = ("training data", "outliers", "gradients", "text")
_OF_TEXT = ("MCM", "GLMCM", "ZeroShot")  # classes of methods whose papers make the classifier of text
PLAIN = "cross_entropy"  # what released classifiers were trained with, and the default where nothing is typed


class Requirements:
    """What a method reads: what is true of any of the methods that it is composed of.

    Args:
        method: unfitted, or its class where no instance can be made.
    """

    def __init__(self, method: Method | type[Method]) -> None:
        parts = [method] if isinstance(method, type) else list(leaves(method))
        kinds = [part if isinstance(part, type) else type(part) for part in parts]
        requests = [part.needs if isinstance(part, type) else part.request for part in parts]
        self.fields = frozenset(field for request in requests for field in request.fields)
        self.layers = tuple(dict.fromkeys(layer for request in requests for layer in request.layers))
        self.pools = tuple(dict.fromkeys(request.pool for request in requests if request.layers))
        self.fitted_on = tuple(dict.fromkeys(request.fit_on for request in requests if request.fit_on))
        self.head = any(request.head for request in requests)
        self.mixing = any(request.mixing for request in requests)
        self.gradients = any(request.perturb or request.second_pass for request in requests)
        self.live = any(issubclass(kind, LiveMethod) for kind in kinds)
        # Embeddings of text, or a classifier made of text.
        self.text = any(r.texts for r in requests) or any(kind.__name__ in _OF_TEXT for kind in kinds)

    @property
    def family(self) -> str:
        """What the score is computed from, one of `report.site.facts.READS`."""
        if self.text:
            return "text"
        if self.gradients or self.live or self.mixing:
            return "gradients or images"
        if self.layers:
            return "layers"
        if Field.FEATURES not in self.fields:
            return "logits"
        return "features and classifier" if self.head or Field.LOGITS in self.fields else "features"

    @property
    def needs(self) -> tuple[str, ...]:
        """What a user must have, of NEEDS."""
        fitted_on = [role in self.fitted_on for role in (Role.ID_TRAIN, Role.OOD_TRAIN)]
        has = (*fitted_on, self.gradients or self.live, self.text)
        return tuple(need for need, needed in zip(NEEDS, has, strict=True) if needed)

    def __str__(self) -> str:
        """Return it in words: `features, labels; fit on id_train`."""
        words = ["images" if self.live else ", ".join(sorted(map(str, self.fields)))]
        words += [f"{', '.join(self.layers)} ({', '.join(self.pools)})"] * bool(self.layers)
        words += ["head"] * self.head + ["input gradient"] * self.gradients
        words += [f"fit on {', '.join(self.fitted_on)}"] * bool(self.fitted_on)
        return "; ".join(words)


def check_classes(benchmark: Benchmark, backbone: Backbone, method: Method, name: str) -> None:
    """Check that a network has a classifier for the benchmark's classes, if the method reads one.

    Raises:
        NotApplicableError: the method reads a classifier and there is none, or another part that the backbone lacks.
        ConfigError: it mixes images with those of OOD validation, and there are none.
    """
    if any(leaf.request.mixing for leaf in leaves(method)):
        mixed_with(benchmark.ood_val)
    read = lacking(backbone, method, tells_apart(backbone, benchmark))
    if read == lacking(backbone, method):
        refuse_missing_parts(backbone, method, name)
        return
    way = "a backbone trained on these classes (python -m openbench list backbone)"
    if len(benchmark.classes) == 1:
        why = f"benchmark '{benchmark.name}' has one class and no classifier"
    elif not backbone.classifies:
        why = f"backbone '{backbone.name}' has no classifier"
        way = "give it one: head=(W, b) with a model or features of your own, backbone.head=linear_probe with a name"
    else:
        why = (
            f"backbone '{backbone.name}' has {backbone.num_classes} output classes, benchmark '{benchmark.name}' has "
            f"{len(benchmark.classes)}"
        )
    raise NotApplicableError(
        f"method '{name}' reads {', '.join(read)}, but {why} — choose a method that reads features only, e.g. "
        f"method=knn or method=mds, or {way}"
    )


def refuse_missing_parts(backbone: Backbone, method: Method, name: str) -> None:
    """Check that a backbone shows what a method reads besides the classifier of the benchmark's classes.

    Args:
        backbone: with logits if the method reads them.
        method: unfitted.
        name: what users type for it.

    Raises:
        NotApplicableError: it has not.
        DataError: a list of words that the method reads is not there.
        ConfigError: it reads images of a corruption that does not exist.
    """
    for leaf in leaves(method):
        for texts in leaf.request.texts:
            try:
                _ = Corpus(backbone, texts).words
            except NotApplicableError as error:
                raise NotApplicableError(f"method '{name}' reads embeddings of text: {error}") from error
        if leaf.request.corruption is not None:
            check_corruption(leaf.request.corruption, f"method '{name}'")
    if read := lacking(backbone, method):
        parts = {"features": backbone.has_features, "logits": backbone.num_classes, "a head": backbone.has_head}
        has = [part for part, there in parts.items() if there and (backbone.num_classes or part == "features")]
        one = "features, e.g. knn" if backbone.has_features else "logits, e.g. msp, mls or energy"
        raise NotApplicableError(
            f"method '{name}' reads {', '.join(read)}, but backbone '{backbone.name}' has "
            f"{' and '.join(has)} only — choose a method that reads {one}, or {backbone.missing}"
        )


def lacking(backbone: Backbone, method: Method, classified: bool = True) -> list[str]:
    """Return, in words, what a method reads that a backbone does not have.

    Args:
        backbone: with weights.
        method: unfitted.
        classified: whether the network has a classifier for the classes at hand.
    """
    found: dict[str, None] = {}
    for leaf in leaves(method):
        request = leaf.request
        features = request.head or bool(request.fields & {Field.FEATURES, Field.PERTURBED})
        parts = {
            "logits": Field.LOGITS in request.fields and not classified,
            "features": features and not backbone.has_features,
            "the head": request.head and not (backbone.has_head and classified),
            "features of patches": Field.PATCHES in request.fields and not (backbone.has_patches and classified),
            "corrupted images": request.corruption is not None and not backbone.has_network,
            "mixed images": request.mixing is not None and not backbone.has_network,
            "maps of its layers": Field.MAPS in request.fields and not (backbone.has_network and backbone.layers),
            "images": isinstance(leaf, LiveMethod) and not (backbone.runs_live and classified),
            "input gradients": (request.perturb or request.second_pass)
            and not (backbone.differentiable and classified),
        }
        found |= {part: None for part, missing in parts.items() if missing}
    return [*found, *["predictions"] * (type(method).search_reads_predictions and not classified)]


def tells_apart(backbone: Backbone, benchmark: Benchmark) -> bool:
    """Whether a network has a classifier for the classes of a benchmark."""
    return backbone.classifies and backbone.num_classes == len(benchmark.classes) > 1


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
    name = (config.get("backbone") or {}).get(NAME)
    ways = "train from scratch: choose a backbone without weights (python -m openbench list backbone)"
    if backbone.classifies:
        ways += f"; or fine-tune these weights: backbone=finetuned backbone@backbone.start={name}"
        ways += " backbone.head=new" * (backbone.num_classes != len(benchmark.classes))
    raise NotApplicableError(
        f"{' '.join(typed)} would be ignored: backbone '{backbone.name}' comes with released weights — {ways}; or "
        f"leave {' and '.join(typed)} out and score the weights as they are"
    )
