"""Scores of maps, against NumPy and scikit-learn."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import roc_auc_score

from openbench.backbones.anatomy import reduce_map
from openbench.backbones.rows import Identity
from openbench.core.benchmark import Validation
from openbench.core.features import FeatureSet, Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Role
from openbench.core.search import with_params
from openbench.engine.evaluate import Fitting, Scoring, fit, score_split
from openbench.engine.tune import TuneContext
from openbench.errors import ConfigError, FieldError, MethodError, NotApplicableError
from openbench.methods.maps import (
    Gram,
    LayerMDS,
    MDSEnsemble,
    RankFeat,
    SteppedLayerMDS,
    _drawn,
    logistic_weights,
    top_direction,
    without_top,
)
from tests.engine.toy import split

from .problems import STD

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


def gram_columns(raw: dict, powers: int = 10) -> FeatureSet:
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
def test_gram_equals_loops_over_whole_gram_matrices(c, powers, n, dead, form):
    """With a thousand classes, of few samples and with a channel that never fires."""
    train, test = data(n, c, dead=dead), data(50, c, seed=1, dead=dead)
    method = Gram(list(SHAPES), powers, form, held_out=0.2, seed=3).fit(gram_columns(train, powers), None)
    expected = by_loops(train, test, powers, form, _drawn(n, 0.2, 3).numpy())
    # Small row sums are differences of large ones, and gram_columns are float32.
    np.testing.assert_allclose(method.score(gram_columns(test, powers).without_labels()), expected, rtol=2e-3)


@pytest.mark.parametrize("form", ["paper", "openood"])
def test_gram_class_scores_take_the_ranges_of_each_class_in_turn(form):
    train, test = data(80), data(20, seed=1)
    method = Gram(list(SHAPES), 3, form, held_out=0.2, seed=3).fit(gram_columns(train, 3), None)
    x = gram_columns(test, 3).without_labels()
    found = method.class_scores(x)
    assert found.dtype == torch.float32
    # An image that is predicted to be of class y meets the ranges of y; its confidence is put back to what it was.
    confidence = softmax(test["logits"].astype(np.float64), axis=1).max(axis=1)
    for y in range(4):
        logits = test["logits"].copy()
        logits[:, y] = logits.max(axis=1) + 1
        assumed = method.score(gram_columns({**test, "logits": logits}, 3).without_labels()).double().numpy()
        assumed *= softmax(logits.astype(np.float64), axis=1).max(axis=1) / confidence
        np.testing.assert_allclose(found[:, y], assumed, rtol=1e-5)
    at_predicted = found[torch.arange(20), x.logits.argmax(dim=1)]
    np.testing.assert_allclose(at_predicted, method.score(x), rtol=1e-6)


def test_gram_neither_fit_nor_class_scores_depend_on_how_rows_are_batched(monkeypatch):
    train, test = gram_columns(data(100)), gram_columns(data(20, seed=1)).without_labels()
    whole = Gram(list(SHAPES)).fit(train, None)
    scores, by_class = whole.score(test), whole.class_scores(test)
    monkeypatch.setattr("openbench.methods.maps._ROWS", 7)
    assert torch.equal(whole.class_scores(test), by_class)
    np.testing.assert_allclose(Gram(list(SHAPES)).fit(train, None).score(test), scores, rtol=1e-6)


def test_gram_held_out_is_the_share_asked_for_and_never_empty():
    assert abs(float(_drawn(10000, 0.1, 0).float().mean()) - 0.1) < 0.01
    assert int(_drawn(3, 1e-9, 0).sum()) == 1
    assert not torch.equal(_drawn(100, 0.5, 0), _drawn(100, 0.5, 1))


def test_gram_orders_and_layers_choose_what_is_read():
    assert Gram(powers=5).request.pool == "gram"
    assert Gram(powers=6).request.pool == "gram10"
    assert Gram().request.layers == ("stage1", "stage2", "stage3", "stage4")
    with pytest.raises(FieldError, match="stage3"):
        Gram().fit(gram_columns(data(20)), None)


def by_svd(maps: torch.Tensor) -> torch.Tensor:
    """The paper's recipe: each map's own SVD, its first term subtracted."""
    out = np.empty(maps.shape)
    for i, one in enumerate(maps.double().numpy()):
        u, s, vt = np.linalg.svd(one.reshape(len(one), -1), full_matrices=False)
        out[i] = ((u[:, 1:] * s[1:]) @ vt[1:]).reshape(one.shape)
    return torch.tensor(out)


def pooled_after(module: torch.nn.Module, x: torch.Tensor, number: int, changed: int = 0) -> torch.Tensor:
    """Means of maps after some stages, called one after the other without hooks; one loses its rank-1 part."""
    x = torch.relu(module.bn1(module.conv1(x)))
    for k in range(1, number + 1):
        x = module.get_submodule(f"layer{k}")(x)
        x = by_svd(x).to(x) if k == changed else x
    return x.mean(dim=(2, 3))


def logits_with(network, images, changed: int) -> np.ndarray:
    module = network.module().eval()
    with torch.no_grad():
        return module.fc(pooled_after(module, images, 3, changed)).double().numpy()


@pytest.mark.parametrize(
    ("layers", "changed", "temperature"),
    [(None, (2, 3), 1.0), (None, (2, 3), 3.0), (["stage1"], (1,), 1.0), (["stage3"], (3,), 1.0)],
)
def test_rankfeat_equals_svd_between_the_stages_of_a_real_network(network, images, layers, changed, temperature):
    mean = np.mean([logits_with(network, images, number) for number in changed], axis=0)
    found = RankFeat(layers, temperature).score_images(images, network)
    np.testing.assert_allclose(found, -temperature * logsumexp(mean / temperature, axis=1), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 8, 2, 2), (3, 4, 5, 6), (2, 1, 3, 3), (2, 5, 1, 1)])
def test_rankfeat_without_top_equals_the_svd(shape):
    maps = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(without_top(maps, top_direction), by_svd(maps), atol=1e-6)


def test_rankfeat_a_map_of_rank_one_or_zero_vanishes():
    rank_one = torch.einsum("nc,nl->ncl", torch.rand(3, 7), torch.rand(3, 4)).view(3, 7, 2, 2)
    for maps in (rank_one, torch.zeros(2, 7, 2, 2)):
        for direction in (top_direction, RankFeat(solver="power")._iterated):
            assert float(without_top(maps, direction).abs().max()) < 1e-6


def test_rankfeat_many_power_iterations_reach_the_exact_direction(network, images):
    exact = RankFeat().score_images(images, network)
    power = [RankFeat(solver="power", iterations=k).score_images(images, network) for k in (1, 20, 200)]
    np.testing.assert_allclose(power[2], exact, rtol=1e-4)
    errors = [float((p - exact).abs().max()) for p in power]
    assert errors[0] > errors[1] >= errors[2]


def test_rankfeat_backbones_without_the_maps_are_named(network, images):
    with pytest.raises(NotApplicableError, match=r"no layer 'stage9'.*stage1, stage2, stage3"):
        RankFeat(["stage9"]).score_images(images, network)
    table = Identity("table", Preprocess(8, 8), columns=5)
    with pytest.raises(NotApplicableError, match="table"):
        RankFeat().score_images(torch.zeros(2, 5), table)


def test_rankfeat_each_layer_costs_one_pass(network, images):
    before = network.passes
    RankFeat().score_images(images, network)
    assert network.passes - before == 2 * len(images)


WIDTHS = {"stage1": 6, "stage2": 9}


def mds_ensemble_columns(n: int, c: int, seed: int, dead: bool = False) -> FeatureSet:
    """Pooled maps of two layers; class 1 has no samples where there are more than two."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([k for k in range(c) if k != 1 or c == 2], size=n)
    centres = np.random.default_rng(99).normal(size=(c, 9))
    maps = {}
    for layer, d in WIDTHS.items():
        x = centres[labels, :d] + rng.normal(size=(n, d)) * np.linspace(0.3, 2, d)
        if dead:
            x[:, 0], x[:, 2] = 0.5, x[:, 1]
        maps[layer] = torch.tensor(x, dtype=torch.float32)
    return FeatureSet({Field.LABELS: torch.from_numpy(labels)}, maps)


def by_sklearn(train: FeatureSet, x: np.ndarray, layer: str) -> np.ndarray:
    """Distances class by class with scikit-learn's pseudo-inverse, over the rank."""
    f, y = train.map(layer).double().numpy(), train.labels.numpy()
    means = {c: f[y == c].mean(axis=0) for c in np.unique(y)}
    residuals = np.concatenate([f[y == c] - m for c, m in means.items()])
    precision = EmpiricalCovariance(assume_centered=True).fit(residuals).precision_
    rank = np.linalg.matrix_rank(residuals)
    return np.min([np.einsum("nd,de,ne->n", x - m, precision, x - m) for m in means.values()], axis=0) / rank


def fitted(method: MDSEnsemble, train: FeatureSet) -> MDSEnsemble:
    return method.fit_parts(lambda part: part.fit(train, None), lambda part: torch.zeros(3))


@pytest.mark.parametrize(
    ("n", "c", "dead"), [(300, 2, False), (300, 5, False), (1500, 1000, False), (300, 5, True), (8, 5, False)]
)
def test_mds_ensemble_equals_scikit_learns_covariances_weighed(n, c, dead):
    train, test = mds_ensemble_columns(n, c, 0, dead), mds_ensemble_columns(50, c, 1, dead)
    method = fitted(MDSEnsemble(list(WIDTHS), [0.7, -1.5]), train)
    each = [by_sklearn(train, test.map(layer).double().numpy(), layer) for layer in WIDTHS]
    expected = 0.7 * each[0] - 1.5 * each[1]
    np.testing.assert_allclose(method.score(test.without_labels()), expected, rtol=1e-3, atol=1e-3 * np.abs(each).max())


def test_mds_ensemble_equal_weights_are_the_mean_and_training_samples_are_one_from_their_class():
    train = mds_ensemble_columns(400, 5, 0)
    method = fitted(MDSEnsemble(list(WIDTHS)), train)
    each = torch.stack([part.score(train) for part in method.fitted_parts.values()])
    torch.testing.assert_close(method.score(train), each.mean(dim=0))
    one_class = FeatureSet({Field.LABELS: torch.zeros(400, dtype=torch.int64)}, train.maps)
    for layer in WIDTHS:
        own = LayerMDS(layer, list(WIDTHS)).fit(one_class, None).score(one_class)
        assert float(own.double().mean()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.0014, 0.05])
def test_mds_ensemble_the_step_goes_towards_the_nearest_class_of_that_layer(network, number, epsilon):
    """Lee et al.'s recipe image by image in float64: the gradient of the distance to the nearest mean alone."""
    generator, layer = torch.Generator().manual_seed(0), f"stage{number}"
    images, known = (torch.randn(n, 3, 8, 8, generator=generator) for n in (5, 200))
    module = network.module().eval().double()
    with torch.no_grad():
        f = pooled_after(module, known.double(), number)
    labels = torch.arange(200) % 4
    train = FeatureSet({Field.LABELS: labels}, {layer: f.float()})
    means = torch.stack([f[labels == c].mean(dim=0) for c in range(4)])
    residuals = f - means[labels]
    precision = torch.linalg.pinv(residuals.T @ residuals / 200)

    def distances(x: torch.Tensor) -> torch.Tensor:
        gap = pooled_after(module, x, number) - means
        return torch.einsum("cd,de,ce->c", gap, precision, gap)

    expected = []
    for image in images.double():
        x = image[None].clone().requires_grad_(True)
        d = distances(x)
        d[d.argmin()].backward()
        step = epsilon * torch.where(x.grad >= 0, 1.0, -1.0) / torch.tensor(STD).double().view(1, 3, 1, 1)
        expected.append(float(distances(image[None] - step).min().detach()) / f.shape[1])
    module.float()
    found = SteppedLayerMDS(layer, [layer], epsilon).fit(train, None).score_images(images, network)
    # The sign of a gradient near zero may differ in float32 and moves one element the other way.
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    still = SteppedLayerMDS(layer, [layer], 0.0).fit(train, None).score_images(images, network)
    assert bool((found < still).all()), "it goes towards the class"


def test_mds_ensemble_weights_to_be_found_are_refused_without_tuning():
    with pytest.raises(MethodError, match="tune=validation"):
        fitted(MDSEnsemble(list(WIDTHS), "logistic"), mds_ensemble_columns(50, 3, 0))


def test_mds_ensemble_one_weight_per_layer_is_needed():
    method = MDSEnsemble(None, [1.0, 2.0])
    method.parts_ = {"a": None, "b": None, "c": None}
    with pytest.raises(MethodError, match="2 weights for 3 layers"):
        method.combine({name: torch.zeros(2) for name in "abc"})


LAYERS = ["stage1", "stage2"]
CPU = torch.device("cpu")


VALIDATION = Validation(split("some", Role.ID_VAL, 60), split("some", Role.OOD_VAL, 80))
FITTING = Fitting(split("some", Role.ID_TRAIN, 50), VALIDATION.id_val, Head(torch.eye(2), torch.zeros(2)))


@dataclass
class Source:
    """Pooled maps; OOD validation differs in the second layer, weakly, and the first is noise. Logs what is asked."""

    asked: list = field(default_factory=list)

    def __call__(self, split, request):
        self.asked.append(split.role)
        g = torch.Generator().manual_seed(sum(map(ord, split.digest)))
        maps = {layer: torch.randn(len(split), 3, generator=g) for layer in LAYERS}
        maps["stage1"] *= 1 + 3 * torch.rand(len(split), 1, generator=g)
        if split.role == Role.OOD_VAL:
            maps["stage2"] += 1.5
        return FeatureSet({Field.LABELS: torch.from_numpy(split.labels.copy())}, maps)


def context(source, reports=None):
    report = (lambda *seen: reports.append(seen)) if reports is not None else (lambda *seen: None)
    return TuneContext(VALIDATION, FITTING, Scoring(source, CPU, 7), report)


def objective(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Penalised log loss with intercept; each side's losses weigh n/(2·its size)."""
    weight = np.where(y == 1, len(y) / (2 * y.sum()), len(y) / (2 * (1 - y).sum()))
    losses = np.logaddexp(0, np.where(y == 1, -1, 1) * (x @ w[1:] + w[0]))
    return float((weight * losses).sum() + 0.5 * w[1:] @ w[1:])


def test_mds_ensemble_weights_minimise_the_balanced_penalised_log_loss():
    rng = np.random.default_rng(0)
    inside, outside = rng.gamma(2, size=(80, 3)), rng.gamma(3, size=(30, 3)) * [1, 2, 50]
    x = np.concatenate([inside, outside])
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    y = np.repeat([0, 1], [80, 30])
    best = minimize(objective, np.zeros(4), args=(standard, y), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(logistic_weights(inside, outside), best[1:] / x.std(axis=0), rtol=1e-3)


def test_mds_ensemble_regression_beats_equal_weights_and_is_recorded_as_numbers():
    reports = []
    tuned = MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic"]}, context(Source(), reports))
    equal, logistic = tuned.trials
    assert equal["params"] == {"weights": "equal"}
    assert tuned.params == logistic["params"]
    assert len(tuned.params["weights"]) == 2
    assert tuned.params["weights"][1] > 0
    assert logistic["auroc"] > equal["auroc"] + 0.02
    assert [(done, total) for done, total, _ in reports] == [(1, 2), (2, 2)]


def test_mds_ensemble_the_auroc_of_a_trial_is_that_of_the_method_with_its_weights():
    tuned = MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic", [1.0, 0.0]]}, context(Source()))
    for trial in tuned.trials:
        method = fit(with_params(MDSEnsemble(LAYERS), trial["params"]), FITTING, Source(), CPU)
        s = [score_split(method, split, Scoring(Source(), CPU, 7)) for split in (VALIDATION.id_val, VALIDATION.ood_val)]
        truth = np.repeat([0, 1], [len(part) for part in s])
        assert trial["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate(s)), abs=1e-6)


def test_mds_ensemble_the_method_with_the_chosen_weights_comes_fitted():
    space = {"weights": ["equal", "logistic"], "layers": [["stage1"], LAYERS]}
    tuned = MDSEnsemble(LAYERS).search(space, context(Source()))
    assert [trial["params"]["layers"] for trial in tuned.trials] == [["stage1"]] * 2 + [LAYERS] * 2
    assert tuned.params["layers"] == LAYERS
    fresh = fit(with_params(MDSEnsemble(LAYERS), tuned.params), FITTING, Source(), CPU)
    assert tuned.fitted.params() == fresh.params()
    found, expected = (score_split(m, VALIDATION.ood_val, Scoring(Source(), CPU, 7)) for m in (tuned.fitted, fresh))
    np.testing.assert_array_equal(found, expected)


def test_mds_ensemble_only_validation_is_read_and_distances_are_taken_once():
    source = Source()
    MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic"]}, context(source))
    assert set(source.asked) == {Role.ID_TRAIN, Role.ID_VAL, Role.OOD_VAL}
    assert source.asked.count(Role.OOD_VAL) == len(LAYERS)


def test_mds_ensemble_settings_that_cannot_be_are_recorded_or_named():
    tuned = MDSEnsemble(LAYERS).search({"weights": [[1.0], "equal"]}, context(Source()))
    assert "one per layer" in tuned.trials[0]["infeasible"]
    with pytest.raises(MethodError, match="no setting in `_space_` is feasible"):
        MDSEnsemble(LAYERS).search({"weights": [[1.0]]}, context(Source()))
    with pytest.raises(ConfigError, match="alpha"):
        MDSEnsemble(LAYERS).search({"alpha": [1.0]}, context(Source()))
