"""Tokens as features: what timm itself says they are, and models that lack them."""

import pytest
import torch

from openbench.backbones.libraries.from_timm import timm_model
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request
from openbench.errors import ConfigError

SMALL = {"embed_dim": 16, "num_heads": 2, "img_size": 32}
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
FEATURES = Request(fields=frozenset({Field.FEATURES}))


def made(model="vit_small_patch16_dinov3", tokens=None, depth=5, **rest):
    options = {**SMALL, "depth": depth}
    return timm_model(
        "mine", model, tokens=tokens, num_classes=0, preprocess=Preprocess(32, 32), options=options, **rest
    )


@pytest.mark.parametrize("model", ["vit_small_patch16_dinov3", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_224"])
def test_tokens_are_those_of_the_normalised_blocks(model, tmp_path):
    torch.save(made(model).initialise(1).module().state_dict(), tmp_path / "vit.pt")
    size = made(model, "cls", weights=str(tmp_path / "vit.pt"))
    vit = size.module().vit.eval()
    with torch.no_grad():
        whole = vit.forward_features(IMAGES)  # (n, prefix + patches, d) after the last norm
        outputs = []
        hooks = [block.register_forward_hook(lambda _, __, out: outputs.append(out)) for block in vit.blocks]
        vit(IMAGES)
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
        found = backbone.outputs(IMAGES, FEATURES).features
        assert torch.allclose(found, torch.cat(parts, 1), atol=1e-5), tokens
        assert backbone.feature_dim == 16 * len(parts)
        assert backbone.name == f"mine_{tokens}"
    assert len({made(model, t, weights=str(tmp_path / "vit.pt")).digest for t in expected}) == 5


@pytest.mark.parametrize(
    ("model", "tokens", "depth", "words"),
    [
        ("vit_base_patch16_siglip_224", "cls", 2, r"this model has no class token \(allowed: patch_mean\)"),
        ("vit_base_patch16_224", "cls_last4", 3, "the model has 3 blocks, 4 are needed"),
    ],
)
def test_tokens_that_a_transformer_lacks_are_refused(model, tokens, depth, words):
    with pytest.raises(ConfigError, match=words):
        made(model, tokens, depth)


def test_maps_are_read_as_without_tokens(tmp_path):
    torch.save(made().initialise(1).module().state_dict(), tmp_path / "vit.pt")
    maps = Request(fields=frozenset({Field.MAPS}), layers=("stage2",))
    plain, chosen = (made(tokens=t, weights=str(tmp_path / "vit.pt")) for t in (None, "cls"))
    assert torch.equal(plain.outputs(IMAGES, maps).maps["stage2"], chosen.outputs(IMAGES, maps).maps["stage2"])
