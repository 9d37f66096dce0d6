"""The user's model as a backbone: where its parts are, what identifies it, what is refused and warned of."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from openbench import _compat
from openbench.api.models.outputs import OutputsBackbone
from openbench.api.models.wrap import name_of
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Perturb, Request
from openbench.engine.compatibility import refuse_missing_parts
from openbench.errors import ConfigError, DataError, NotApplicableError
from openbench.methods.gradients import ODIN
from openbench.methods.knn import KNN
from openbench.methods.maps import Gram
from openbench.methods.msp import MSP
from openbench.methods.subspaces import ViM

from .own_models import BOTH, CLASSES, SIDE, Small, benchmark, check_outputs, images, outputs_of, small_model, wrapped


class Softmaxed(Small):
    def forward(self, x):
        return torch.softmax(super().forward(x), dim=1)


class TwoHeads(Small):
    def __init__(self):
        super().__init__()
        self.dist = nn.Linear(7, CLASSES)

    def forward(self, x):
        return (self.fc(self.pooled(x)) + self.dist(self.pooled(x))) / 2


class ByConvolution(Small):
    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(7, CLASSES, 1)

    def forward(self, x):
        return self.last(self.avgpool(torch.relu(self.conv(x)))).flatten(1)


class Headless(Small):
    def forward(self, x):
        return self.pooled(x)


class Returning(Small):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        logits, features = super().forward(x), self.pooled(x)
        aux = torch.zeros(len(x), CLASSES, 2)
        return {
            "mapping": {"logits": logits, "hidden": features},
            "object": SimpleNamespace(logits=logits, loss=None),
            "pair": (features, logits),
            "auxiliary": (logits, aux),
            "neither": {"a": logits[:, :, None], "b": None},
        }[self.kind]


def test_the_layer_that_makes_the_logits_is_found_with_its_input():
    model = Small()
    found = wrapped(model)
    check_outputs(found.backbone, model)
    torch.testing.assert_close(found.backbone.head.weight, model.fc.weight.detach())
    assert (found.backbone.name, found.warnings) == ("small", ())


@pytest.mark.parametrize("kind", ["mapping", "object", "pair", "auxiliary"])
def test_logits_are_found_in_what_networks_return(kind):
    model = Returning(kind)
    found = wrapped(model).backbone
    torch.testing.assert_close(found.outputs(images(), BOTH).logits, outputs_of(model, images())[1])
    with found.frozen() as network:
        assert torch.equal(network(images()), found.outputs(images(), BOTH).logits)


def test_what_holds_no_logits_is_refused_with_what_it_holds():
    with pytest.raises(ConfigError, match=r"model 'returning' returns a: \(12, 5, 1\), b: NoneType, not one tensor"):
        wrapped(Returning("neither"))


def test_two_layers_that_may_be_the_classifier_are_listed():
    with pytest.raises(ConfigError, match=r"makes its output \(12, 5\) alone \(candidates: 'dist' 7 → 5, 'fc' 7 → 5"):
        wrapped(TwoHeads())
    assert wrapped(TwoHeads(), head="fc").backbone.num_classes == CLASSES


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head": "fcs"}, "has no module 'fcs'; did you mean 'fc'.*its parts: conv, avgpool, fc"),
        ({"head": "conv"}, "head 'conv' is Conv2d.*name an nn.Linear.*candidates: 'fc' 7 → 5"),
        ({"features": "pool"}, "has no module 'pool'; did you mean 'avgpool'"),
        ({"head": (np.zeros((5, 3)), np.zeros(5))}, r"has the classifier 'fc' — leave head=\(W, b\) out"),
        ({"head": ("W", "b")}, "head: W is a str .* allowed: an array of numbers"),
        ({"head": (np.zeros((5, 3)), np.zeros(4))}, r"head: b has shape \(4,\) — allowed: \(5,\)"),
    ],
)
def test_parts_that_are_not_there_are_refused(options, says):
    with pytest.raises((ConfigError, DataError), match=says):
        wrapped(Small(), **options)


def test_named_features_that_feed_the_classifier_are_its_features():
    model = Small()
    found = wrapped(model, features="avgpool").backbone
    assert not isinstance(found, OutputsBackbone)
    check_outputs(found, model)


def test_other_named_features_are_averaged_over_positions_and_have_no_head():
    model = Small()
    found = wrapped(model, features="conv").backbone
    with torch.no_grad():
        torch.testing.assert_close(found.outputs(images(), BOTH).features, model.conv(images()).mean(dim=(2, 3)))
    refuse_missing_parts(found, KNN(), "knn")
    with pytest.raises(NotApplicableError, match="'vim' reads the head, but backbone 'small' has features and logits"):
        refuse_missing_parts(found, ViM(), "vim")


def test_a_classifier_that_is_not_linear_gives_logits_alone():
    found = wrapped(ByConvolution()).backbone
    assert found.outputs(images(), BOTH).logits.shape == (6, CLASSES)
    refuse_missing_parts(found, MSP(), "msp")
    refuse_missing_parts(found, ODIN(), "odin")
    with pytest.raises(NotApplicableError, match=r"method 'knn' reads features.*name the module.*features='NAME'"):
        refuse_missing_parts(found, KNN(), "knn")
    with pytest.raises(NotApplicableError, match="method 'gram' reads"):
        refuse_missing_parts(found, Gram(), "gram")


def test_a_network_without_classifier_has_features_alone():
    model = Headless()
    found = wrapped(model).backbone
    assert (found.classifies, found.num_classes, found.feature_dim) == (False, 0, 7)
    torch.testing.assert_close(found.outputs(images(), BOTH).features, outputs_of(model, images())[0])


def test_a_network_without_classifier_takes_one_that_is_given():
    model, whole = Headless(), Small()
    model.load_state_dict(whole.state_dict())
    model.fc = nn.Identity()
    found = wrapped(model, head=(whole.fc.weight, whole.fc.bias)).backbone
    check_outputs(found, whole)
    assert found.digest == wrapped(model, head=whole.fc).backbone.digest
    unbiased, zeros = nn.Linear(*whole.fc.weight.shape[::-1], bias=False), np.zeros(len(whole.fc.weight))
    asked = (unbiased, (unbiased.weight, None), (unbiased.weight, zeros))
    assert len({wrapped(model, head=head).backbone.digest for head in asked}) == 1
    assert found.digest != wrapped(model, head=(2 * whole.fc.weight, whole.fc.bias)).backbone.digest
    for name, method in (("msp", MSP()), ("vim", ViM()), ("knn", KNN()), ("odin", ODIN())):
        refuse_missing_parts(found, method, name)


def test_a_network_that_ends_in_softmax_is_asked_for_its_classifier():
    model = Softmaxed()
    with pytest.raises(ConfigError, match=r"no nn.Linear makes its output .* name the classifier: head='fc'"):
        wrapped(model)
    check_outputs(wrapped(model, head="fc").backbone, model)


def test_probabilities_of_a_function_are_told():
    model = Softmaxed().eval()
    assert "returns probabilities (its rows sum to 1)" in wrapped(lambda x: model(x)).warnings[0]
    assert wrapped(lambda x: Small.forward(model, x)).warnings == ()


def test_the_users_model_is_left_as_it_was():
    model = Small().train()
    model.conv.weight.requires_grad_(False)
    model.remembered = model.conv(images())  # with its history
    layouts = [p.stride() for p in model.parameters()]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wrapped(model).backbone.outputs(images(), BOTH)
    assert model.training
    assert model.conv.training
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert [p.stride() for p in model.parameters()] == layouts
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.remembered.grad_fn is not None


def digest_of(model, **asked):
    return wrapped(model, **asked).backbone.digest


def changed(change):
    model = small_model()
    change(model)
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.fc.bias.data.add_(1e-3),
        lambda m: m.table.add_(1),
        lambda m: setattr(m.conv, "stride", (1, 1)),
        lambda m: m.conv.register_forward_hook(lambda *_: None),
        lambda m: setattr(m, "avgpool", nn.AdaptiveMaxPool2d(1)),
    ],
    ids=["weight", "unsaved_buffer", "stride", "hook", "layer"],
)
def test_whatever_shapes_the_outputs_changes_the_digest(change):
    assert digest_of(changed(change)) != digest_of(small_model()) == digest_of(small_model().train())


def test_the_preprocess_changes_the_digest():
    other = Preprocess(resize=SIDE, crop=SIDE, mean=(0.4, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    assert digest_of(small_model()) != digest_of(small_model(), preprocess=other)


def test_functions_are_never_the_same_again_and_say_so():
    model = small_model()
    first, second = wrapped(model.forward), wrapped(model.forward)
    assert first.backbone.digest != second.backbone.digest
    assert "is a function, which may change unseen: its results are never reused" in first.notes[0]


def test_functions_give_logits_or_features_and_logits():
    model = small_model().eval()
    both = wrapped(lambda x: (model.pooled(x), model(x)), head=(model.fc.weight, model.fc.bias)).backbone
    check_outputs(both, model)
    refuse_missing_parts(both, ViM(), "vim")
    with pytest.raises(NotApplicableError, match="'knn' reads features, but backbone 'logits_alone' has logits"):
        refuse_missing_parts(wrapped(lambda x: model(x), name="logits_alone").backbone, KNN(), "knn")


def test_a_step_by_the_gradient_of_a_function_is_that_of_the_module():
    model = small_model()
    step = Request(fields=frozenset({Field.LOGITS}), perturb=Perturb(temperature=10.0, epsilon=0.01))
    by_module = wrapped(model).backbone.outputs(images(), step).logits
    model.eval()
    by_function = wrapped(lambda x: model(x)).backbone.outputs(images(), step).logits
    torch.testing.assert_close(by_function, by_module)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda x: x, r"returns \(12, 3, 16, 16\) for 12 images — return logits \(n, c\), or"),
        (7, "model is a int — pass"),
        (nn.Conv2d(1, 3, 3), r"model 'conv2d' fails on images \(12, 3, 16, 16\) \(RuntimeError.*.*one number each"),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (16, -1))), "'sequential' returns 16 rows for 12 images"),
    ],
)
def test_what_is_no_model_of_images_is_refused(model, says):
    with pytest.raises(ConfigError, match=says):
        wrapped(model)


def test_a_preprocess_must_be_given_where_the_model_does_not_say():
    with pytest.raises(ConfigError, match="model 'small' does not say how its images are preprocessed — pass the"):
        wrapped(Small(), preprocess=None)


def test_outputs_that_are_not_finite_are_refused():
    model = Small()
    model.fc.bias.data[2] = float("nan")
    with pytest.raises(DataError, match="model 'small': logits are NaN or infinite for 12 of the first 12 images"):
        wrapped(model)


def test_images_that_were_not_scaled_are_told():
    transforms = _compat.library("torchvision.transforms")
    steps = [transforms.Resize(SIDE), transforms.CenterCrop(SIDE), transforms.PILToTensor(), torch.Tensor.float]
    assert "images reach 255 after preprocess" in wrapped(Small(), transforms.Compose(steps)).warnings[0]


def test_images_unlike_those_of_the_first_batch_norm_are_told():
    torch.manual_seed(0)
    model = CifarResNet(SPECS["resnet8"], CLASSES)
    assert wrapped(model).warnings == ()  # it has seen none
    split = benchmark().images
    seen = (torch.from_numpy(split.items.pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    model.train()
    for _ in range(60):
        model(seen)
    assert wrapped(model).warnings == ()
    darker = Preprocess(resize=SIDE, crop=SIDE, mean=(-4.0, -4.0, -4.0), std=(0.25, 0.25, 0.25))
    assert "in its first batch norm they lie" in wrapped(model, darker).warnings[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Small(), "small"),
        (lambda x: x, "lambda"),
        ("folder/net.onnx", "net"),
    ],
)
def test_models_are_called_by_what_they_are(model, name):
    assert name_of(model) == name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compiled"])
def test_wrappers_are_taken_off(wrap):
    model = Small()
    found = wrapped(wrap(model)).backbone
    assert (found.name, found.digest) == ("small", wrapped(model).backbone.digest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_run_as_they_are(dtype):
    model = Small().to(dtype)
    found = wrapped(model).backbone
    outputs = found.outputs(images(), BOTH)
    assert {outputs.logits.dtype, outputs.features.dtype, found.head.weight.dtype} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model.eval()(images().to(dtype)).float(), rtol=0.02, atol=0.02)
    assert found.digest != wrapped(copy.deepcopy(model).float()).backbone.digest
