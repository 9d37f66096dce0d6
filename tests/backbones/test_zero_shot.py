"""Both towers of open_clip's models: features of patches, prompts that fit, and CLIPN's second text tower."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch.nn import functional

from openbench import _compat
from openbench.backbones.open_clip import OpenClipText, open_clip_model, tokens_and_cut
from openbench.core.request import Field, Request
from openbench.errors import ConfigError
from openbench.features.store import FeatureStore

from ..features.feature_toys import toy_split  # noqa: TID252 — the tests are no package
from ..tiny_clip import DIM, NAME, PATCH, SIDE, backbone, library, whole  # noqa: TID252

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


CONTEXT = 8
WORDS = {"[PAD]": 0, "[START]": 1, "[END]": 2, "word": 3}


def own_tokenizer(folder, form: str, padding: str):
    """Hugging Face's, with a vocabulary of one word: what open_clip loads for a model of that library."""
    made = Tokenizer(WordLevel(WORDS, unk_token="word"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single=form, special_tokens=[("[START]", 1), ("[END]", 2)])
    _compat.library("transformers").PreTrainedTokenizerFast(tokenizer_object=made, pad_token=padding).save_pretrained(
        folder
    )
    return library().tokenizer.HFTokenizer(str(folder), context_length=CONTEXT)


@pytest.mark.parametrize(
    ("form", "padding", "most"),
    [("[START] $A [END]", "[PAD]", 6), ("$A [END]", "[END]", 7), ("$A", "[PAD]", 8)],
    ids=["as BERT", "as SigLIP, padded with its end", "without an end"],
)
def test_a_prompt_is_whole_up_to_its_last_place(tmp_path, form, padding, most):
    tokenizer = own_tokenizer(tmp_path, form, padding)
    fits, cut = " ".join(["word"] * most), " ".join(["word"] * (most + 1))
    tokens, none = tokens_and_cut(tokenizer, ["", "word", fits])
    assert (tokens.shape, none) == ((3, CONTEXT), None)
    assert torch.equal(tokens, tokenizer(["", "word", fits]))
    assert int((tokens[2] == 3).sum()) == most
    assert tokens_and_cut(tokenizer, [fits, cut, "word"])[1] == 1


def test_a_model_refuses_class_names_words_and_vectors_that_do_not_fit():
    long = " ".join(["cat"] * 30)
    with pytest.raises(ConfigError, match=r"prompt 'a photo of a cat cat .*' is too long"):
        backbone(("dog", long))
    tower = backbone(("dog", " ".join(["cat"] * 12)), templates=("{}",)).text_towers["text"]
    with pytest.raises(ConfigError, match=r"prompt 'cat .*' is too long"):
        tower.embed(["dog", long])
    with pytest.raises(ConfigError, match=r"12 vectors and the class name 'cat .*' exceed its 24 tokens"):
        tower.embed_context(torch.zeros(12, tower.width))


TEXT = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")


def test_a_file_with_a_no_tower_gives_both(tmp_path):
    library()
    yes, other = whole().state_dict(), whole(1).state_dict()
    negated = {}
    for key, value in other.items():
        if key.startswith(TEXT):
            first, dot, rest = key.partition(".")
            negated[f"{first}_no{dot}{rest}"] = value
    prompts = torch.randn(16, *other["positional_embedding"].shape, generator=torch.Generator().manual_seed(0))
    torch.save({**yes, **negated, "prompt_no": prompts}, tmp_path / "clipn.pt")
    made = open_clip_model("clipn", NAME, weights=str(tmp_path / "clipn.pt"), classes=("cat", "fire_truck", "frog"))
    assert set(made.text_towers) == {"text", "no"}
    assert made.digest == backbone().digest
    assert made.text_towers["text"].digest == backbone().text_towers["text"].digest
    texts = ["a photo of a cat.", "no frog"]
    torch.testing.assert_close(made.text_towers["text"].embed(texts), backbone().text_towers["text"].embed(texts))
    # As released: the mean prompt is added to the embeddings of the tokens.
    model, tokens = whole(1), library().get_tokenizer(NAME)(texts)
    hook = model.token_embedding.register_forward_hook(lambda _, __, found: found + prompts.mean(dim=0))
    with torch.no_grad():
        expected = functional.normalize(model.encode_text(tokens), dim=-1)
    hook.remove()
    found = made.text_towers["no"].embed(texts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(made.text_towers["no"], OpenClipText)
    assert made.text_towers["no"].digest != made.text_towers["text"].digest
    assert set(backbone().text_towers) == {"text"}
