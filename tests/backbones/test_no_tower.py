"""CLIPN's weights: both text towers from one file, the second with its learnt prompts."""

import torch
from torch.nn import functional

from openbench.backbones.libraries.from_open_clip import open_clip_model
from openbench.backbones.libraries.zero_shot import OpenClipText

from ..tiny_clip import NAME, backbone, library, whole  # noqa: TID252 — the tests are no package

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
