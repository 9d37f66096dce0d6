"""Features of patches against open_clip's own modules, told that each token sees itself alone."""

import json

import pytest
import torch
from torch.nn import functional

from openbench.backbones.libraries.from_open_clip import open_clip_model
from openbench.core.request import Field, Request
from openbench.features.store import FeatureStore

from ..features.feature_toys import toy_split  # noqa: TID252 — the tests are no package
from ..tiny_clip import DIM, PATCH, SIDE, backbone, library, whole  # noqa: TID252

PATCHES = Request(fields=frozenset({Field.PATCHES, Field.FEATURES}))
COUNT = (SIDE // PATCH) ** 2


def by_masks(images: torch.Tensor) -> torch.Tensor:
    """The tower's tokens where the last block's attention may look nowhere else."""
    visual = whole().visual
    tokens = []
    last = visual.transformer.resblocks[-1]
    hook = last.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0]))
    with torch.no_grad():
        visual(images)
        hook.remove()
        alone = torch.full((COUNT + 1, COUNT + 1), float("-inf")).fill_diagonal_(0)
        seen = visual.ln_post(last(tokens[0], attn_mask=alone)) @ visual.proj
    return functional.normalize(seen[:, 1:], dim=-1)


def test_patches_are_the_tokens_of_a_last_block_without_mixing():
    images = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    model = backbone()
    found = model.outputs(images, PATCHES)
    assert found.patches.shape == (3, COUNT, DIM)
    assert found.patches.dtype == torch.float16
    torch.testing.assert_close(found.patches.float(), by_masks(images), rtol=1e-2, atol=2e-3)
    plain = model.outputs(images, Request())
    assert plain.patches is None
    torch.testing.assert_close(found.features, plain.features)
    assert not model.network.visual.transformer.resblocks[-1]._forward_pre_hooks


def test_a_resnets_patches_are_its_projected_values(tmp_path):
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8},
        "text_cfg": {"context_length": 24, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (tmp_path / "tiny-rn-openbench.json").write_text(json.dumps(config))
    library().add_model_config(tmp_path / "tiny-rn-openbench.json")
    model = library().create_model("tiny-rn-openbench", pretrained=None).eval()
    torch.save(model.state_dict(), tmp_path / "rn.pt")
    made = open_clip_model("rn", "tiny-rn-openbench", weights=str(tmp_path / "rn.pt"), classes=("a", "b"))
    images = torch.randn(2, 3, 64, 64)
    maps = []
    hook = model.visual.layer4.register_forward_hook(lambda *args: maps.append(args[2]))
    with torch.no_grad():
        model.visual(images)
        hook.remove()
        pool, rows = model.visual.attnpool, []
        for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
            rows.append(pool.c_proj(pool.v_proj(maps[0][:, :, y, x])))
    expected = functional.normalize(torch.stack(rows, dim=1), dim=-1)
    torch.testing.assert_close(made.outputs(images, PATCHES).patches.float(), expected, rtol=1e-2, atol=2e-3)


def test_the_cache_holds_them_in_half_precision(tmp_path):
    store = FeatureStore(tmp_path, batch_size=16, progress=False)
    model, split = backbone(), toy_split()
    first = store.get(model, split, Request())
    assert model.passes == len(split)
    found = store.get(model, split, PATCHES)
    assert found.patches.shape == (37, COUNT, DIM)
    assert next(tmp_path.rglob("patches.npy")).stat().st_size == pytest.approx(37 * COUNT * DIM * 2, abs=300)
    assert model.passes == 2 * len(split), "one more pass, for the patches alone"
    assert torch.equal(store.get(model, split, Request()).logits, first.logits)
    store.get(model, split, PATCHES)
    assert model.passes == 2 * len(split)
