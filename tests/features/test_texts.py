"""Embeddings of prompts: what open_clip computes for them, made once, on disk, and refused where there is no tower."""

import numpy as np
import pytest
import torch

from openbench.backbones.open_clip import OpenClipText
from openbench.core.request import CLASSES, Texts
from openbench.errors import ConfigError, DataError, NotApplicableError
from openbench.features.store import FeatureStore
from openbench.features.texts import Corpus

from ..tiny_clip import NAME, backbone, library, whole  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone


def by_hand(prompts: list[list[str]]) -> torch.Tensor:
    """The library's embeddings, averaged prompt by prompt."""
    tokenizer = library().get_tokenizer(NAME)
    rows = []
    with torch.no_grad():
        for of_word in prompts:
            single = torch.stack([whole().encode_text(tokenizer([p]), normalize=True)[0] for p in of_word])
            rows.append(single.mean(dim=0) / single.mean(dim=0).norm())
    return torch.stack(rows)


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("sea slug\nokapi\nabacus\n")
    return str(path)


def test_rows_are_the_librarys_embeddings_averaged_over_templates(tmp_path, words):
    model, store = backbone(), FeatureStore(tmp_path / "cache", progress=False)
    found = store.texts(model, Texts(words, templates=("the nice {}", "a photo of a {}.")))
    expected = by_hand([[f"the nice {w}", f"a photo of a {w}."] for w in ("sea slug", "okapi", "abacus")])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert float(expected[0] @ expected[1]) < 0.999, "the tiny tower tells words apart"
    classes = store.texts(model, Texts(CLASSES))
    torch.testing.assert_close(classes, torch.nn.functional.normalize(model.head.weight, dim=1), rtol=1e-4, atol=1e-5)


def test_prompts_are_embedded_once_and_again_after_damage_or_a_change(tmp_path, words, monkeypatch):
    model = backbone()
    store = FeatureStore(tmp_path / "cache", progress=False)
    calls, embed = [], OpenClipText.embed
    monkeypatch.setattr(OpenClipText, "embed", lambda tower, p: calls.append(len(p)) or embed(tower, p))
    texts = Texts(words, templates=("{}",))
    first = store.texts(model, texts).clone()
    assert torch.equal(store.texts(model, texts), first)
    assert calls == [3]
    file = next((tmp_path / "cache" / "texts").rglob("text.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert torch.equal(store.texts(model, texts), first)
    assert calls == [3, 3]
    with open(words, "a") as stream:
        stream.write("emu\n")
    assert len(store.texts(model, texts)) == 4
    assert calls == [3, 3, 4]


def test_each_word_keeps_the_form_that_the_seed_draws(tmp_path):
    forms = ("{} object", "{} scene", "{} creature")
    texts = Texts("any", templates=("a nice photo of {}", "{}"), forms=forms)
    every = [f"word{i}" for i in range(300)]
    prompts = dict(zip(every, texts.prompts(every, ()), strict=True))
    assert all(first == f"a nice photo of {second}" for first, second in prompts.values())
    drawn = [second.split()[1] for _, second in prompts.values()]
    assert all(drawn.count(form) > 70 for form in ("object", "scene", "creature"))
    assert texts.prompts(every[10:20], ()) == [prompts[word] for word in every[10:20]]
    other = Texts("any", templates=("{}",), forms=forms, seed=1).prompts(every, ())
    assert np.mean([o[0] != prompts[w][1] for w, o in zip(every, other, strict=True)]) > 0.5


def test_the_digest_covers_the_tower_and_every_prompt(words):
    model = backbone()
    texts = Texts(words, templates=("a {}",))
    first = Corpus(model, texts)
    assert Corpus(backbone(), texts).digest == first.digest
    assert Corpus(model, Texts(words, templates=("the {}",))).digest != first.digest
    model.text_towers["text"].model.ln_final.bias.data += 1
    model.text_towers["text"].__post_init__()
    assert Corpus(model, texts).digest != first.digest


def test_what_cannot_be_embedded_is_refused(tmp_path, words, monkeypatch):
    store = FeatureStore(tmp_path / "cache", progress=False)
    with pytest.raises(NotApplicableError, match="has no text tower 'text' to embed 'classes'"):
        store.texts(toy_backbone(), Texts(CLASSES))
    with pytest.raises(NotApplicableError, match=r"no text tower 'no'.*it has text.*with CLIPN's weights"):
        store.texts(backbone(), Texts(CLASSES, tower="no"))
    with pytest.raises(ConfigError, match=r"\['the nice'\] — each needs one \{\}"):
        Texts(words, templates=("the nice",))
    with pytest.raises(ConfigError, match="and no other braces"):
        Texts(words, templates=("a photo of {} }",))
    model = backbone()
    monkeypatch.setattr(OpenClipText, "embed", lambda _, prompts: torch.full((len(prompts), 4), float("nan")))
    with pytest.raises(DataError, match="the embedding of 'sea slug' is NaN"):
        store.texts(model, Texts(words))
