"""Learnt prompts: vectors in place of tokens, the loss of CoOp and LoCoOp step by step, and a known answer."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from openbench.backbones.heads import PromptLearning, learnt_prompts
from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import ConfigError, NotApplicableError

from ..tiny_clip import backbone, whole  # noqa: TID252 — the tests are no package


def test_vectors_of_a_words_token_give_the_embedding_of_the_text():
    tower = backbone().text_towers["text"]
    token = tower.tokenizer(["X"])[0, 1]
    context = whole().token_embedding.weight[token].detach().expand(3, -1).clone().requires_grad_(True)
    found = tower.embed_context(context)
    expected = tower.embed(["X X X cat.", "X X X fire truck.", "X X X frog."])
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)
    found[0, 0].backward()
    assert float(context.grad.abs().max()) > 0
    assert all(p.grad is None for p in tower.model.parameters())
    assert not tower._tokens._forward_hooks
    assert tower.scale == pytest.approx(1 / 0.07, rel=1e-4)
    own = tower.tokenizer
    # As SigLIP's, whose prompts begin with their first word.
    tower.tokenizer = lambda texts, context_length=24: own(texts, context_length=context_length + 1)[:, 1:]
    with pytest.raises(NotApplicableError, match="cannot be replaced by learnt vectors"):
        tower.embed_context(context)
    tower.tokenizer = own
    with pytest.raises(ConfigError, match=r"22 vectors and the class name .* exceed its 24 tokens"):
        tower.embed_context(torch.zeros(22, tower.width))


@dataclass
class Plane:
    """Classes as directions that one vector moves: t_c = unit(base_c + v A)."""

    base: torch.Tensor
    mix: torch.Tensor
    classes: tuple[str, ...] = ("a", "b", "c")
    scale: float = 5.0
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @property
    def width(self):
        return len(self.mix)

    def embed_context(self, context):
        return functional.normalize(self.base + context.mean(dim=0) @ self.mix.to(context), dim=1)


def plane(n=12, seed=0):
    rng = np.random.default_rng(seed)
    base, mix = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
    labels = np.arange(n) % 3
    features = base[labels] + rng.normal(size=(n, 4)) + mix.sum(axis=0)
    patches = rng.normal(size=(n, 5, 4)) + features[:, None]
    columns = {Field.FEATURES: features, Field.PATCHES: patches / np.linalg.norm(patches, axis=2, keepdims=True)}
    kept = {
        k: torch.tensor(v, dtype=torch.float16 if k == Field.PATCHES else torch.float32) for k, v in columns.items()
    }
    tower = Plane(torch.tensor(base).float(), torch.tensor(mix).float())
    return tower, FeatureSet({**kept, Field.LABELS: torch.tensor(labels)})


def loss_by_hand(v, tower, train, weight, top):
    """The loss in float64, image by image and patch by patch."""
    texts = tower.base.double().numpy() + v @ tower.mix.double().numpy()
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)

    def log_p(vector):
        z = 5 * texts @ (vector / np.linalg.norm(vector))
        return z - np.log(np.exp(z).sum())

    losses, entropies = [], []
    for i, y in enumerate(train.labels.tolist()):
        losses.append(-log_p(train.features[i].double().numpy())[y])
        for patch in train.patches[i].double().numpy():
            p = np.exp(log_p(patch))
            if y not in np.argsort(-p)[:top]:
                entropies.append(-(p * np.log(p + 1e-5)).sum())
    return np.mean(losses) - weight * np.mean(entropies)


@pytest.mark.parametrize("kind", ["coop", "locoop"])
def test_vectors_go_where_sgd_by_hand_takes_them(kind):
    tower, train = plane()
    how = PromptLearning(context=1, epochs=3, batch_size=12, lr=0.3, weight=0.7, top=1, seed=3)
    weight = 0.7 if kind == "locoop" else 0.0
    given = (
        train
        if kind == "locoop"
        else replace(train, columns={k: v for k, v in train.columns.items() if k != "patches"})
    )
    v = 0.02 * torch.randn(1, 2, generator=torch.Generator().manual_seed(3)).double().numpy()[0]
    velocity = np.zeros(2)
    for lr in (1e-5, 0.15 * (1 + np.cos(np.pi / 3)), 0.15 * (1 + np.cos(2 * np.pi / 3))):
        steps = 1e-5 * np.eye(2)
        ends = [[loss_by_hand(v + sign * s, tower, train, weight, 1) for sign in (1, -1)] for s in steps]
        velocity = 0.9 * velocity + np.array([up - down for up, down in ends]) / 2e-5 + 5e-4 * v
        v = v - lr * velocity
    found = learnt_prompts(tower, given, train, how)
    expected = 5 * tower.embed_context(torch.tensor(v[None]).float())
    torch.testing.assert_close(found.head.weight, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.head.bias, torch.zeros(3))


def test_the_shots_are_some_of_each_class_by_the_seed():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 0, 1])
    rows = PromptLearning(shots=2).drawn(labels)
    assert torch.bincount(labels[rows]).tolist() == [2, 2, 1]
    assert rows.tolist() == sorted(rows.tolist()) == PromptLearning(shots=2).drawn(labels).tolist()
    assert any(PromptLearning(shots=2, seed=s).drawn(labels).tolist() != rows.tolist() for s in range(1, 5))
    assert PromptLearning(shots=None).drawn(labels).tolist() == list(range(10))


def test_k_is_a_fifth_of_the_classes_and_never_all():
    assert [PromptLearning().top_of(c) for c in (1000, 100, 6, 2)] == [200, 20, 1, 1]
    with pytest.raises(ConfigError, match="top=3 of 3 classes — allowed: 1 to 2"):
        PromptLearning(top=3).top_of(3)
