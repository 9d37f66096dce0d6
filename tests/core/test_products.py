import pytest
import torch

from openbench.core.features import by_rows

SHAPES = [(1, 1, 1), (3, 5, 2), (64, 100, 7), (7, 512, 300), (513, 33, 129)]


def drawn(n: int, d: int, m: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(n + d + m)
    shapes = ((n, d), (m, d), (m,))
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def error_in_roundings(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> float:
    """The largest error, in units of what rounding each of d + 1 terms to `found`'s precision can add up to."""
    a, b, bias = a.double(), b.double(), bias.double()
    bound = (a.abs() @ b.abs().T + bias.abs()) * torch.finfo(found.dtype).eps * (a.shape[1] + 1)
    return float(((found.double() - (a @ b.T + bias)).abs() / bound).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("onednn", [True, False])
def test_is_the_product_with_each_row(shape, dtype, onednn, monkeypatch):
    if not onednn:
        monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    a, b, bias = drawn(*shape, dtype)
    found = by_rows(a, b, bias)
    assert found.dtype == dtype
    assert error_in_roundings(found, a, b, bias) <= 1
    assert error_in_roundings(by_rows(a, b), a, b, torch.zeros_like(bias)) <= 1
    assert by_rows(a[:0], b).shape == (0, len(b))


def test_gradients_pass():
    a, b, bias = drawn(4, 3, 2)
    by_rows(a.requires_grad_(), b, bias).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(dim=0).expand(4, -1))
