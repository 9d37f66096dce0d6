"""Computing as another processor would: every result of torch that may be rounded differently is moved by that much.

Two processors give different last digits in three ways, and these are imitated:

- a sum is added up in another order, or with fused multiply-adds (mm, sum, mean, convolutions, …): its result moves
  by up to two units of rounding of the sum of the absolute terms;
- a function is computed by another library (exp, log, tanh, …): its result moves by up to a unit in the last place;
- a matrix is decomposed by another library: its input moves by a unit of its largest entry, and the signs of
  eigenvectors, which nothing defines, are drawn.

Sums, differences, products and quotients of two numbers, comparisons, and whatever moves numbers to another place are
the same everywhere (IEEE 754) and stay as they are. NumPy and SciPy compute in double precision, whose rounding
vanishes in the 24 bits that are stored; they are left alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SUMS = _words("mm addmm bmm baddbmm mv addmv dot vdot sum mean cumsum convolution nansum")
_FUNCTIONS = _words(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh asin acos atan atan2 sinh cosh sigmoid pow rsqrt erf "
    "erfc erfinv lgamma digamma softplus logsumexp _softmax _log_softmax log_sigmoid_forward logaddexp logit "
    "xlogy special_xlog1py var var_mean std std_mean linalg_vector_norm norm prod cumprod _cdist_forward "
    "_pdist_forward renorm lerp addcmul addcdiv logcumsumexp _logcumsumexp tanh_backward sigmoid_backward "
    "smooth_l1_loss mse_loss _euclidean_dist randn normal trace _foreach_norm huber_loss "
    "binary_cross_entropy_with_logits softplus_backward reciprocal elu gelu silu acosh elu_backward "
    "_sample_dirichlet"
)
_BLURRED = _words(
    "native_batch_norm _native_batch_norm_legit native_batch_norm_backward convolution_backward "
    "_softmax_backward_data _log_softmax_backward_data avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward grid_sampler_2d grid_sampler_2d_backward upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_bicubic2d native_layer_norm native_layer_norm_backward _cdist_backward "
    "linalg_vector_norm_backward nll_loss_forward nll_loss2d_forward index_add scatter_add scatter_reduce "
    "embedding_dense_backward log_sigmoid_backward histc _to_dense"
)
# The same everywhere: copies, comparisons, choices, whole numbers, and what IEEE 754 rounds in one way.
_EXACT = _words(
    "_foreach_mul _foreach_add _foreach_div _linalg_check_errors _local_scalar_dense _record_function_enter_new "
    "_record_function_exit _to_copy _unsafe_view abs add alias all amax amin aminmax any arange argmax argmin "
    "bernoulli bincount bitwise_and bitwise_not bitwise_or bitwise_xor bucketize cat clamp clamp_min clamp_max clone "
    "copy detach diagonal diagonal_backward div empty empty_like eq expand eye fill flip floor full full_like gather "
    "ge gt index index_select isnan isinf isfinite kthvalue le leaky_relu leaky_relu_backward lift_fresh lt "
    "masked_fill max maximum min minimum mul nan_to_num ne neg new_empty new_full new_ones new_zeros "
    "nll_loss_backward nonzero ones ones_like permute rand random randperm relu repeat replication_pad1d round "
    "rsub scalar_tensor scatter searchsorted select set sign slice slice_backward sort split sqrt squeeze stack "
    "sub t threshold_backward topk triu_indices remainder rot90 constant_pad_nd new_empty_strided randint "
    "logical_and logical_or logical_not select_backward index_put linspace ceil floor_divide _unique2 unique_dim "
    "_foreach_lerp to_mkldnn mkldnn_linear linear transpose tril triu unbind uniform unsqueeze view where zero zeros "
    "zeros_like"
)
_DECOMPOSED = _words(
    "_linalg_eigh _linalg_svd linalg_qr linalg_cholesky_ex linalg_inv_ex _linalg_solve_ex linalg_lstsq "
    "linalg_solve_triangular linalg_pinv _linalg_det _linalg_slogdet cholesky_inverse cholesky_solve linalg_eig"
)


class Rounding(TorchDispatchMode):
    """While open, what torch computes carries the rounding of some other processor.

    Args:
        seed: which one.

    Attributes:
        unknown: operations met of which it is not known how they round: they have to be put into a list above.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute, then move."""
        given = dict(kwargs or {})
        name = func._schema.name.partition("::")[2]
        plain = name.removesuffix("_") if not name.endswith("__") else name
        if plain in _DECOMPOSED:
            return self._decomposed(func, args, given)
        if plain in _SUMS and plain == name and "out" not in given:
            scale = func(*_each(args, Tensor.abs), **_each(given, Tensor.abs))
            return self._moved(func(*args, **given), lambda out: scale, 2.0)
        found = func(*args, **given)
        if plain in _SUMS:
            return self._moved(found, Tensor.abs, 2.0)
        if plain in _FUNCTIONS:
            # Multiples of ⅛ are exp 0, log 1, the softmax of equal numbers and the like: exact in every library.
            return self._moved(found, lambda out: out.abs() * (8 * out != (8 * out).round()), 2.0)
        if plain in _BLURRED:
            # What is nought is a sum of noughts, and nought everywhere.
            return self._moved(found, lambda out: (out.abs() + out.abs().mean()) * (out != 0), 2.0)
        if plain not in _EXACT:
            self.unknown.add(name)
        return found

    def _moved(self, found: Any, scale: Callable[[Tensor], Tensor], units: float) -> Any:
        """Results moved in place by up to `units` of half their spacing, times `scale`."""
        for out in found if isinstance(found, tuple | list) else (found,):
            if isinstance(out, Tensor) and out.is_floating_point() and out.numel():
                step = units * torch.finfo(out.dtype).eps / 2 * (2 * self._drawn(out) - 1) * scale(out)
                # Infinity stays as it is, and so does what lies in memory more than once.
                if not any(stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape, strict=True)):
                    out.add_(torch.where(out.isfinite() & step.isfinite(), step, 0.0))
        return found

    def _decomposed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        def jolted(x: Tensor) -> Tensor:
            noise = 2 * self._drawn(x) - 1
            if "eigh" in str(func) or "cholesky" in str(func):
                noise = (noise + noise.mT) / 2
            largest = x.abs().amax() if x.numel() else 0
            return x + torch.finfo(x.dtype).eps * largest * noise

        found = func(*_each(args, jolted), **given)
        if "eigh" in str(func) or "svd" in str(func):
            self._turned(found)
        return found

    def _turned(self, found: tuple[Tensor, ...]) -> None:
        """Draw the signs of eigenvectors, in place: found are (values, vectors), or (U, S, Vh)."""
        vectors = found[1] if len(found) == 2 else found[0]
        if vectors.numel():
            signs = (self._drawn(vectors[..., :1, :]) < 0.5).to(vectors.dtype) * 2 - 1
            vectors.mul_(signs)
            if len(found) == 3:
                rows = min(signs.shape[-1], found[2].shape[-2])
                found[2][..., :rows, :].mul_(signs[..., :rows].mT)

    def _drawn(self, like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=self._generator, dtype=like.dtype)


def _each(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Arguments with every floating tensor among them changed."""
    if isinstance(values, Tensor):
        return change(values) if values.is_floating_point() else values
    if isinstance(values, dict):
        return {key: _each(value, change) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_each(value, change) for value in values)
    return values
