"""Cached tensors of one split, the linear head that made the logits, and its product with features."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.backends import mkldnn

from openbench.core.request import Field, Texts
from openbench.errors import FieldError

DEFAULT_BATCH = 4096
# What differs from float32 and (n, d).
_DTYPES: Mapping[str, torch.dtype] = {Field.LABELS: torch.int64, Field.PATCHES: torch.float16}
_SHAPES: Mapping[str, tuple[int, str]] = {Field.LABELS: (1, "(n,)"), Field.PATCHES: (3, "(n, p, d) with p, d ≥ 1")}
_SMALL = 2**14  # entries of a matrix that is small
_FEW = 512  # rows that stay in the cache of a processor on their way
_FITTED = (("weight", "bias"), ("coef_", "intercept_"))  # torch.nn.Linear, scikit-learn


@dataclass(frozen=True)
class FeatureSet:
    """Columns of n samples. Reading an absent column raises FieldError, so undeclared use is an error.

    Tensors may be memory-mapped and far larger than RAM: read them through `batches`.

    Args:
        columns: `logits` (n, c), `features`, `perturbed` and `mixed` (n, d) float32, `patches` (n, p, d) float16,
            `labels` (n,) int64; any subset.
        maps: layer name → reduced map, float32, first axis n.
        device: where `batches` delivers its slices; the columns themselves stay where they are.
    """

    columns: Mapping[Field, Tensor]
    maps: Mapping[str, Tensor] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        """Check that all columns have the same number of rows, and the dtype and shape that methods expect."""
        columns = self.named()
        if len(columns) != 1 and len(set(map(len, columns.values()))) != 1:
            lengths = {str(name): len(column) for name, column in columns.items()}
            raise FieldError(f"FeatureSet: columns of different length or none at all — found {lengths}")
        for name, column in columns.items():
            expected = _DTYPES.get(name, torch.float32)
            _check_tensor(column, expected, f"FeatureSet: '{name}'")
            shape = column.shape
            axes, allowed = _SHAPES.get(name, (2, "(n, d) with d ≥ 1"))
            fits = len(shape) == axes or (name in self.maps and shape)
            if not fits or 0 in shape[1:]:
                raise FieldError(f"FeatureSet: '{name}' has the shape {tuple(shape)} — {allowed} expected")

    def __len__(self) -> int:
        return len(next(iter(self.named().values())))

    def __contains__(self, name: Field) -> bool:
        return name in self.columns or (name == Field.MAPS and bool(self.maps))

    @property
    def logits(self) -> Tensor:
        """(n, c) float32."""
        return self._column(Field.LOGITS)

    @property
    def features(self) -> Tensor:
        """(n, d) float32, penultimate, after pooling."""
        return self._column(Field.FEATURES)

    @property
    def perturbed(self) -> Tensor:
        """(n, d) float32, features of the input after the step that the request names as `second_pass`."""
        return self._column(Field.PERTURBED)

    @property
    def mixed(self) -> Tensor:
        """(n, d) float32, features of the images mixed with images of OOD validation; only in `fit`."""
        return self._column(Field.MIXED)

    @property
    def patches(self) -> Tensor:
        """(n, p, d) float16, unit features of the p patches of each image."""
        return self._column(Field.PATCHES)

    @property
    def labels(self) -> Tensor:
        """(n,) int64; only in `fit`."""
        return self._column(Field.LABELS)

    def map(self, layer: str) -> Tensor:
        """The reduced map of `layer`, float32, first axis n."""
        if layer not in self.maps:
            raise FieldError(f"maps of '{layer}' read but not declared — add it to needs, as {sorted(self.maps)}")
        return self.maps[layer]

    def batches(self, size: int = DEFAULT_BATCH) -> Iterator["FeatureSet"]:
        """Yield consecutive slices of at most `size` rows, on `device`."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def __getitem__(self, index: slice | Tensor) -> "FeatureSet":
        """Rows `index`, moved to `device`."""
        return FeatureSet(
            {name: tensor[index].to(self.device) for name, tensor in self.columns.items()},
            {name: tensor[index].to(self.device) for name, tensor in self.maps.items()},
            self.device,
        )

    def without_labels(self) -> "FeatureSet":
        """The same columns without the labels: what `score` receives."""
        return replace(self, columns={k: v for k, v in self.columns.items() if k != Field.LABELS})

    def on(self, device: torch.device) -> "FeatureSet":
        """The same columns, delivered on another device."""
        return replace(self, device=device)

    def named(self) -> dict[str, Tensor]:
        """All columns and maps by name."""
        columns: Mapping[Any, Tensor] = self.columns  # its names are text
        return {**columns, **self.maps}

    def _column(self, name: Field) -> Tensor:
        if name not in self.columns:
            raise FieldError(
                f"'{name}' read but not there — present: {sorted(self.columns)}; declare it in the method's needs"
                + (" (labels are visible in fit only)" if name == Field.LABELS else "")
            )
        return self.columns[name]


@dataclass(frozen=True)
class Head:
    """A linear classifier z = W f + b. Zero-shot CLIP is one too: text embeddings × scale, bias 0.

    Args:
        weight: (c, d) float32.
        bias: (c,) float32.
        texts: corpus → unit embeddings (m, d) float32 in the space of the features, for methods that declare them; they
            may be memory-mapped and stay on their device.

    Raises:
        FieldError: other shapes or dtypes, or a value that is NaN or infinite.
    """

    weight: Tensor
    bias: Tensor
    texts: Mapping[Texts, Tensor] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        for name in ("weight", "bias"):
            _check_tensor(getattr(self, name), torch.float32, f"Head: {name}")
        if self.weight.ndim != 2 or self.bias.shape != (self.weight.shape[0],):
            raise FieldError(
                f"Head: weight {tuple(self.weight.shape)}, bias {tuple(self.bias.shape)} — (c, d) and (c,) expected"
            )
        for name in ("weight", "bias"):
            if not bool(getattr(self, name).isfinite().all()):
                raise FieldError(f"Head: {name} has NaN or infinity — check the weights")

    @property
    def num_classes(self) -> int:
        """The number of classes c."""
        return self.weight.shape[0]

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d), on the features' device."""
        device = features.device
        return by_rows(features, self.weight.to(device), self.bias.to(device))

    def to(self, device: torch.device) -> "Head":
        """The same head on a device, copied, so that changing it does not change another method's."""
        return replace(self, weight=self.weight.to(device, copy=True), bias=self.bias.to(device, copy=True))

    def text(self, texts: Texts) -> Tensor:
        """Unit embeddings (m, d) float32 of a corpus, a row for each word.

        Raises:
            FieldError: they are not there, or of another width than the head.
        """
        if texts not in self.texts:
            raise FieldError(f"texts of '{texts.words}' read but not there — declare the corpus in the method's needs")
        embeddings = self.texts[texts]
        _check_tensor(embeddings, torch.float32, f"Head: texts of '{texts.words}'")
        if embeddings.ndim != 2 or embeddings.shape[1] != self.weight.shape[1] or not len(embeddings):
            raise FieldError(
                f"Head: texts of '{texts.words}' are {tuple(embeddings.shape)} — pass (m, {self.weight.shape[1]})"
            )
        return embeddings


def _check_tensor(value: object, expected: torch.dtype, where: str) -> None:
    """Check that a value is a tensor of the expected dtype; converting it would hide a loss of precision."""
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise FieldError(f"{where} is a {kind} — pass a torch.Tensor of {expected}: torch.as_tensor(…)")
    if value.dtype != expected:
        raise FieldError(f"{where} is {value.dtype} — pass tensor.to({expected})")


def fitted_pair(head: Any) -> Any:
    """Return (W, b) of a torch.nn.Linear or of a fitted linear model with `coef_`; anything else as it is.

    Args:
        head: the argument of a call.
    """
    names = ((w, b) for w, b in _FITTED if hasattr(head, w) and hasattr(head, b))
    pair = next(((getattr(head, w), getattr(head, b)) for w, b in names), None)
    if pair and np.size(getattr(head, "classes_", ())) == 2 and np.shape(pair[0])[:-1] in ((), (1,)):
        return tuple([[0.0] * np.size(values), np.ravel(values)] for values in pair)  # the row is of the second class
    return pair or head


def by_rows(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a bᵀ + bias, (n, m), of a (n, d), b (m, d) and bias (m,), in their common precision.

    In float32 on a CPU the product is oneDNN's, which uses what the processor has. torch's own is MKL's, which does so
    on Intel's processors only: on two cores of an AMD EPYC (Zen 5) a (4096, 512) by (512, 512) product ran at 430
    GFLOP/s and 186. Both add up in float32. For few rows by a small matrix, as a classifier's of ten classes, torch's
    own is used: getting oneDNN ready takes longer than the product, of one row several times as long.
    """
    small = not a.numel() or (b.numel() <= _SMALL and (len(a) <= _FEW or not b.numel()))
    single = a.is_cpu and a.dtype == b.dtype == torch.float32
    differentiated = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    ready = mkldnn.is_available() and mkldnn.enabled  # type: ignore[no-untyped-call]
    if small or not single or differentiated or not ready:
        return torch.nn.functional.linear(a, b, bias)
    product: Tensor = torch.nn.functional.linear(a.to_mkldnn(), b, bias).to_dense()
    return product
