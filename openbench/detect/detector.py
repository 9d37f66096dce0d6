"""A detector for single images: an OOD method on a network, with a threshold that carries a finite-sample guarantee."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.api.arguments import head_of, path_of
from openbench.api.methods import chosen_method
from openbench.api.models.wrap import ModelOptions
from openbench.backbones.device import resolve_device
from openbench.config.constraints import Count, check_value
from openbench.core.benchmark import Items, Split
from openbench.core.method import Method
from openbench.core.request import Role
from openbench.core.search import ChosenMethod
from openbench.detect import export, saved
from openbench.detect.calibration import Calibration, Terms, calibration_groups, groups_to_judge, promise_of
from openbench.detect.features import MemoryFeatures, Predictions, Scored, network_input, scored
from openbench.detect.given_images import GivenItems, as_list, as_pixels, as_split, digests_of, names_of, numbered
from openbench.detect.network import Learnt, Network, check_fits, learns_from, network_of, nothing
from openbench.engine.evaluate import FeatureSource, Fitting, fit, for_layers
from openbench.errors import ConfigError, DataError, LeakageError, NotFittedError
from openbench.metrics.conformal.p_values import as_weights, benjamini_hochberg
from openbench.metrics.conformal.prediction_sets import conformal_quantile, true_class

_MOST_READ_AGAIN = 100_000
_NO_DIGESTS = np.zeros((0, 16), np.uint8)


class Detector:
    """An OOD method on a network: fitted on training images, calibrated on held-out ID images, asked for any image.

    The order is `fit`, `calibrate`, `predict`. A method that learns nothing, such as `msp`, may leave `fit` out.
    """

    def __init__(
        self,
        model: Any,
        method: Any = "msp",
        *,
        preprocess: Any = None,
        classes: Sequence[str] = (),
        features: str | None = None,
        head: Any = None,
        name: str | None = None,
        device: str = "cpu",
        batch_size: int = 256,
    ) -> None:
        """Take a network and a method; nothing is loaded or computed yet.

        Args:
            model: as for `openbench.evaluate`: a torch.nn.Module, a function of normalised images, the path of an ONNX
                file, or the name of a backbone.
            method: a name (python -m openbench list method), an object of a method's class, or what `openbench.method`
                returned.
            preprocess: how images reach a model of your own; as for `openbench.evaluate`.
            classes: names of the classes in the order of the logits; empty = their numbers, or those of the data set.
            features: name of the module whose output is the features, where they are not the classifier's input.
            head: the linear classifier where it cannot be found: its name, or itself, as for `openbench.evaluate`.
            name: of the model; None = its class's.
            device: a torch device string, or `auto`.
            batch_size: images per forward pass.

        Raises:
            ConfigError: an unknown method or device, or a batch size below 1.
            DataError: a head that is none.
        """
        check_value(batch_size, Count, "batch_size")
        self.chosen = method if isinstance(method, ChosenMethod) else chosen_method(method)
        self.asked = ModelOptions(preprocess, features, head_of(head), name, resolve_device(device))
        self.batch_size = batch_size
        self.about: Mapping[str, Any] = {}  # notes that are saved: the record it was chosen by, licences
        self._model, self._classes = model, names_of(classes)
        self._network: Network | None = None
        self._learnt: Learnt | None = None
        self._calibration: Calibration | None = None

    def __repr__(self) -> str:
        state = "unfitted" if self._learnt is None else "calibrated" if self._calibration else "fitted"
        model = self._network.backbone.name if self._network else self.asked.name or self._model
        return f"Detector({model if isinstance(model, str) else type(model).__name__}, {self.chosen.name}, {state})"

    def __getstate__(self) -> Any:
        """Refuse to be pickled: a network may be any object.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a Detector cannot be pickled — save it with detector.save(path) and load it with openbench.load_detector"
        )

    def fit(self, train: Any = None, val: Any = None, *, features: FeatureSource | None = None) -> Self:
        """Learn what the method learns from ID images, and return itself; an earlier calibration is forgotten.

        Args:
            train: ID images that the network was trained on, with labels for methods that read them: a data set of
                (image, label) pairs, (images, labels), or images. For a method that is fitted on ID validation, such as
                `react`, images of that kind.
            val: ID validation images, for methods that read both, such as `combood`; None = `train`.
            features: where the columns of splits come from; None = the network is run here.

        Raises:
            NotApplicableError: the method reads what the network does not show.
            DataError: no images where the method needs some, or images that cannot be read.
        """
        splits = [as_split(given, Role.ID_TRAIN, self._names(given)) for given in (train, val) if given is not None]
        if not splits and learns_from(self.chosen.method):
            raise DataError(
                f"method '{self.chosen.name}' learns from ID images — none given — call fit(train), with a data set "
                "of (image, label) pairs or (images, labels)"
            )
        network = self._ready(splits[0] if splits else None)
        method = for_layers(self.chosen.method, network.backbone.layers)
        check_fits(network, method, self.chosen.name)
        source = features or MemoryFeatures(network.backbone, self.batch_size)
        placeholder = splits[0] if splits else nothing()
        fitting = Fitting(placeholder, splits[-1] if splits else placeholder, network.backbone.head)
        fresh = type(method)(**method.params())
        fitted = fit(fresh, fitting, source, network.backbone.device)
        # A benchmark, whose features are cached, has refused images on two sides: many are not read again for digests.
        read = [split for split in splits if features is None or len(split) <= _MOST_READ_AGAIN]
        seen = np.concatenate([_NO_DIGESTS, *(digests_of(split.items) for split in read)])
        self._learnt, self._calibration = Learnt(network, fitted, seen), None
        return self

    def calibrate(
        self,
        held_out: Any,
        alpha: float = 0.05,
        *,
        groups: Sequence[Any] | str | None = None,
        weights: ArrayLike | None = None,
        delta: float = 0.05,
        correction: str = "monte_carlo",
        guarantee: str = "marginal",
        coverage: float | None = None,
    ) -> Self:
        """Learn from held-out ID images how large scores are without OOD, and return itself.

        Args:
            held_out: ID images that neither the network nor `fit` has seen, drawn like those to come; with labels,
                prediction sets are calibrated too.
            alpha: share of ID images that may be called OOD.
            groups: (n,) the group of each image, e.g. its camera; the promise then holds in each group, and `predict`
                asks for the group. `"predicted_class"` makes a group of each predicted class.
            weights: (n,) density ratios of the images to come against those held out, under a known covariate shift;
                `predict` then asks for those of its images.
            delta: δ, the probability that the calibration set is an unlucky one, in any group, for
                calibration-conditional p-values.
            correction: how these are made: `monte_carlo`, `equal_local_level`, `simes` or `dkwm`.
            guarantee: by which p-value `is_ood` decides: `marginal` (on average over calibration sets) or `conditional`
                (for the set at hand, with probability 1 − δ; needs more images).
            coverage: of prediction sets; None = 1 − alpha.

        Raises:
            LeakageError: an image was among those that `fit` saw.
            DataError: too few images for `alpha`, or groups, weights or labels that do not fit.
            NotFittedError: the method learns from images, and `fit` was not called.
            ConfigError: a value out of its range.
        """
        terms = Terms(alpha, delta, correction, guarantee, coverage)  # type: ignore[arg-type]
        split = as_split(held_out, Role.ID_VAL, self._names(held_out))
        if self._learnt is None:
            if learns_from(self.chosen.method):
                raise NotFittedError(f"method '{self.chosen.name}' learns from ID images — call fit(train) first")
            self._ready(split)
            self.fit()
        self._refuse_seen(split)
        found = self._scored(split.items)
        labels = split.labels if found.logits.shape[1] and split.labels.min(initial=0) >= 0 else None
        names, codes = calibration_groups(groups, found)
        self._calibration = Calibration(
            found.scores.astype(np.float64),
            terms,
            names,
            codes,
            None if weights is None else as_weights(weights, len(found.scores), "calibration weights"),
            None if labels is None else conformal_quantile(true_class(found.misfit, labels), 1 - terms.level),
        )
        return self

    def predict(
        self, images: Any, *, groups: Sequence[Any] | str | None = None, weights: ArrayLike | None = None
    ) -> Predictions:
        """Return what the detector says of one image or of several.

        Args:
            images: a PIL image, a uint8 array (h, w[, 3]) or a uint8 tensor ([3,] h, w); or several as a list, an array
                (n, h, w, 3) or a tensor (n, 3, h, w).
            groups: the group of each image, or one for all, where the detector was calibrated with groups.
            weights: (m,) the density ratio of each image, or one for all, where it was calibrated with weights.

        Raises:
            NotFittedError: before `calibrate`.
            DataError: images, groups or weights that do not fit.
        """
        given, single = as_list(images)
        where = "image" if single else "image {}"
        pixels = [as_pixels(image, where.format(row)) for row, image in enumerate(given)]
        return self._judged(pixels, groups, weights)

    def judged(
        self, items: Items, *, groups: Sequence[Any] | str | None = None, weights: ArrayLike | None = None
    ) -> Predictions:
        """Return what the detector says of decoded images, which are read batch by batch.

        Args:
            items: (h, w) or (h, w, 3) uint8 each; or images in any form that `predict` takes.
            groups: as for `predict`.
            weights: as for `predict`.

        Raises:
            NotFittedError: before `calibrate`.
            DataError: images, groups or weights that do not fit.
        """
        return self._judged(GivenItems(as_list(items)[0]), groups, weights)

    def _judged(self, items: Items, groups: Sequence[Any] | str | None, weights: ArrayLike | None) -> Predictions:
        """What the detector says of images that are pixels."""
        calibration = self.calibration
        found = self._scored(items)
        codes = groups_to_judge(calibration, groups, found)
        own = weights if weights is None or np.ndim(weights) else np.full(len(found.scores), weights)
        judged = calibration.judged(found.scores, codes, own)
        return Predictions(found, *judged, calibration.terms.alpha, self.class_names, calibration.quantile)

    def select(
        self, batch: Any, fdr: float = 0.1, *, guarantee: str = "marginal", groups: Sequence[Any] | str | None = None
    ) -> NDArray[np.bool_]:
        """Return (m,) bool, the images of a batch that are called OOD together, by Benjamini and Hochberg.

        Of those selected, a share of at most `fdr` is ID on average: over calibration sets and batches with
        `marginal` p-values; over batches for the calibration set at hand, with probability 1 − δ, with `conditional`.

        Args:
            batch: images as for `predict`, or the Predictions that it returned.
            fdr: false discovery rate in (0, 1).
            guarantee: `marginal` or `conditional`.
            groups: as for `predict`.

        Raises:
            ConfigError: another guarantee, or a detector that was calibrated with weights.
            MetricError: `fdr` out of range.

        Reference: Benjamini and Hochberg, 1995; Bates et al., Ann. Statist. 2023, arXiv 2104.08279.
        """
        if guarantee not in ("marginal", "conditional"):
            raise ConfigError(f"select.guarantee — found {guarantee!r} — allowed: marginal, conditional")
        if self.calibration.weights is not None:
            raise ConfigError(
                "select: weighted p-values of one batch depend on one another, and Benjamini–Hochberg's guarantee is "
                "not known for them — calibrate without weights, or decide image by image with predict"
            )
        found = batch if isinstance(batch, Predictions) else self.predict(batch, groups=groups)
        return benjamini_hochberg(found.p_value if guarantee == "marginal" else found.p_value_conditional, fdr)

    @property
    def alpha(self) -> float:
        """The share of ID images that may be called OOD."""
        return self.calibration.terms.alpha

    @property
    def learnt(self) -> Learnt:
        """The network and the fitted method.

        Raises:
            NotFittedError: before `fit`.
        """
        if self._learnt is None:
            raise NotFittedError(f"{self!r} used before fit — call fit(train) first")
        return self._learnt

    @property
    def calibration(self) -> Calibration:
        """Scores of the calibration images, and what follows from them.

        Raises:
            NotFittedError: before `calibrate`.
        """
        if self._calibration is None:
            raise NotFittedError(f"{self!r} used before calibrate — call calibrate(held_out, alpha=0.05) first")
        return self._calibration

    @property
    def threshold(self) -> float | Mapping[str, float]:
        """The score above which an image is called OOD; with groups, a mapping from them; empty with weights."""
        found = self.calibration.thresholds
        return found[""] if list(found) == [""] else found

    @property
    def promise(self) -> str:
        """The guarantee in words."""
        return promise_of(self.calibration)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits; empty where the network has no classifier."""
        count = self.learnt.network.backbone.num_classes
        return self._classes if len(self._classes) == count else numbered(count)

    def save(self, path: str | Path, network: str = "weights") -> str:
        """Write the detector for `openbench.load_detector`; return the digest of all of it.

        Args:
            path: of a new folder, or of a file that ends in `.zip`.
            network: `weights`; or `onnx`, which needs no class of yours, with scores that differ in the last digits.

        Raises:
            NotFittedError: before `calibrate`.
            NotApplicableError: the network or the method cannot be written so.
        """
        whole = saved.Saved(
            self.learnt,
            self.calibration,
            self.asked,
            self.chosen.name,
            self.class_names,
            self.batch_size,
            self.about,
        )
        return saved.write(whole, path_of(path, "path"), network)

    def to_onnx(self, path: str | Path) -> int | None:
        """Write one ONNX graph, normalised images to score, p-value, decision and logits; needs the extra `onnx`.

        Return the number of images per call, None where any will do. It is compared with torch in onnxruntime first.

        Raises:
            NotFittedError: before `calibrate`.
            NotApplicableError: the method reads more than features and logits, or there are groups or weights.
            ConfigError: onnx or onnxruntime is not installed.
        """
        learnt = self.learnt
        return export.to_onnx(learnt.network.backbone, learnt.method, self.calibration, path_of(path, "path"))

    def use(self, network: Network, asked: ModelOptions) -> Self:
        """Take a network that is ready in place of the model given, and return itself.

        Args:
            network: ready to run.
            asked: what the caller said about it.
        """
        self._network, self.asked = network, asked
        return self

    def _names(self, given: Any) -> tuple[str, ...]:
        """Names of the classes: as given, or of the data set."""
        if not self._classes:
            held = given.classes if isinstance(given, Split) else getattr(given, "classes", ())
            if isinstance(held, list | tuple):
                self._classes = tuple(map(str, held))
        return self._classes

    def _ready(self, images: Split | None) -> Network:
        """The network, made ready for the first images that there are."""
        if self._network is None:
            if images is None:
                if not isinstance(self._model, str):
                    raise DataError("fit: no images given, and a model of your own is tried on some — call fit(train)")
                images = nothing()
            made = network_of(self._model, self.asked, images, self._classes)
            count = made.backbone.num_classes
            if count and self._classes and count != len(self._classes):
                raise DataError(
                    f"model '{made.backbone.name}' has {count} output classes — found {len(self._classes)} "
                    "class names — give one for each output"
                )
            self._network = made
        return self._network

    def _refuse_seen(self, split: Split) -> None:
        """Refuse calibration images that `fit` saw."""
        seen = self.learnt.seen
        if not len(seen):
            return
        known = {row.tobytes() for row in seen}
        twice = [index for index, row in enumerate(digests_of(split.items)) if row.tobytes() in known]
        if twice:
            raise LeakageError(
                f"calibration: {len(twice)} of {len(split)} images were given to fit (first: image {twice[0]}) — their "
                "scores are smaller than those of new images, so the guarantee would not hold — calibrate with ID "
                "images that neither the network nor the method has seen"
            )

    def _scored(self, images: Items) -> Scored:
        """Scores and logits, batch by batch."""
        backbone, method = self.learnt.network.backbone, self.learnt.method
        parts = []
        for start in range(0, len(images), self.batch_size):
            rows = [images[row] for row in range(start, min(start + self.batch_size, len(images)))]
            parts.append(scored(method, backbone, network_input(rows, backbone.preprocess)))
        if len(parts) == 1:
            return parts[0]
        return Scored(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))


def load_detector(
    path: str | Path,
    *,
    model: Any = None,
    method: Method | None = None,
    preprocess: Any = None,
    device: str = "cpu",
    digest: str | None = None,
) -> Detector:
    """Return a detector that was saved; no code in it is run, and nothing but its files is read.

    The digests find what was damaged or edited without care. Whoever can write the files can write digests that fit, so
    where that matters, keep the digest that `save` returned and pass it.

    Args:
        path: the folder or the `.zip`.
        model: the network, where it is of a class of your own; its weights are those of the detector.
        method: the unfitted method, where it is of a class of your own.
        preprocess: the transform, where it is a function of your own.
        device: a torch device string, or `auto`.
        digest: of the manifest, as `save` returned it; None = not compared.

    Raises:
        CheckpointError: not a detector, changed since it was saved, or made by versions that do not fit.
    """
    asked = ModelOptions(preprocess, device=resolve_device(device))
    found = saved.read(path_of(path, "path"), asked, model, method, digest)
    network, fitted = found.learnt.network, found.learnt.method
    unfitted = chosen_method(type(fitted)(**fitted.params()), name=found.method)
    detector = Detector(
        network.backbone, unfitted, classes=found.classes, device=device, batch_size=found.batch_size
    ).use(network, found.asked)
    detector.about, detector._learnt, detector._calibration = found.about, found.learnt, found.calibration
    return detector
