"""Products of matrices by the fastest routine at hand."""

from collections.abc import Callable

import torch
from torch import Tensor

_SMALL = 2**14  # entries of a matrix that is small
_FEW = 512  # rows that stay in the cache of a processor on their way


def by_rows(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a bᵀ + bias, (n, m), of a (n, d), b (m, d) and bias (m,), in their common precision.

    In float32 on a CPU the product is oneDNN's, which uses what the processor has. torch's own is MKL's, which does so
    on Intel's processors only: on two cores of an AMD EPYC (Zen 5) a (4096, 512) by (512, 512) product ran at 430
    GFLOP/s and 186. Both add up in float32. For few rows by a small matrix, as a classifier's of ten classes, torch's
    own is used: getting oneDNN ready takes longer than the product, of one row several times as long.
    """
    if b.numel() <= _SMALL and len(a) <= _FEW:
        return torch.nn.functional.linear(a, b, bias)
    single = a.is_cpu and a.dtype == b.dtype == torch.float32
    differentiated = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if _ONEDNN is None or not single or differentiated or not torch.backends.mkldnn.enabled or not b.numel():
        return torch.nn.functional.linear(a, b, bias)
    return _ONEDNN(a, b, bias) if a.numel() else a.new_zeros(len(a), len(b))


def _onednn() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """The operator that torch's compiler makes of a linear layer on a CPU; None where torch lacks one that works."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    a, b, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:
        operator = torch.ops.mkldnn._linear_pointwise
        found = operator(a, b, bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None
    if not torch.equal(found, torch.nn.functional.linear(a, b, bias)):  # whole numbers: exact
        return None
    return lambda a, b, bias: operator(a, b, bias, "none", [], "")


_ONEDNN = _onednn()
