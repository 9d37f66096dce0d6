"""Detectors of single OOD images: a method on a network, with a threshold that has a finite-sample guarantee."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.api.arguments import head_of, path_of
from openbench.api.methods import chosen_method
from openbench.api.models.wrap import ModelOptions
from openbench.backbones.base import Backbone, resolve_device
from openbench.config.constraints import Count, check_value
from openbench.core.benchmark import Items, RowItems, Split
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.core.search import ChosenMethod, with_params
from openbench.detect._images import (
    BatchScores,
    MemoryFeatures,
    Predictions,
    as_list,
    as_pixels,
    as_rows,
    as_split,
    digests_of,
)
from openbench.detect.calibration import Calibration, Terms, calibration_groups, groups_to_judge
from openbench.detect.network import check_fits, learns_from, network_of, nothing
from openbench.engine.evaluate import FeatureSource, Fitting, Scoring, fit, for_layers, score_split
from openbench.errors import ConfigError, DataError, LeakageError, NotFittedError, check_choice
from openbench.metrics.conformal.p_values import as_weights, benjamini_hochberg
from openbench.metrics.conformal.prediction_sets import conformal_quantile, true_class

_MAX_DIGESTED = 100_000  # images of a benchmark
_NO_DIGESTS = np.zeros((0, 16), np.uint8)


class Detector:
    """An OOD method on a network: `fit` on training images, `calibrate` on held-out ID images, `predict` any image.

    A method that learns nothing, such as `msp`, needs no `fit`. Without a network, data are features (n, d).
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
        """Keep a network and a method; nothing is loaded or computed yet.

        Args:
            model: as for `openbench.evaluate`: a torch.nn.Module, a function of normalised images, the path of an ONNX
                file, or the name of a backbone; None = no network: data are features (n, d).
            method: a name (python -m openbench list method), a method, or the result of `openbench.method`.
            preprocess: of images for a model of your own; as for `openbench.evaluate`.
            classes: names of the classes in the order of the logits; empty = their numbers, or those of the data set.
            features: name of the module whose output is the features, if they are not the classifier's input.
            head: the linear classifier if it is not found: its name or the module, as for `openbench.evaluate`.
            name: of the model; None = that of its class.
            device: a torch device string, or `auto`.
            batch_size: images per forward pass.

        Raises:
            ConfigError: an unknown method or device, or a batch size below 1.
            DataError: not a head.
        """
        check_value(batch_size, Count, "batch_size")
        check_value(classes, Sequence[str], "classes")
        self.chosen = method if isinstance(method, ChosenMethod) else chosen_method(method)
        self.options = ModelOptions(preprocess, features, head_of(head), name, resolve_device(device))
        self.batch_size = batch_size
        self.about: Mapping[str, Any] = {}  # notes that are saved: the record it was chosen by, licences
        self._model, self._classes = model, tuple(classes)
        self.backbone: Backbone | None = None  # once there are images to try the model on
        self.node: Mapping[str, Any] = {}  # the config of openbench's that describes it; empty for a model of your own
        self.seen = _NO_DIGESTS  # (k, 16) uint8, of the images of `fit`
        self._learnt: tuple[Backbone, Method] | None = None
        self._calibration: Calibration | None = None

    def __repr__(self) -> str:
        state = "unfitted" if self._learnt is None else "calibrated" if self._calibration else "fitted"
        model = self.backbone.name if self.backbone else self.options.name or self._model
        return f"Detector({model if isinstance(model, str) else type(model).__name__}, {self.chosen.name}, {state})"

    def __getstate__(self) -> Any:
        """Refuse pickling: a network may be any object.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a Detector cannot be pickled — use detector.save(path) and openbench.load_detector(path)")

    def fit(self, train: Any = None, val: Any = None, *, features: FeatureSource | None = None) -> Self:
        """Fit the method on ID images and return the detector; an earlier calibration is dropped.

        Args:
            train: ID images that the network was trained on, with labels for methods that read them: a data set of
                (image, label) pairs, (images, labels), or images. For a method that is fitted on ID validation, such as
                `react`, ID validation images.
            val: ID validation images, for methods that read both, such as `combood`; None = `train`.
            features: source of the columns of splits; None = the network is run here.

        Raises:
            NotApplicableError: the network does not give what the method reads.
            DataError: no images for a method that needs some, or images that cannot be read.
        """
        rows = self.reads_features
        splits = [as_split(data, Role.ID_TRAIN, self._names(data), rows) for data in (train, val) if data is not None]
        if self._model is None and self.options.head is None:  # features without labels are of one class
            splits = [replace(split, labels=np.maximum(split.labels, 0)) for split in splits]
        if not splits and learns_from(self.chosen.method):
            raise DataError(f"method '{self.chosen.name}' learns from ID images — call fit(train), with labels if any")
        backbone = self._ready(splits[0] if splits else None)
        method = for_layers(self.chosen.method, backbone.layers)
        check_fits(backbone, method, self.chosen.name)
        source = features or MemoryFeatures(backbone, self.batch_size)
        given = splits or [nothing()]
        fitted = fit(with_params(method, {}), Fitting(given[0], given[-1], backbone.head), source, backbone.device)
        # Benchmarks refuse images on two sides: large ones, whose features are cached, are not read again for digests.
        digested = [split for split in splits if features is None or len(split) <= _MAX_DIGESTED]
        self.seen = np.concatenate([_NO_DIGESTS, *(digests_of(split.items) for split in digested)])
        self._learnt, self._calibration = (backbone, fitted), None
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
        """Set thresholds by the scores of held-out ID images, and return the detector.

        Args:
            held_out: ID images that neither the network nor `fit` has seen, drawn like new ones; with labels,
                prediction sets are calibrated too.
            alpha: share of ID images that may be called OOD.
            groups: (n,) the group of each image, e.g. its camera; the guarantee then holds in each group, and `predict`
                needs the group. `"predicted_class"` makes a group of each predicted class.
            weights: (n,) density ratios of new images to these, under a known covariate shift; `predict` then needs
                those of its images.
            delta: δ, the probability that calibration-conditional p-values do not hold for the calibration set, in any
                group.
            correction: of these p-values: `monte_carlo`, `equal_local_level`, `simes` or `dkwm`.
            guarantee: by which p-value `is_ood` decides: `marginal` (on average over calibration sets) or `conditional`
                (for the set at hand, with probability 1 − δ; needs more images).
            coverage: of prediction sets; None = 1 − alpha.

        Raises:
            LeakageError: an image was among those of `fit`.
            DataError: too few images for `alpha`, or groups, weights or labels that do not fit.
            NotFittedError: the method learns from images, and `fit` was not called.
            ConfigError: a value out of its range.
        """
        terms = Terms(alpha, delta, correction, guarantee, coverage)  # type: ignore[arg-type]
        split = as_split(held_out, Role.ID_VAL, self._names(held_out), self.reads_features)
        if self._learnt is None:
            if learns_from(self.chosen.method):
                raise NotFittedError(f"method '{self.chosen.name}' learns from ID images — call fit(train) first")
            self._ready(split)
            self.fit()
        self._refuse_seen(split)
        outputs = self._scored(split.items)
        labels = split.labels if outputs.logits.shape[1] and split.labels.min(initial=0) >= 0 else None
        names, codes = calibration_groups(groups, outputs)
        scores = outputs.scores.astype(np.float64)
        ratios = None if weights is None else as_weights(weights, scores.size, "calibration weights")
        quantile = None if labels is None else conformal_quantile(true_class(outputs.misfit, labels), 1 - terms.level)
        self._calibration = Calibration(scores, terms, names, codes, ratios, quantile)
        return self

    def predict(
        self, images: Any, *, groups: Sequence[Any] | str | None = None, weights: ArrayLike | None = None
    ) -> Predictions:
        """Return scores, p-values, decisions and classes of one image or several.

        Args:
            images: a PIL image, a uint8 array (h, w[, 3]) or a uint8 tensor ([3,] h, w); or several as a list, an array
                (n, h, w, 3) or a tensor (n, 3, h, w); read batch by batch. Without a network, features (n, d) or (d,).
            groups: the group of each image, or one for all, if the detector was calibrated with groups.
            weights: (m,) the density ratio of each image, or one for all, if it was calibrated with weights.

        Raises:
            NotFittedError: before `calibrate`.
            DataError: images, groups or weights that do not fit.
        """
        calibration = self.calibration
        outputs = self._scored(as_rows(images) if self.reads_features else as_list(images))
        judged = calibration.judged(outputs.scores, groups_to_judge(calibration, groups, outputs), weights)
        return Predictions(outputs, *judged, calibration.terms.alpha, self.class_names, calibration.quantile)

    def select(
        self, batch: Any, fdr: float = 0.1, *, guarantee: str = "marginal", groups: Sequence[Any] | str | None = None
    ) -> NDArray[np.bool_]:
        """Return (m,) bool, the images of a batch that Benjamini and Hochberg's procedure calls OOD.

        A share of at most `fdr` of them is ID on average: over calibration sets and batches with `marginal` p-values;
        over batches for this calibration set, with probability 1 − δ, with `conditional`.

        Args:
            batch: images as for `predict`, or its Predictions.
            fdr: false discovery rate in (0, 1).
            guarantee: `marginal` or `conditional`.
            groups: as for `predict`.

        Raises:
            ConfigError: another guarantee, or a detector that was calibrated with weights.
            MetricError: `fdr` out of range.

        Reference: Benjamini and Hochberg, 1995; Bates et al., Ann. Statist. 2023, arXiv 2104.08279.
        """
        check_choice("select.guarantee", guarantee, ("marginal", "conditional"))
        if self.calibration.weights is not None:
            raise ConfigError(
                "select has no guarantee for weighted p-values — calibrate without weights, or use predict"
            )
        rows = batch if isinstance(batch, Predictions) else self.predict(batch, groups=groups)
        return benjamini_hochberg(rows.p_value if guarantee == "marginal" else rows.p_value_conditional, fdr)

    @property
    def alpha(self) -> float:
        """The share of ID images that may be called OOD."""
        return self.calibration.terms.alpha

    @property
    def learnt(self) -> tuple[Backbone, Method]:
        """The network and the fitted method.

        Raises:
            NotFittedError: before `fit`.
        """
        if self._learnt is None:
            raise NotFittedError(f"{self!r} used before fit — call fit(train) first")
        return self._learnt

    @property
    def calibration(self) -> Calibration:
        """Scores of the calibration images, and the terms of the guarantee.

        Raises:
            NotFittedError: before `calibrate`.
        """
        if self._calibration is None:
            raise NotFittedError(f"{self!r} used before calibrate — call calibrate(held_out, alpha=0.05) first")
        return self._calibration

    @property
    def threshold(self) -> float | Mapping[str, float]:
        """The score above which an image is called OOD; with groups a mapping from them; empty with weights."""
        thresholds = self.calibration.thresholds
        return thresholds[""] if list(thresholds) == [""] else thresholds

    @property
    def promise(self) -> str:
        """The guarantee in words."""
        return self.calibration.promise

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits; empty without a classifier."""
        count = (self.backbone or self.learnt[0]).num_classes
        return self._classes if len(self._classes) == count else tuple(map(str, range(count)))

    def save(self, path: str | Path, network: str = "weights") -> str:
        """Write the detector for `openbench.load_detector`; return its digest.

        Args:
            path: of a new folder, or of a file that ends in `.zip`.
            network: `weights`; or `onnx`, which needs no class of yours, with scores that differ in the last digits.

        Raises:
            NotFittedError: before `calibrate`.
            NotApplicableError: the network or the method cannot be written so.
        """
        from openbench.detect.saved import write

        return write(self, path_of(path, "path"), network)

    @property
    def reads_features(self) -> bool:
        """Whether data are rows of features (n, d), and not images."""
        return self._model is None or (isinstance(self._model, Backbone) and not self._model.has_network)

    def _names(self, data: Any) -> tuple[str, ...]:
        """Return the names of the classes: of the argument, else of the data set."""
        names = getattr(data, "classes", ())
        if not self._classes and isinstance(names, list | tuple):
            self._classes = tuple(map(str, names))
        return self._classes

    def _ready(self, images: Split | None) -> Backbone:
        """Return the network, made ready with the first images."""
        if self.backbone is None:
            if images is None and not isinstance(self._model, str):
                raise DataError("fit: a model of your own is tried on images — call fit(train)")
            backbone, node = network_of(self._model, self.options, images or nothing(), self._classes)
            count = backbone.num_classes
            if count and self._classes and count != len(self._classes):
                names = f"there are {len(self._classes)} class names"
                raise DataError(f"model '{backbone.name}' has {count} output classes, and {names} — pass one for each")
            self.backbone, self.node = backbone, node
        return self.backbone

    def _refuse_seen(self, split: Split) -> None:
        """Check that no calibration image was in `fit`."""
        fitted = {row.tobytes() for row in self.seen}
        digests = digests_of(split.items) if fitted else ()
        twice = [index for index, row in enumerate(digests) if row.tobytes() in fitted]
        if twice:
            what = f"{len(twice)} of {len(split)} images were given to fit (first: image {twice[0]})"
            raise LeakageError(f"calibration: {what}, so nothing is guaranteed — calibrate on images it has not seen")

    def _scored(self, images: Items) -> BatchScores:
        """Return scores and logits, batch by batch; a pass of the network serves both."""
        (backbone, method), are_rows = self.learnt, isinstance(images, RowItems)
        parts = []
        for start in range(0, len(images), self.batch_size):
            rows = range(start, min(start + self.batch_size, len(images)))
            batch = [images[row] if are_rows else as_pixels(images[row], f"image {row}") for row in rows]
            n, keys = len(batch), list(map(str, rows))
            split = Split("images", Role.ID_TEST, batch, np.full(n, -1), keys, (), "images", n)
            features, logits = MemoryFeatures(backbone, n), np.empty((n, 0), np.float32)
            scores = score_split(method, split, Scoring(features, backbone.device, n))
            if backbone.num_classes:
                logits = features(split, Request(fields=frozenset({Field.LOGITS}))).logits.numpy()
            parts.append((scores, logits))
        return BatchScores(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))
