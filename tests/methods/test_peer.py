"""pytorch-ood on the same inputs, where it is right: an implementation by other people."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from openbench import paths
from openbench._compat import prepare_torchvision
from openbench.methods.ash import ASH
from openbench.methods.dice import DICE
from openbench.methods.energy import Energy
from openbench.methods.gen import GEN
from openbench.methods.gmm import GMM
from openbench.methods.grad_uncertainty import GradUncertainty
from openbench.methods.gradnorm import GradNorm
from openbench.methods.knn import KNN
from openbench.methods.mds import MDS
from openbench.methods.pnml import PNML
from openbench.methods.react import ReAct
from openbench.methods.rmds import RMDS
from openbench.methods.she import SHE
from openbench.methods.vim import ViM

from .problems import assert_equal, problem, scores


@pytest.fixture(scope="module")
def peer():
    prepare_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        return pytest.importorskip("pytorch_ood.detector", reason="pytorch-ood is not installed")


def maps(features: torch.Tensor) -> torch.Tensor:
    return features[:, :, None, None]


def head_of(data) -> torch.nn.Module:
    linear = torch.nn.Linear(24, data.head.num_classes)
    linear.load_state_dict({"weight": data.head.weight, "bias": data.head.bias})
    return torch.nn.Sequential(torch.nn.Flatten(), linear).requires_grad_(False)


def same_order(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Ranks differ by rounding only."""
    return float(np.corrcoef(rankdata(ours), rankdata(theirs))[0, 1]) > 1 - 1e-6


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_energy_equals_peer(peer, kind):
    data = problem(kind)
    assert_equal(scores(Energy(), data), peer.EnergyBased.score(data.test.logits).numpy())


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_knn_is_the_square_of_the_peers_distance(peer, kind):
    data = problem(kind)
    theirs = peer.KNN(None, k=50).fit_features(data.train.features, data.train.labels)
    assert_equal(scores(KNN(50), data), theirs.predict_features(data.test.features).numpy() ** 2)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_mds_ranks_like_the_peer(peer, kind):
    """Its scale is 1/(2n) of ours, and it adds a ridge of 1e-6."""
    data = problem(kind)
    labels = torch.unique(data.train.labels, return_inverse=True)[1]  # it cannot leave a class out
    theirs = peer.Mahalanobis(None).fit_features(data.train.features, labels)
    theirs = theirs.predict_features(data.test.features).numpy()
    ours = scores(MDS(), data)
    assert same_order(ours, theirs)
    assert_equal(theirs / theirs.mean(), ours / ours.mean(), rtol=1e-3)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_vim_equals_peer(peer, kind):
    data = problem(kind)
    theirs = peer.ViM(None, d=12, w=data.head.weight, b=data.head.bias)
    theirs.fit_features(data.train.features, data.train.labels)
    assert_equal(scores(ViM(12), data), theirs.predict_features(data.test.features).numpy(), rtol=2e-3)


@pytest.mark.parametrize("variant", ["b", "p", "s"])
def test_ash_equals_peer(peer, variant):
    data = problem(seed=1)
    theirs = peer.ASH(None, head_of(data), f"ash-{variant}", percentile=0.75)
    assert_equal(scores(ASH(75, variant), data), theirs.predict_feature_maps(maps(data.test.features)).numpy())


def test_react_equals_peer_given_the_same_activations(peer):
    data = problem()
    theirs = peer.ReAct(None, head_of(data), percentile=0.9)
    theirs.fit_feature_maps(maps(data.val.features), data.val.labels)
    ours = scores(ReAct(90), data)
    assert_equal(ours, theirs.predict_feature_maps(maps(data.test.features)).numpy(), rtol=1e-4)


def test_gradnorm_of_the_weight_equals_peer(peer):
    """Its mean over classes, its gradient of the weight alone."""
    data = problem(n=60)
    model = head_of(data).requires_grad_(True)
    theirs = peer.GradNorm(model, param_filter=lambda name: name.endswith("weight"))
    assert_equal(scores(GradNorm(mean=True), data), theirs.predict(data.test.features).detach().numpy(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_rmds_ranks_like_the_peer(peer, kind):
    data = problem(kind)
    labels = torch.unique(data.train.labels, return_inverse=True)[1]  # it cannot leave a class out
    theirs = peer.RMD(None).fit_features(data.train.features, labels)
    assert same_order(scores(RMDS(), data), theirs.predict_features(data.test.features).numpy())


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_gen_is_the_peers_mean_times_the_number_of_classes(peer, kind):
    data = problem(kind)
    theirs = 6 * peer.GEN.score(data.test.logits).numpy()
    p = torch.softmax(data.test.logits, dim=1).numpy()
    sane = (p.min(axis=1) > 1e-6) & (p.max(axis=1) < 0.99)  # the peer clamps p to 1e-7 … 1 − 1e-7
    assert sane.mean() > 0.1
    assert_equal(scores(GEN(), data)[sane], theirs[sane], rtol=1e-4)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_dice_equals_peer(peer, kind):
    data = problem(kind)
    theirs = peer.DICE(None, data.head.weight, data.head.bias, p=0.9)
    theirs.fit_features(data.train.features, data.train.labels)
    assert_equal(scores(DICE(90), data), theirs.predict_features(data.test.features).numpy())


def test_she_equals_peer(peer):
    data = problem("two_classes")  # every class has samples, which it needs
    theirs = peer.SHE(None, head_of(data)).fit_features(data.train.features, data.train.labels)
    assert_equal(scores(SHE(), data), theirs.predict_features(data.test.features).numpy())


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_pnml_equals_peer(peer, kind):
    data = problem(kind)
    theirs = peer.PNML(None, head_of(data)).fit_features(data.train.features, data.train.labels)
    assert_equal(scores(PNML(), data), theirs.predict_features(data.test.features).numpy(), rtol=1e-3)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
def test_gmm_equals_peer_with_the_same_ridge(peer, kind):
    data = problem(kind)
    members = [data.train.features.double()[data.train.labels == c] for c in data.train.labels.unique()]
    variance = sum((own - own.mean(dim=0)).square().sum() for own in members) / data.train.features.numel()
    theirs = peer.GMM(None, reg=1e-3 * float(variance)).fit_features(data.train.features, data.train.labels)
    assert_equal(scores(GMM(1e-3), data), theirs.predict_features(data.test.features).numpy())


def test_gradient_uncertainty_equals_peer_on_the_last_layer(peer):
    data = problem("signed", n=50)
    theirs = peer.GradUncertainty(head_of(data)).to("cpu").predict(data.test.features).numpy()
    assert_equal(scores(GradUncertainty(), data), theirs)


def test_the_page_for_its_users_names_each_of_its_detectors(peer):
    page = (Path(__file__).parents[2] / "docs" / "do" / "coming_from_elsewhere.md").read_text()
    methods = {file.stem for file in (paths.config_dir() / "method").glob("*.yaml")}
    named = set(re.findall(r"`(\w+)`", page))
    assert [name for name in peer.__all__ if name.lower() not in methods and name not in named] == []
