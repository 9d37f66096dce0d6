"""Products of matrices by the fastest routine at hand."""

import torch
from torch import Tensor
from torch.backends import mkldnn

_SMALL = 2**14  # entries of a matrix that is small
_FEW = 512  # rows that stay in the cache of a processor on their way


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
