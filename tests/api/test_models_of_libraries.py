"""Networks of timm, open_clip, Hugging Face and torchvision's kind, ONNX files, and scripts."""

import numpy as np
import pytest
import torch

from openbench import _compat
from openbench.backbones.cifar import SPECS, CifarResNet, resnet
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request
from openbench.engine.compatibility import refuse_missing_parts
from openbench.errors import CheckpointError, ConfigError, NotApplicableError
from openbench.methods.gradients import ODIN
from openbench.methods.subspaces import ViM

from .own_models import BOTH, CLASSES, PLAIN, SIDE, images, outputs_of, small_model, wrapped


def test_the_maps_of_a_network_with_known_stages_are_read():
    torch.manual_seed(0)
    model = CifarResNet(SPECS["resnet8"], CLASSES)
    ours = resnet("x", "resnet8", num_classes=CLASSES, preprocess=PLAIN)
    ours.load_state(model.state_dict(), "test")
    request = Request(fields=frozenset({Field.MAPS}), layers=("stage1", "stage3"), pool="mean")
    found, expected = wrapped(model).backbone.outputs(images(), request), ours.outputs(images(), request)
    assert wrapped(model).backbone.layers == ours.layers
    assert all(torch.equal(found.maps[layer], expected.maps[layer]) for layer in request.layers)


@pytest.mark.parametrize(
    ("model", "options", "classes", "dim"),
    [
        ("vit_tiny_patch16_224", {"img_size": SIDE, "patch_size": 8, "depth": 4}, CLASSES, 192),
        ("vit_small_patch14_dinov2", {"img_size": 28, "depth": 4, "embed_dim": 48, "num_heads": 2}, 0, 48),
        ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}, CLASSES, 16),
    ],
)
def test_networks_of_timm_are_read_as_timm_says(model, options, classes, dim):
    made_by_timm = _compat.library("timm").create_model(model, num_classes=classes, **options).eval()
    side = options.get("img_size", 32)
    found = wrapped(made_by_timm, Preprocess(resize=side, crop=side)).backbone
    x = torch.randn(2, 3, side, side)
    with torch.no_grad():
        expected = made_by_timm.forward_head(made_by_timm.forward_features(x), pre_logits=True)
    assert (found.num_classes, found.feature_dim, len(found.layers)) == (classes, dim, 4)
    torch.testing.assert_close(found.outputs(x, Request(fields=frozenset({Field.FEATURES}))).features, expected)


def test_the_image_tower_of_a_clip_model_is_taken():
    clip = _compat.library("open_clip")
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16}
    text = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
    model = clip.model.CLIP(embed_dim=24, vision_cfg=vision, text_cfg=text).eval()
    found = wrapped(model, Preprocess(resize=32, crop=32))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(found.backbone.outputs(x, BOTH).features, model.encode_image(x))
    assert (found.backbone.classifies, found.backbone.feature_dim) == (False, 24)
    assert found.notes[0].startswith("the image tower")


def test_image_classifiers_of_hugging_face_are_read_with_their_processor():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=SIDE,
        patch_size=8,
        num_labels=CLASSES,
    )
    model = transformers.ViTForImageClassification(config).eval()
    found = wrapped(model, transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})).backbone
    assert (found.preprocess.crop, found.preprocess.std) == (SIDE, (0.5, 0.5, 0.5))
    with torch.no_grad():
        torch.testing.assert_close(found.outputs(images(), BOTH).logits, model(images()).logits)
    assert found.feature_dim == 16


def onnx_file(path, batch, weight, bias):
    """Mean over positions as features, W·f + b as logits."""
    onnx = pytest.importorskip("onnx")
    of = onnx.helper
    floats = onnx.TensorProto.FLOAT
    c, d = weight.shape
    graph = of.make_graph(
        [
            of.make_node("GlobalAveragePool", ["pixels"], ["pooled"]),
            of.make_node("Flatten", ["pooled"], ["embedding"]),
            of.make_node("Gemm", ["embedding", "W", "b"], ["logits"], transB=1),
        ],
        "toy",
        [of.make_tensor_value_info("pixels", floats, [batch, d, SIDE, SIDE])],
        [
            of.make_tensor_value_info("logits", floats, [batch, c]),
            of.make_tensor_value_info("embedding", floats, [batch, d]),
        ],
        [onnx.numpy_helper.from_array(weight, "W"), onnx.numpy_helper.from_array(bias, "b")],
    )
    model = of.make_model(graph, opset_imports=[of.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("batch", ["n", 4])
def test_onnx_files_give_logits_and_a_named_output_as_features(tmp_path, batch):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    W, b = rng.normal(size=(CLASSES, 3)).astype(np.float32), rng.normal(size=CLASSES).astype(np.float32)
    path = onnx_file(tmp_path / "toy.onnx", batch, W, b)
    found = wrapped(path, features="embedding", head=(W, b)).backbone
    features = images().mean(dim=(2, 3))
    outputs = found.outputs(images(), BOTH)
    torch.testing.assert_close(outputs.features, features)
    torch.testing.assert_close(outputs.logits, features @ torch.from_numpy(W).T + torch.from_numpy(b))
    assert found.digest == wrapped(str(path), features="embedding", head=(W, b)).backbone.digest
    refuse_missing_parts(found, ViM(), "vim")
    with pytest.raises(NotApplicableError, match="method 'odin' reads input gradients"):
        refuse_missing_parts(found, ODIN(), "odin")
    with pytest.raises(ConfigError, match="has no output 'embeding'; did you mean 'embedding'"):
        wrapped(path, features="embeding")


def test_files_that_are_not_onnx_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="cannot be read by onnxruntime"):
        wrapped(tmp_path / "broken.onnx")
    with pytest.raises(CheckpointError, match="no such file"):
        wrapped(tmp_path / "absent.onnx")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit itself
def test_scripts_are_run_as_functions_with_their_logits():
    model = small_model().eval()
    found = wrapped(torch.jit.trace(model, images())).backbone
    torch.testing.assert_close(found.outputs(images(), BOTH).logits, outputs_of(model, images())[1])
