import numpy as np
import pytest
import torch
from scipy.special import softmax

from openbench.backbones.anatomy import reduce_map
from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import FieldError
from openbench.methods.maps import Gram, _drawn

SHAPES = {"stage1": (3, 4, 4), "stage2": (5, 2, 3)}


def data(n: int, c: int = 4, seed: int = 0, dead: bool = False) -> dict:
    """Raw maps, logits and labels; class 1 is never a label and class 2 never a prediction."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, c))
    labels = logits.argmax(axis=1)
    labels[::7] = rng.integers(c, size=len(labels[::7]))
    if c > 2:
        labels[labels == 1] = 0
        logits[:, 2] = -9
    maps = {k: rng.normal(size=(n, *shape)) + labels[:, None, None, None] for k, shape in SHAPES.items()}
    if dead:
        maps["stage2"][:, 1] = 0
    return {"logits": logits.astype(np.float32), "labels": labels, **{k: m.astype(np.float32) for k, m in maps.items()}}


def columns(raw: dict, powers: int = 10) -> FeatureSet:
    pool = "gram" if powers <= 5 else "gram10"
    maps = {layer: reduce_map(torch.tensor(raw[layer]), pool) for layer in SHAPES}
    return FeatureSet({Field.LOGITS: torch.tensor(raw["logits"]), Field.LABELS: torch.tensor(raw["labels"])}, maps)


def rows_of(one: np.ndarray, powers: int) -> np.ndarray:
    """Row sums of one sample's Gram matrices, formed whole, with signed roots; (channels, powers)."""
    f = one.reshape(len(one), -1).astype(np.float64)
    sums = [(f**p @ (f**p).T).sum(axis=1) for p in range(1, powers + 1)]
    return np.stack([np.sign(s) * np.abs(s) ** (1 / p) for p, s in enumerate(sums, start=1)], axis=1)


def by_loops(train: dict, test: dict, powers: int, form: str, held: np.ndarray) -> np.ndarray:
    """Sample by sample and class by class, from raw maps."""
    p_train, p_test = (softmax(raw["logits"].astype(np.float64), axis=1) for raw in (train, test))
    of = p_train.argmax(axis=1) if form == "paper" else train["labels"]
    used = np.flatnonzero(~held)
    rows = {layer: np.stack([rows_of(one, powers) for one in train[layer]]) for layer in SHAPES}

    def deviation(layer: str, one: np.ndarray, predicted: int) -> float:
        known = rows[layer][[i for i in used if of[i] == predicted] or used]
        low, high, g = known.min(axis=0), known.max(axis=0), rows_of(one, powers)
        below, above = np.maximum(low - g, 0), np.maximum(g - high, 0)
        return float((below / abs(low + 1e-6) + above / abs(high + 1e-6)).sum())

    score = np.zeros(len(test["labels"]))
    for layer in SHAPES:
        own = [deviation(layer, train[layer][i], p_train[i].argmax()) for i in np.flatnonzero(held)]
        own = own / p_train[held].max(axis=1) if form == "paper" else own
        found = [deviation(layer, test[layer][i], p_test[i].argmax()) for i in range(len(score))]
        score += np.array(found) / (np.mean(own) + 1e-7)
    return score / p_test.max(axis=1)


@pytest.mark.parametrize("form", ["paper", "openood"])
@pytest.mark.parametrize(
    ("c", "powers", "n", "dead"),
    [*((c, powers, 80, False) for c in (2, 4) for powers in (1, 5, 10)), (1000, 10, 300, True)],
)
def test_equals_loops_over_whole_gram_matrices(c, powers, n, dead, form):
    """With a thousand classes, of few samples and with a channel that never fires."""
    train, test = data(n, c, dead=dead), data(50, c, seed=1, dead=dead)
    method = Gram(list(SHAPES), powers, form, held_out=0.2, seed=3).fit(columns(train, powers), None)
    expected = by_loops(train, test, powers, form, _drawn(n, 0.2, 3).numpy())
    # Small row sums are differences of large ones, and columns are float32.
    np.testing.assert_allclose(method.score(columns(test, powers).without_labels()), expected, rtol=2e-3)


@pytest.mark.parametrize("form", ["paper", "openood"])
def test_class_scores_take_the_ranges_of_each_class_in_turn(form):
    train, test = data(80), data(20, seed=1)
    method = Gram(list(SHAPES), 3, form, held_out=0.2, seed=3).fit(columns(train, 3), None)
    x = columns(test, 3).without_labels()
    found = method.class_scores(x)
    assert found.dtype == torch.float32
    # An image that is predicted to be of class y meets the ranges of y; its confidence is put back to what it was.
    confidence = softmax(test["logits"].astype(np.float64), axis=1).max(axis=1)
    for y in range(4):
        logits = test["logits"].copy()
        logits[:, y] = logits.max(axis=1) + 1
        assumed = method.score(columns({**test, "logits": logits}, 3).without_labels()).double().numpy()
        assumed *= softmax(logits.astype(np.float64), axis=1).max(axis=1) / confidence
        np.testing.assert_allclose(found[:, y], assumed, rtol=1e-5)
    at_predicted = found[torch.arange(20), x.logits.argmax(dim=1)]
    np.testing.assert_allclose(at_predicted, method.score(x), rtol=1e-6)


def test_neither_fit_nor_class_scores_depend_on_how_rows_are_batched(monkeypatch):
    train, test = columns(data(100)), columns(data(20, seed=1)).without_labels()
    whole = Gram(list(SHAPES)).fit(train, None)
    scores, by_class = whole.score(test), whole.class_scores(test)
    monkeypatch.setattr("openbench.methods.maps._ROWS", 7)
    assert torch.equal(whole.class_scores(test), by_class)
    np.testing.assert_allclose(Gram(list(SHAPES)).fit(train, None).score(test), scores, rtol=1e-6)


def test_held_out_is_the_share_asked_for_and_never_empty():
    assert abs(float(_drawn(10000, 0.1, 0).float().mean()) - 0.1) < 0.01
    assert int(_drawn(3, 1e-9, 0).sum()) == 1
    assert not torch.equal(_drawn(100, 0.5, 0), _drawn(100, 0.5, 1))


def test_orders_and_layers_choose_what_is_read():
    assert Gram(powers=5).request.pool == "gram"
    assert Gram(powers=6).request.pool == "gram10"
    assert Gram().request.layers == ("stage1", "stage2", "stage3", "stage4")
    with pytest.raises(FieldError, match="stage3"):
        Gram().fit(columns(data(20)), None)
