"""Probes of the user's own networks and methods, before their cached outputs or records are reused.

Digests of code and weights miss a value that code reads from elsewhere (a global, a class attribute, a file). So every
network that openbench does not ship is run on a dozen images, twice, in parts and among other images, and compared with
its earlier outputs. A method of the user's is fitted on a few hundred cached rows and scores a dozen; the record has
these scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.record import PROBE
from openbench.core.request import Mixing, Request, Texts
from openbench.core.search import with_params
from openbench.data.loading import batches
from openbench.digest import array_sha256, digest
from openbench.engine.evaluate import CachedFeatures, FeatureSource, Fitting, Scoring, fit, score_split
from openbench.errors import ConfigError, DataError, OpenbenchError, RecordError
from openbench.results.records.store import RecordStore, load
from openbench.source import foreign_code, foreign_sources
from openbench.storage.checksum import DAMAGED
from openbench.storage.files import creating

FEW = 12
# How far rounding may move outputs, as a share of how much they vary: on a CPU, elsewhere, and in 16 bits.
_ROUNDING, _ON_DEVICE, _HALVES, _OF_LARGEST = 1e-3, 5e-3, 5e-2, 1e-2
_NUMBERS = 4  # per image, of features and of logits each, that a record keeps
_FIT, _SCORED = 384, 12  # rows of a method's probe
_OF_SCORES = 1e-3  # of the largest score
Rows = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Probe:
    """The outputs of a network for a few images.

    Args:
        images: of ID test, spread over its classes.
        rows: features (n, d) and logits (n, c).
        network: digest of its class, sources, weights, structure and preprocessing.
        variant: distinguishes networks of the same digest and other rows; empty for the first one, None before they are
            compared.
    """

    images: Split
    rows: Rows
    network: str
    variant: str | None = None

    def recorded(self) -> dict[str, Any]:
        """Return the probe as records hold it: values, since another processor rounds otherwise."""
        numbers = {name: [[float(f"{x:.6g}") for x in row] for row in rows] for name, rows in _sums(self.rows).items()}
        variant = {"variant": self.variant} if self.variant else {}
        return {"network": self.network, "images": self.images.digest, **variant, "outputs": numbers}


def some_of(split: Split) -> Split:
    """Return a few images of a split, spread over it, and so over its classes."""
    rows = list(range(0, len(split), max(1, len(split) // FEW)))[:FEW]
    items, keys = [split.items[row] for row in rows], [split.keys[row] for row in rows]
    return replace(split, items=items, labels=split.labels[rows], keys=keys)


def ask(backbone: Backbone, split: Split) -> None:
    """Set the probe of a network, and check that its outputs for an image depend on that image alone.

    Raises:
        ConfigError: the same images give other outputs or pixels, a module is in training mode, or an output depends on
            the other images of its batch.
        DataError: an image that cannot be read, or outputs that are not finite.
    """
    images = some_of(split)
    pixels = _pixels(images, backbone)
    if not np.array_equal(pixels, _pixels(images, backbone), equal_nan=True):
        raise ConfigError(
            f"model '{backbone.name}': preprocess gives other pixels each time it is called — pass the transform that "
            "the network is tested with, without random steps (CenterCrop instead of RandomCrop, no flips)"
        )
    rows = _rows(backbone, pixels)
    for key, of in rows.items():
        if bad := int((~np.isfinite(of).all(axis=1)).sum()):
            raise DataError(
                f"model '{backbone.name}': {key} are NaN or infinite for {bad} of the first {len(of)} images, whose "
                f"pixels reach {float(pixels.abs().max()):.3g} after preprocess — check the weights and the preprocess"
            )
    _check_repeats(backbone, pixels, rows)
    _check_ignores_batch(backbone, pixels, rows)
    backbone.probe = Probe(images, rows, digest([backbone.digest, foreign_sources(backbone)]))


def _check_repeats(backbone: Backbone, pixels: Tensor, rows: Rows) -> None:
    network: torch.nn.Module | None = getattr(backbone, "network", None)
    training = [place or "the network" for place, part in network.named_modules() if part.training] if network else []
    exact = backbone.device.type == "cpu" and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    fault = _difference(rows, _rows(backbone, pixels), 0.0 if exact else _rounding(rows, backbone))
    if training:
        fault = f"{training[0]} is in training mode during the forward pass" + (fault and f", and {fault}")
    if fault:
        raise ConfigError(
            f"model '{backbone.name}' is not deterministic in eval mode: {fault} for the same {len(pixels)} images — "
            "use nn.Dropout, which eval() turns off, or F.dropout(…, training=self.training)"
        )


def _check_ignores_batch(backbone: Backbone, pixels: Tensor, rows: Rows) -> None:
    if len(pixels) == 1:
        return
    single, rest = _rows(backbone, pixels[:1]), _rows(backbone, pixels[1:])
    apart = {key: np.concatenate([of, rest[key]]) for key, of in single.items()}
    if fault := _difference(rows, apart, _rounding(rows, backbone)):
        raise ConfigError(
            f"model '{backbone.name}': an output depends on the batch: {fault} among other images — let batch norm use "
            "its running statistics (track_running_stats=True, and eval()), and take no mean over the batch"
        )


def probed(backbone: Backbone, benchmark: Benchmark, features: Path, records: RecordStore) -> None:
    """Give a network that openbench does not ship a digest of its own.

    The digest is that of its classes, sources, weights and preprocessing, unless an earlier network of that digest had
    other outputs for the same images: then these outputs enter it.

    Args:
        backbone: with weights, on its device.
        benchmark: some of its ID test images are the input.
        features: the folder of cached features.
        records: that may be reused.

    Raises:
        ConfigError: as for `ask`; or its digest cannot be changed.
    """
    if backbone.probe is None and backbone.has_network and foreign_code(backbone):
        ask(backbone, benchmark.id_test)
    probe: Probe | None = backbone.probe
    if probe is None or probe.variant is not None:
        return
    rounding = _rounding(probe.rows, backbone)
    same: dict[str, bool] = {}  # variant → whether all its known outputs are those of this network
    for variant, then, now in _known(backbone, probe, features / "probes", records.folder / benchmark.name):
        same[variant] = same.get(variant, True) and not _difference(then, now, rounding)
    other = digest({name: array_sha256(of) for name, of in probe.rows.items()}) if same else ""
    variant = next((variant for variant, is_same in same.items() if is_same), other)
    pixels: Any = probe.images.items
    images: dict[str, Any] = {f"image{i}": np.asarray(image) for i, image in enumerate(pixels)}
    with suppress(OSError), creating(features / "probes" / f"{probe.network}-{variant}.npz") as stream:
        np.savez(stream, **images, **probe.rows)  # type: ignore[arg-type]  # it may be there, or the cache be read-only
    backbone.probe = replace(probe, variant=variant)
    if variant:
        before, backbone.architecture = backbone.digest, f"{backbone.architecture}, probe {variant}"
        if backbone.digest == before:
            raise ConfigError(
                f"backbone '{backbone.name}' has other outputs than are cached under its digest {before}: something "
                "that its code reads has changed — let its digest or its architecture cover that"
            )


def _known(backbone: Backbone, probe: Probe, cached: Path, records: Path) -> Iterator[tuple[str, Rows, Rows]]:
    """Yield (variant, its outputs, this network's outputs for the same images) of earlier networks of this digest."""
    for file in sorted(cached.glob(f"{probe.network}-*.npz")):
        try:
            with np.load(file, allow_pickle=False) as pack:
                then = {name: pack[name] for name in probe.rows}
                images = [pack[f"image{i}"] for i in range(len(pack.files) - len(then))]
        except (*DAMAGED, BadZipFile):
            file.unlink(missing_ok=True)
            continue
        n = len(images)
        split = replace(probe.images, items=images, labels=np.full(n, -1), keys=[f"image {i}" for i in range(n)])
        yield file.stem.partition("-")[2], then, _rows(backbone, _pixels(split, backbone))
    for file in sorted((records / backbone.name).glob("*/*.json")):
        with suppress(RecordError):
            old = load(file).provenance.get(PROBE) or {} if probe.network.encode() in file.read_bytes() else {}
            if (old.get("network"), old.get("images")) == (probe.network, probe.images.digest):
                outputs = {name: np.array(rows, np.float32) for name, rows in old["outputs"].items()}
                yield old.get("variant") or "", outputs, _sums(probe.rows)


def _pixels(images: Split, backbone: Backbone) -> Tensor:
    return next(batches(images, backbone.preprocess, max(1, len(images))))


def _rows(backbone: Backbone, pixels: Tensor) -> Rows:
    """Return the features of a network, and its logits if it has a classifier."""
    try:
        outputs = backbone.outputs(pixels, Request())
    except OpenbenchError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"model '{backbone.name}' fails on a batch of {len(pixels)} images ({type(error).__name__}: "
            f"{str(error)[:300]}) — it must take any number of images, as the last batch of a set is shorter"
        ) from error
    rows = {"features": outputs.features, "logits": outputs.logits}
    return {name: of.detach().cpu().float().numpy() for name, of in rows.items() if of.shape[1]}


def _sums(rows: Rows) -> dict[str, NDArray[np.float32]]:
    """Return a few numbers for each image, each a sum over all outputs with other factors."""
    sums = {}
    for name, of in rows.items():
        factors = np.cos(np.outer(np.arange(of.shape[1]), 1 + np.arange(_NUMBERS)))
        sums[name] = (of.astype(np.float64) @ factors).astype(np.float32)
    return sums


def _rounding(rows: Rows, backbone: Backbone) -> float:
    """Return how far rounding may move outputs; numbers that fit in 16 bits were computed in 16 bits."""
    tensors = [torch.from_numpy(of) for of in rows.values()]
    if any(torch.equal(of, of.to(kind).float()) for of in tensors for kind in (torch.float16, torch.bfloat16)):
        return _HALVES
    return _ROUNDING if backbone.device.type == "cpu" else _ON_DEVICE


def _difference(one: Rows, other: Rows, rounding: float) -> str:
    """Describe by how much outputs differ; empty if they are the same within rounding."""
    for name, then in one.items():
        now = other.get(name, np.empty(0))
        largest, spread = float(np.abs(then).max()), float(np.abs(then - then.mean(axis=0)).max())
        off = float(np.abs(then - now).max()) if then.shape == now.shape else float("inf")
        if not off <= rounding * (spread + _OF_LARGEST * largest):
            return f"{name}, which reach {largest:.3g}, differ by up to {off:.3g}"
    return ""


@dataclass(frozen=True)
class _Sampled(FeatureSource):
    """A few hundred rows of each split, spread over it."""

    features: CachedFeatures

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        return self.features(split, request)[_spread(len(split), _FIT)]

    def texts(self, texts: Texts) -> Tensor:
        return self.features.texts(texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        return self.features.mixed(split, others, mixing)[_spread(len(split), _FIT)]


def ask_method(method: Method, benchmark: Benchmark, features: CachedFeatures) -> list[float]:
    """Return the scores of a dozen rows of ID test by a method with default hyper-parameters; empty if it fails.

    Args:
        method: unfitted; it is not changed.
        benchmark: its rows are fitted on and scored.
        features: of the network.
    """
    sample, device = _Sampled(features), features.backbone.device
    try:
        fitted = fit(with_params(method, {}), Fitting.of(benchmark, features.backbone.head), sample, device)
        scores = score_split(fitted, benchmark.id_test, Scoring(sample, device))
    except OpenbenchError:  # e.g. more neighbours than rows
        return []
    return [float(f"{x:.6g}") for x in np.nan_to_num(scores[_spread(len(scores), _SCORED).numpy()])]


def same_scores(then: Sequence[float], now: Sequence[float]) -> bool:
    """Return whether two lists of scores are the same within rounding; an empty one equals any."""
    if not then or not now:
        return True
    first, second = np.array(then), np.array(now)
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _OF_SCORES * np.abs(first).max())


def _spread(n: int, most: int) -> Tensor:
    return torch.arange(0, n, max(1, -(-n // most)))
