"""Features, maps and presets of library models against what the libraries themselves compute and publish."""

import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from openbench import _compat
from openbench.backbones.anatomy import Anatomy, output_sides, tapping
from openbench.backbones.libraries import released_file, timm_model, torchvision_model
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.open_clip import class_names_of, open_clip_model, templates_of
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Perturb, Request
from openbench.data.manifests import load_classes
from openbench.errors import CheckpointError, ConfigError, NotApplicableError

from .. import tiny_clip  # noqa: TID252 — the tests are no package
from . import narrow  # noqa: F401 — registers networks

SMALL = Preprocess(64, 64)
STAGES = ("stage1", "stage2", "stage3", "stage4")


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convnext_atto"])
def test_timm_features_and_maps_are_timms(model: str) -> None:
    options = {} if model == "convnext_atto" else {"img_size": 64}
    if "swin" in model:
        options |= {"depths": (1, 1, 2, 1), "embed_dim": 24}
    backbone = timm_model(model, model, num_classes=5, preprocess=SMALL, options=options)
    x = torch.randn(2, 3, 64, 64)
    outputs = backbone.outputs(x, Request(layers=STAGES))
    net = backbone.module().eval()
    with torch.no_grad():
        features = net.forward_head(net.forward_features(x), pre_logits=True)
        indices = [2, 5, 8, 11] if "vit" in model else [0, 1, 2, 3]
        maps = net.forward_intermediates(x, indices=indices, output_fmt="NCHW", intermediates_only=True)
    torch.testing.assert_close(outputs.features, features, rtol=1e-4, atol=1e-4)
    for layer, expected in zip(STAGES, maps, strict=True):
        torch.testing.assert_close(outputs.maps[layer], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "nodes", "penultimate"),
    [
        ("resnet18", ["layer1", "layer2", "layer3", "layer4"], "flatten"),
        ("narrow_convnext_tiny", ["features.1", "features.3", "features.5", "features.7"], "classifier.1"),
        ("narrow_swin_t", ["features.1", "features.3", "features.5", "features.7"], "flatten"),
    ],
)
def test_torchvision_features_and_maps_are_the_graphs(model: str, nodes: list[str], penultimate: str) -> None:
    extraction = _compat.library("torchvision.models.feature_extraction")
    backbone = torchvision_model(model, model, num_classes=5, preprocess=SMALL)
    x = torch.randn(2, 3, 64, 64)
    outputs = backbone.outputs(x, Request(layers=STAGES))
    names = dict(zip([*nodes, penultimate], [*STAGES, "features"], strict=True))
    graph = extraction.create_feature_extractor(backbone.module().eval(), return_nodes=names)
    with torch.no_grad():
        expected = graph(x)
    torch.testing.assert_close(outputs.features, expected["features"], rtol=1e-4, atol=1e-4)
    for layer in STAGES:
        whole = expected[layer].permute(0, 3, 1, 2) if "swin" in model else expected[layer]
        torch.testing.assert_close(outputs.maps[layer], whole, rtol=1e-4, atol=1e-4)


def test_open_clip_head_is_what_the_whole_model_computes() -> None:
    library, whole = tiny_clip.library(), tiny_clip.whole()
    backbone = tiny_clip.backbone(classes=("cat", "fire_truck", "frog"))
    assert backbone.trained
    x = torch.randn(2, 3, tiny_clip.SIDE, tiny_clip.SIDE)
    tokens = library.get_tokenizer(tiny_clip.NAME)(
        ["a photo of a cat.", "a photo of a fire truck.", "a photo of a frog."]
    )
    with torch.no_grad():
        image, text, scale = whole(x, tokens)[:3]
    outputs = backbone.outputs(x, Request())
    torch.testing.assert_close(outputs.features, image, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs.logits, scale * image @ text.T, rtol=1e-4, atol=1e-4)
    assert backbone.preprocess.interpolation == "bicubic"
    assert backbone.preprocess.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))


@pytest.mark.parametrize(
    ("model", "weights", "made"),
    [
        ("ViT-B-16", "openai", "ViT-B-16-quickgelu"),
        ("ViT-B-16-quickgelu", "openai", "ViT-B-16-quickgelu"),
        ("ViT-B-16", "laion400m_e31", "ViT-B-16"),
        ("ViT-H-14-worldwide", "metaclip2_worldwide", "ViT-H-14-worldwide-quickgelu"),
    ],
)
def test_open_clip_models_have_the_activation_of_their_weights(
    model: str, weights: str, made: str, monkeypatch
) -> None:
    def whole(_: object, model: str, weights: str) -> None:
        raise CheckpointError(f"{model} {weights}")

    monkeypatch.setattr("openbench.backbones.open_clip._whole", whole)
    with pytest.raises(CheckpointError, match=f"^{made} {weights}$"):
        open_clip_model("mine", model, weights=weights, classes=("a", "b"))


def test_open_clip_gives_the_process_no_handler_which_would_print_messages_twice(monkeypatch) -> None:
    tiny_clip.weights()
    monkeypatch.setattr(logging.root, "handlers", [])
    tiny_clip.backbone()
    assert logging.root.handlers == []


def test_the_published_prompts_and_names_give_the_head_that_the_library_builds() -> None:
    library, whole = tiny_clip.library(), tiny_clip.whole()
    backbone = tiny_clip.backbone(
        classes="openai_imagenet", benchmark_classes=("hammerhead", "tench"), templates="simple_imagenet"
    )
    tokenizer = library.get_tokenizer(tiny_clip.NAME)
    expected = library.build_zero_shot_classifier(
        whole, tokenizer, ["hammerhead shark", "tench"], library.SIMPLE_IMAGENET_TEMPLATES
    )
    torch.testing.assert_close(
        backbone.head.weight, (expected * whole.logit_scale.exp()).T.detach(), rtol=1e-4, atol=1e-4
    )


def test_the_published_prompts_are_80_and_the_names_are_those_of_the_wordnet_ids() -> None:
    """Of ImageNet-200 by its own list of ids: n01443537 is the goldfish, n07873807 the pizza."""
    library = _compat.library("open_clip")
    templates = templates_of(library, "clip", "openai_imagenet")
    assert (len(templates), templates[0], templates[-1]) == (80, "a bad photo of a {}.", "a tattoo of the {}.")
    assert all(template.count("{}") == 1 for template in templates)
    every = load_classes("imagenet1k/wnids")
    for benchmark, size in (("imagenet1k", 1000), ("imagenet200", 200)):
        names = class_names_of(library, "clip", "openai_imagenet", load_classes(f"{benchmark}/classes"))
        by_id = dict(zip(load_classes(f"{benchmark}/wnids"), names, strict=True))
        assert len(by_id) == size
        assert (by_id["n01443537"], by_id["n07873807"]) == ("goldfish", "pizza")
        assert by_id == {wnid: library.IMAGENET_CLASSNAMES[every.index(wnid)] for wnid in by_id}


def released(name: str) -> str:
    """A name of torchvision's as in its released files, which are older than today's networks."""
    name = re.sub(r"(denselayer\d+\.(?:norm|conv))([12]\.)", r"\1.\2", name)
    return name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")


@pytest.mark.parametrize(
    "model", ["narrow_vgg11", "mobilenet_v3_small", "regnet_y_400mf", "narrow_densenet121", "narrow_vit_b_16"]
)
def test_a_torchvision_network_without_its_classifier_has_the_same_features(model: str, tmp_path: Path) -> None:
    make = partial(
        torchvision_model, model=model, preprocess=SMALL, options={"image_size": 64} if "vit" in model else {}
    )
    whole = make("whole", num_classes=7).initialise(1)
    torch.save({released(name): value for name, value in whole.module().state_dict().items()}, tmp_path / "whole.pt")
    whole.load(tmp_path / "whole.pt")
    headless = make("mine", head="knn", weights=str(tmp_path / "whole.pt"))
    assert (headless.num_classes, headless.head_to_fit, headless.trained) == (0, "knn", True)
    x = torch.randn(2, 3, 64, 64)
    found = headless.outputs(x, Request(layers=headless.layers))
    expected = whole.outputs(x, Request(layers=headless.layers))
    assert torch.equal(found.features, expected.features)
    assert headless.layers == whole.layers
    assert all(torch.equal(found.maps[layer], expected.maps[layer]) for layer in whole.layers)
    assert headless.digest != whole.digest


@pytest.mark.parametrize(
    ("model", "weights", "option", "value"),
    [
        ("googlenet", "IMAGENET1K_V1", "transform_input", True),
        ("narrow_vit_b_16", "IMAGENET1K_SWAG_E2E_V1", "image_size", 384),
    ],
)
def test_released_weights_bring_the_options_that_torchvision_sets_with_them(
    model: str, weights: str, option: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, options = _compat.library("torchvision").models, {"init_weights": False} if model == "googlenet" else {}
    published = models.get_model_weights(model)[weights]
    file = tmp_path / Path(published.url).name
    net = models.get_model(model, weights=None, num_classes=1000, **{**options, option: value})
    torch.save(net.state_dict(), file)
    monkeypatch.setattr("openbench.backbones.libraries.released_file", lambda _: file)
    for given in (weights, str(file)):
        backbone = torchvision_model("mine", model, weights=given, preprocess="preset", options=options)
        assert getattr(backbone.module(), option) == value
        assert backbone.preprocess.resize == published.transforms().resize_size[0]


def test_presets_are_the_published_ones() -> None:
    found = torchvision_model("s", "narrow_swin_t", num_classes=5, preprocess="preset").preprocess
    preset = _compat.library("torchvision").models.Swin_T_Weights.IMAGENET1K_V1.transforms()
    assert (found.resize, found.crop) == (preset.resize_size[0], preset.crop_size[0]) == (232, 224)
    assert found.interpolation == "bicubic"
    # Crop share .9: 224 / .9 = 248.9, rounded down.
    found = timm_model("v", "vit_tiny_patch16_224", num_classes=5, preprocess="preset", options={"depth": 1}).preprocess
    assert found == Preprocess(248, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")


@pytest.mark.parametrize(
    ("model", "options"), [("vit_tiny_patch16_224", {"img_size": 64}), ("mobilenetv3_small_050", {})]
)
def test_a_timm_network_without_a_classifier_gives_timms_features(model: str, options: dict[str, int]) -> None:
    backbone = timm_model(model, model, num_classes=0, preprocess=SMALL, options=options)
    x = torch.randn(2, 3, 64, 64)
    outputs = backbone.outputs(x, Request(fields=frozenset({Field.FEATURES})))
    with torch.no_grad():
        expected = backbone.module().eval()(x)
    torch.testing.assert_close(outputs.features, expected, rtol=1e-4, atol=1e-4)
    assert outputs.logits.shape == (2, 0)
    assert (backbone.classifies, backbone.num_classes, backbone.feature_dim) == (False, 0, expected.shape[1])
    assert backbone.head.weight.shape == (0, expected.shape[1])
    with pytest.raises(NotApplicableError, match="has no classifier, so its loss has no input gradient"):
        backbone.outputs(x, Request(perturb=Perturb()))


def test_a_classifier_that_timm_writes_as_a_convolution_is_linear() -> None:
    model, x = "resnetv2_50x1_bit", torch.randn(2, 3, 64, 64)  # of the family of timm_bit_r101x1
    net = _compat.library("timm").create_model(model, num_classes=5).eval()
    backbone = timm_model(model, model, num_classes=5, preprocess=SMALL).load_state(net.state_dict(), "of timm")
    outputs = backbone.outputs(x, Request())
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, net(x), rtol=1e-4, atol=1e-3)
        features = net.forward_head(net.forward_features(x), pre_logits=True)
    torch.testing.assert_close(outputs.features, features, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(backbone.head.weight, net.head.fc.weight.flatten(1))


def test_released_file_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/resnet18-f37072fd.pth").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="expected f37072fd… by the file's name"):
        released_file("https://download.pytorch.org/models/resnet18-f37072fd.pth")


def clip(**changes: object) -> NetworkBackbone:
    return open_clip_model("t", "ViT-B-32", **{"weights": "openai", "classes": ("a", "b"), **changes})  # type: ignore[arg-type]


NOT_IMAGENETS = {"classes": "openai_imagenet", "benchmark_classes": ("tench", "0", "1")}
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: torchvision_model("t", "resnet5", preprocess="preset"), "nearest: resnet50, resnet152, resnet34, "),
    (lambda: torchvision_model("t", "resnet18", weights="IMAGENET1K_V7"), "name (IMAGENET1K_V1, DEFAULT"),
    (lambda: torchvision_model("t", "squeezenet1_0", preprocess="preset"), "has no nn.Linear"),
    (lambda: timm_model("t", "resnet18x"), "timm has no model 'resnet18x' — nearest: resnet18"),
    (lambda: timm_model("t", "resnet18.tv"), "has no weights 'tv' — allowed: a released name (a1_in1k"),
    (lambda: timm_model("t", "resnet18", weights="a1"), ".pth, .th, .ckpt, .bin), or null"),
    (lambda: timm_model("t", "resnet18.a1_in1k", weights="a2_in1k"), "names weights other than 'a2_in1k'"),
    (lambda: timm_model("t", "deit_tiny_distilled_patch16_224", preprocess="preset"), "classifier is tuple"),
    (lambda: open_clip_model("t", "ViT-B-33", classes=("a", "b")), "nearest: ViT-B-32"),
    (lambda: clip(weights="laion"), "has no weights 'laion' — allowed: a released name (laion2b_e16"),
    (lambda: tiny_open_clip("t", "", head="coop"), "head=coop is fitted on features, and weights is null"),
    (lambda: clip(classes=None), "0 class names"),
    (lambda: clip(templates=("a photo",)), "each needs one {}"),
    (lambda: clip(templates="openai"), "found 'openai', allowed: openai_imagenet, simple_imagenet, openai_cifar"),
    (lambda: clip(**NOT_IMAGENETS), "are names for ImageNet's classes, found 0, 1 — leave backbone.classes null"),
]


@pytest.mark.parametrize(("make", "text"), REFUSED)
def test_errors_name_what_would_work(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert text in str(caught.value)


def test_maps_are_read_before_a_later_layer_overwrites_them() -> None:

    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    x = torch.randn(2, 3, 5, 5)
    with torch.no_grad(), tapping(net, Anatomy("4", {"stage1": "0"}), ("stage1",), "none") as tapped:
        net(x)
    torch.testing.assert_close(tapped.maps["stage1"], net[0](x).detach())
    assert (tapped.maps["stage1"] < 0).any()


def test_maps_are_measured_of_a_network_whose_state_is_more_than_tensors() -> None:
    own = type("Own", (nn.Conv2d,), {"get_extra_state": dict})
    assert output_sides(nn.Sequential(own(3, 4, 3)), ["0"], (3, 5, 5), "nchw") == [3]


def tiny_open_clip(name: str, model: str, **settings: object) -> NetworkBackbone:
    return tiny_clip.backbone(classes=("a", "b", "c"), **{"weights": None, **settings})


@pytest.mark.parametrize(
    ("make", "model"),
    [(torchvision_model, "narrow_vgg11"), (timm_model, "mobilenetv3_small_050"), (tiny_open_clip, "")],
)
def test_weights_are_a_file_or_null_for_random_ones_in_every_library(make, model: str, tmp_path: Path) -> None:
    settings = {} if make is tiny_open_clip else {"num_classes": 3, "preprocess": SMALL}
    random = make("own", model, **settings)
    assert (random.trained, random.num_classes) == (False, 3)
    with pytest.raises(CheckpointError, match="has random weights"):
        _ = random.digest
    if make is tiny_open_clip:
        assert make("own", model, weights=tiny_clip.weights()).trained
        return
    state = random.initialise(5).module().state_dict()
    torch.save(state, tmp_path / "own.pt")
    loaded = make("own", model, weights=str(tmp_path / "own.pt"), **settings)
    assert loaded.trained
    for name, tensor in loaded.module().state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)


def test_a_released_file_of_the_data_roots_is_loaded_by_its_yaml(real_data: Path) -> None:
    """MobileNetV2 by file, with the hash that its yaml states."""
    loaded = build(shipped("backbone", "timm_mobilenetv2_100"), "backbone")
    assert (loaded.trained, loaded.num_classes, loaded.digest) == (True, 1000, "752711f3e878f64f")


TINY = {"embed_dim": 16, "num_heads": 2, "img_size": 32}
NOISE = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
FEATURES = Request(fields=frozenset({Field.FEATURES}))


def made(model="vit_small_patch16_dinov3", tokens=None, depth=5, **rest):
    options = {**TINY, "depth": depth}
    return timm_model(
        "mine", model, tokens=tokens, num_classes=0, preprocess=Preprocess(32, 32), options=options, **rest
    )


@pytest.mark.parametrize("model", ["vit_small_patch16_dinov3", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_224"])
def test_tokens_are_those_of_the_normalised_blocks(model, tmp_path):
    torch.save(made(model).initialise(1).module().state_dict(), tmp_path / "vit.pt")
    size = made(model, "cls", weights=str(tmp_path / "vit.pt"))
    vit = size.module().vit.eval()
    with torch.no_grad():
        whole = vit.forward_features(NOISE)  # (n, prefix + patches, d) after the last norm
        outputs = []
        hooks = [block.register_forward_hook(lambda _, __, out: outputs.append(out)) for block in vit.blocks]
        vit(NOISE)
        for hook in hooks:
            hook.remove()
        last4 = [vit.norm(out)[:, 0] for out in outputs[-4:]]
    patches = whole[:, vit.num_prefix_tokens :].mean(1)
    expected = {
        "cls": [whole[:, 0]],
        "patch_mean": [patches],
        "cls+patch_mean": [whole[:, 0], patches],
        "cls_last4": last4,
        "cls_last4+patch_mean": [*last4, patches],
    }
    for tokens, parts in expected.items():
        backbone = made(model, tokens, weights=str(tmp_path / "vit.pt"))
        found = backbone.outputs(NOISE, FEATURES).features
        assert torch.allclose(found, torch.cat(parts, 1), atol=1e-5), tokens
        assert backbone.feature_dim == 16 * len(parts)
        assert backbone.name == f"mine_{tokens}"
    assert len({made(model, t, weights=str(tmp_path / "vit.pt")).digest for t in expected}) == 5


@pytest.mark.parametrize(
    "model", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "eva02_tiny_patch14_224"]
)
def test_position_embeddings_of_a_file_are_resampled_as_timm_does(model, tmp_path):
    options, file = {**TINY, "depth": 4}, tmp_path / "large.pt"
    create = partial(_compat.library("timm").create_model, model, num_classes=0)
    torch.save(create(**options | {"img_size": 64}).state_dict(), file)
    timms = create(**options, pretrained=True, pretrained_cfg_overlay={"file": str(file)}).eval()
    for tokens in (None, "cls"):
        found = made(model, tokens, 4, weights=str(file)).outputs(NOISE, FEATURES).features
        with torch.no_grad():
            expected = timms.forward_features(NOISE)[:, 0] if tokens else timms(NOISE)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_tokens_that_a_transformer_lacks_are_refused():
    with pytest.raises(ConfigError, match=r"this model has no class token \(allowed: patch_mean\)"):
        made("vit_base_patch16_siglip_224", "cls", 2)
    with pytest.raises(ConfigError, match="the model has 3 blocks, 4 are needed"):
        made("vit_base_patch16_224", "cls_last4", 3)
