"""Detectors of other libraries as methods: pytorch-ood's own, and classes with the interfaces of OpenOOD and oodeel."""

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import openbench as ob
from openbench import paths
from openbench.__main__ import main
from openbench._compat import prepare_torchvision
from openbench.config.folders import shipped
from openbench.core.features import FeatureSet
from openbench.core.method import LiveMethod
from openbench.core.request import Field, Request, Role
from openbench.engine.prepare import build_method
from openbench.errors import ConfigError, MethodError, NotApplicableError, OpenbenchError
from openbench.methods.libraries import LibraryDetector
from openbench.public import foreign_targets
from openbench.source import foreign_sources
from tests.methods.test_gradients import by_hand

from .problems import assert_equal, problem, scores

# The interfaces as they are published: OpenOOD 1.5, oodeel 0.4.
OPENOOD = '''
import numpy as np, torch

class BasePostprocessor:
    def __init__(self, config):
        self.config = config
    def setup(self, net, id_loader_dict, ood_loader_dict):
        pass
    @torch.no_grad()
    def postprocess(self, net, data):
        conf, pred = torch.max(torch.softmax(net(data), dim=1), dim=1)
        return pred, conf

class Nearest(BasePostprocessor):
    """−distance to the K-th training feature."""
    split = "train"
    def __init__(self, config):
        super().__init__(config)
        self.K = config.postprocessor.postprocessor_args.K
        self.args_dict = config.postprocessor.postprocessor_sweep
    def setup(self, net, id_loader_dict, ood_loader_dict):
        net.eval()
        bank = []
        for batch in id_loader_dict[self.split]:
            features = net(batch["data"].cuda(), return_feature=True)[1]
            bank.append(features.cpu().numpy().copy())
            features.zero_()
            batch["label"].cuda()
        self.bank = np.concatenate(bank)
        print("set up")
    @torch.no_grad()
    def postprocess(self, net, data):
        logits, features = net(data, return_feature=True)
        d = np.linalg.norm(features.cpu().numpy()[:, None] - self.bank, axis=2)
        return logits.argmax(1), torch.from_numpy(-np.sort(d)[:, self.K - 1])
    def set_hyperparam(self, hyperparam):
        (self.K,) = hyperparam
    def get_hyperparam(self):
        return self.K

class OnVal(Nearest):
    split = "val"

class OnTest(Nearest):
    split = "test"

class Drawing(Nearest):
    """Products with a direction that is drawn once the training features are read."""
    def setup(self, net, id_loader_dict, ood_loader_dict):
        super().setup(net, id_loader_dict, ood_loader_dict)
        self.direction = torch.randn(24)
    def postprocess(self, net, data):
        logits, features = net(data, return_feature=True)
        return logits.argmax(1), features @ self.direction

class Clip(BasePostprocessor):
    def postprocess(self, net, data):
        output = net.forward_threshold(data, 0.5)
        return output.argmax(1), torch.logsumexp(output, 1)

class Odin(BasePostprocessor):
    def postprocess(self, net, data):
        T, noise = 1000, 0.0014
        data.requires_grad = True
        output = net(data)
        torch.nn.CrossEntropyLoss()(output / T, output.detach().argmax(1)).backward()
        step = torch.ge(data.grad, 0).float() * 2 - 1
        step /= torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)
        with torch.no_grad():
            conf, pred = (net(data - noise * step) / T).softmax(1).max(1)
        return pred, conf

class Asking(BasePostprocessor):
    def postprocess(self, net, data):
        return net.intermediate_forward(data, 3)
'''
OODEEL = """
import numpy as np, torch

class OODBaseDetector:
    requires_to_fit_dataset, use_react = True, False
    def __init__(self, eps=0.0, scale=1.0):
        self.eps, self.scale = eps, scale
    def fit(self, model, fit_dataset=None, feature_layers_id=[], head_layer_id=-1):
        self.model, self.layer = model, dict(model.named_modules())[feature_layers_id[0]]
        self.mean = np.concatenate([self.features(batch[0]) for batch in fit_dataset]).mean(axis=0)
    def features(self, x):
        found = []
        with self.layer.register_forward_hook(lambda m, i, output: found.append(output)):
            self.logits = self.model(x)
        return found[0].detach().numpy()
    def score(self, dataset):
        return self.scale * np.linalg.norm(self.features(dataset) - self.mean, axis=1), {"logits": self.logits}
"""


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory):
    prepare_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pytorch_ood.detector", reason="pytorch-ood is not installed")
    folder = tmp_path_factory.mktemp("libraries")
    texts = {"openood": OPENOOD, "oodeel": OODEEL}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in texts.items():
            patch.delitem(sys.modules, name, raising=False)
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text)
        patch.syspath_prepend(folder)
        yield
        for name in texts:
            sys.modules.pop(name, None)


def peer(name, **kwargs):
    return LibraryDetector(f"pytorch_ood.detector.{name}", kwargs=kwargs)


def openood(name, sweep=None, setting=(), **kwargs):
    return LibraryDetector(f"openood.{name}", kwargs=kwargs, sweep=sweep, setting=dict(setting))


@pytest.fixture(scope="module")
def data():
    return problem()


@pytest.fixture(scope="module")
def images():
    return torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Model(torch.nn.Module):
    """A network as the libraries take it, around a problem's head."""

    def __init__(self, backbone):
        super().__init__()
        self.body, self.fc = backbone.module(), torch.nn.Linear(64, 4)
        self.fc.load_state_dict({"weight": backbone.head.weight, "bias": backbone.head.bias})
        self.requires_grad_(False)
        self.backbone = backbone

    def features(self, x):
        return self.backbone.outputs(x, Request(fields=frozenset({Field.FEATURES}))).features

    def forward(self, x):
        return self.body(x)


AROUND = {
    "EnergyBased": ({}, lambda kind, m: kind(m)),
    "MaxSoftmax": ({}, lambda kind, m: kind(m)),
    "KNN": ({"k": 5}, lambda kind, m: kind(m.features, k=5)),
    "Mahalanobis": ({}, lambda kind, m: kind(m.features)),
    "ViM": ({"d": 8}, lambda kind, m: kind(m.features, d=8, w=m.fc.weight, b=m.fc.bias)),
    "DICE": ({"p": 0.5}, lambda kind, m: kind(m.features, w=m.fc.weight, b=m.fc.bias, p=0.5)),
    "ReAct": (
        {"percentile": 0.8},
        lambda kind, m: kind(
            lambda x: m.features(x)[:, :, None, None], torch.nn.Sequential(torch.nn.Flatten(), m.fc), percentile=0.8
        ),
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_detector_scores_cached_features_as_it_scores_images_around_the_network(name, network, images):
    import pytorch_ood.detector as detectors

    kwargs, around = AROUND[name]
    model, labels = Model(network), torch.arange(len(images)) % 4
    detector = around(getattr(detectors, name), model).to("cpu")
    detector.fit([(images[:40], labels[:40])])
    expected = detector.predict(images[40:]).detach().numpy()

    method = peer(name, **kwargs)
    features = model.features(images)
    columns = FeatureSet({Field.FEATURES: features, Field.LOGITS: model(images), Field.LABELS: labels})
    declared = {k: v for k, v in columns.columns.items() if k in method.request.fields}
    train = FeatureSet({k: v[:40] for k, v in declared.items()})
    method.fit(train if method.request.fit_on else None, network.head if method.request.head else None)
    assert_equal(method.score(FeatureSet({k: v[40:] for k, v in declared.items()})).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("library", ["pytorch_ood", "openood"])
def test_a_detector_that_takes_input_gradients_runs_the_network(library, network, images):
    std = [0.2, 0.3, 0.4]
    method = peer("ODIN", norm_std=std) if library == "pytorch_ood" else openood("Odin")
    assert isinstance(method, LiveMethod)
    before = network.passes
    found = method.fit(None, network.head).score_images(images[:12], network)
    assert network.passes - before == 24
    assert_equal(-found.numpy(), by_hand(network, images[:12], 1000, 0.0014), rtol=1e-4)


def test_confidence_is_negated_and_setup_reads_the_loader_that_it_asks_for(data):
    for name, split, role in (("Nearest", data.train, Role.ID_TRAIN), ("OnVal", data.val, Role.ID_VAL)):
        method = openood(name, K=3)
        assert method.request.fit_on == role
        distance = torch.cdist(data.test.features, split.features).sort(dim=1).values[:, 2]
        assert_equal(scores(method, data), distance.numpy(), rtol=1e-3)


def test_reading_the_loader_draws_nothing_from_the_seed_of_the_detector(data):
    direction = torch.randn(24, generator=torch.Generator().manual_seed(0))
    assert_equal(scores(openood("Drawing", K=3), data), -(data.test.features @ direction).numpy())


def test_what_a_detector_writes_to_features_and_prints_stays_with_it(data, capsys):
    before = data.train.features.clone()
    scores(openood("Nearest", K=3), data)
    assert torch.equal(data.train.features, before)
    assert capsys.readouterr() == ("", "")


def test_a_postprocessor_may_clip_features(data):
    expected = -torch.logsumexp(data.head(data.test.features.clip(max=0.5)), dim=1)
    assert_equal(scores(openood("Clip"), data), expected.numpy())


def test_a_sweep_is_searched_with_the_hyper_parameters_set_after_setup(data):
    sweep = {"K_list": [2, 4]}
    node = {"_target_": "openbench.methods.libraries.LibraryDetector", "detector": "openood.Nearest"}
    chosen = build_method({**node, "kwargs": {"K": 3}, "sweep": sweep})
    assert chosen.space == {"setting": [{"K_list": 2}, {"K_list": 4}]}
    first, second = (scores(openood("Nearest", sweep, {"K_list": k}, K=3), data) for k in (2, 4))
    assert_equal(first, scores(openood("Nearest", K=2), data))
    assert_equal(second, scores(openood("Nearest", K=4), data))


def test_the_search_space_of_pytorch_ood_leaves_out_what_is_given():
    assert peer("GEN", M=10).own_space["setting"][:2] == [{"gamma": 0.01}, {"gamma": 0.1}]
    assert peer("KNN", k=5).own_space == {}


def test_oodeel_fits_on_the_features_layer(data):
    method = LibraryDetector("oodeel.OODBaseDetector", kwargs={"scale": 2.0})
    mean = data.train.features.mean(dim=0)
    assert_equal(scores(method, data), 2 * (data.test.features - mean).norm(dim=1).numpy())
    assert isinstance(LibraryDetector("oodeel.OODBaseDetector", kwargs={"eps": 0.01}), LiveMethod)


def test_an_object_makes_the_method_of_its_class_and_arguments(data):
    import openood as library
    from pytorch_ood.detector import KNN

    method = ob.method(KNN(None, k=7)).as_method()
    assert (method, method.label) == (replace(peer("knn.KNN", k=7), sweep={}), "pytorch_ood_knn")
    node = type("Node", (dict,), {"__getattr__": dict.__getitem__})
    args = node(postprocessor_args=node(K=3), postprocessor_sweep=node(K_list=[2]), APS_mode=True)
    config = node(postprocessor=args, dataset=node(name="cifar100"))
    method = ob.method(library.Nearest(config)).as_method()
    assert (method.kwargs, method.sweep, method.dataset) == ({"K": 3}, {"K_list": [2]}, "cifar100")
    assert method.own_space == {"setting": [{"K_list": 2}]}
    changed = library.Nearest(config)
    changed.K = 9
    with pytest.raises(ConfigError, match="attribute 'K' is 9, and 3 in a new one"):
        ob.method(changed)


def test_a_detector_is_identified_by_source_and_version_and_is_foreign_in_a_record():
    sources = foreign_sources(peer("KNN"))
    assert sorted(sources) == ["pytorch_ood.api", "pytorch_ood.detector.knn", "version of pytorch_ood"]
    assert foreign_targets({"method": {"_target_": "LibraryDetector", "detector": "evil.Class"}}) == ["evil.Class"]


BAD = {
    "pytorch_ood.detector.KNM": "has no class 'KNM'; did you mean 'KNN'",
    "nowhere.Detector": "'nowhere.Detector' cannot be imported",
    "": "'' cannot be imported",
    ".KNN": "'.KNN' cannot be imported",
    "collections.OrderedDict": "is not a detector of pytorch-ood, OpenOOD or oodeel",
    "pytorch_ood.api.Detector": "has no `predict`",
    "pytorch_ood.detector.ViM": "missing 1 required positional argument: 'd'",
    "pytorch_ood.detector.Gram": "missing 2 required positional arguments: 'feature_layers'",
    "openood.Nearest": "its config has no 'K'",
}


@pytest.mark.parametrize("detector", BAD)
def test_a_class_that_cannot_be_a_detector_is_one_message(detector):
    with pytest.raises(OpenbenchError, match=re.escape(BAD[detector])) as found:
        build_method({**shipped("method", "pytorch_ood"), "detector": detector, "_name_": "pytorch_ood"})
    assert "\n" not in str(found.value)


def test_a_detector_that_is_not_there_is_one_message_of_a_run(capsys):
    assert main(["run", "+benchmark=digits", "method=pytorch_ood", "method.detector=pytorch_ood.detector.KNM"]) == 2
    out, err = capsys.readouterr()
    assert BAD["pytorch_ood.detector.KNM"] in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_detector_that_needs_more_than_features_is_refused_with_the_reason(data):
    with pytest.raises(MethodError, match="setup` reads the loader 'test'"):
        openood("OnTest", K=3)
    with pytest.raises(MethodError, match="no attribute 'intermediate_forward'"):
        scores(openood("Asking"), data)
    cached = replace(openood("Odin"), live=False)
    with pytest.raises(NotApplicableError, match="gradient of its input — add live=true"):
        scores(LibraryDetector(**cached.params()), data)


def test_a_library_that_is_missing_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "oodeel.methods", None)
    with pytest.raises(NotApplicableError, match=r"oodeel\.methods.* — pip install oodeel"):
        LibraryDetector("oodeel.methods.DKNN")


def test_something_else_than_a_detector_is_refused():
    with pytest.raises(ConfigError, match="derived from Method, or a detector"):
        ob.method(np.ones(3))
    with pytest.raises(MethodError, match="needs the classifier head"):
        peer("ViM", d=2).fit(problem().train, None)


def test_the_page_for_its_users_names_each_detector_of_pytorch_ood():
    from pytorch_ood import detector

    page = (Path(__file__).parents[2] / "docs" / "do" / "coming_from_elsewhere.md").read_text()
    methods = {file.stem for file in (paths.config_dir() / "method").glob("*.yaml")}
    named = set(re.findall(r"`(\w+)`", page))
    assert [name for name in detector.__all__ if name.lower() not in methods and name not in named] == []
