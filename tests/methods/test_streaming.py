"""Training columns may be larger than memory: no method that reads them makes a tensor of their size."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Role
from openbench.methods import _bank, mfs, neighbours, tabular

from .discovered import NODES, again, reading_columns, scores

N, D, C = 5003, 40, 20  # a batch has 4,096; no other size is a multiple of the prime
QUICK = {"epochs": 1, "epoch": 1, "batch_size": 2048, "batch": 2048, "max_train": 24}  # where a method has them


METHODS = {
    name: again(method, QUICK)
    for name, method in reading_columns()
    if name in NODES and method.needs.fit_on == Role.ID_TRAIN and not method.request.layers
}


class Made(TorchDispatchMode):
    """Notes every tensor that is made: its shape, and by what. Views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[torch.Size, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and (tensor.is_mkldnn or place(tensor) not in given):
                self.tensors.append((tensor.shape, str(func)))
        return out


def place(tensor: torch.Tensor) -> int | None:
    """Where its memory begins; oneDNN does not say."""
    return None if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def columns(n: int, head: Head, generator: torch.Generator) -> FeatureSet:
    labels = torch.arange(n) % C
    features = (head.weight[labels] + 0.5 * torch.randn(n, D, generator=generator)).relu()
    found = {Field.FEATURES: features, Field.LOGITS: head(features), Field.LABELS: labels}
    return FeatureSet({**found, Field.MIXED: features.flip(0)})


@pytest.mark.parametrize("name", METHODS)
def test_training_columns_are_never_copied_whole(name, monkeypatch):
    # What is small enough to be copied, or handled at once, must not hide what would be at any size.
    monkeypatch.setattr(tabular, "_SORTED_IN_MEMORY", N * D - 1)
    monkeypatch.setattr(tabular, "_SORTED", 4096 * D)
    monkeypatch.setattr(mfs, "_AT_ONCE", 4 * N)
    for module in (_bank, neighbours):
        monkeypatch.setattr(module, "_BANK_CHUNK", 4096)
    generator = torch.Generator().manual_seed(0)
    head = Head(2 * torch.randn(C, D, generator=generator), torch.zeros(C))
    train, test = columns(N, head, generator), columns(50, head, generator).without_labels()
    method = METHODS[name]
    train, test = (
        replace(x, columns={f: c for f, c in x.columns.items() if f in method.request.fields}) for x in (train, test)
    )
    with Made() as made:
        scores(method.fit(train, head if method.request.head else None), test)
    # What has a row, or a column, for each training sample.
    long = [(shape.numel() // N, by) for shape, by in made.tensors if shape.numel() % N == 0]
    width, by = max(long, default=(0, "nothing"))
    assert width < min(D, C), f"{by} makes {width} values per training sample, as many as a feature or its logits"
