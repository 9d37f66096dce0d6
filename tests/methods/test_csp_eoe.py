"""CSP and EOE against their arithmetic in float64, written word by word."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from openbench.core.request import CLASSES
from openbench.methods import prompts
from openbench.methods.prompts import CSP, EOE

from .problems import fitted_on_texts, given, unit, worded


def scored(method, texts, images):
    return fitted_on_texts(method, texts).score(given(features=images)).double().numpy()


def test_csp_takes_words_that_are_nearly_a_class_last():
    texts, images = worded(d=20, n=40, classes=6, wordnet_nouns=30, wordnet_adjectives=20)
    texts["wordnet_nouns"][7] = texts["classes"][2]  # its lowest cosine is like that of any other word
    method = CSP(quantile=0.0, share=0.9, groups=3, scale=20.0)
    found = scored(method, texts, images)
    chosen = []
    for kind in ("wordnet_nouns", "wordnet_adjectives"):
        cosines = texts[kind] @ texts["classes"].T
        order = sorted(range(len(cosines)), key=lambda i: 1.0 if cosines[i].max() > 0.95 else cosines[i].min())
        chosen += [texts[kind][i] for i in order[: int(0.9 * len(order))]]
    assert not any(np.allclose(word, texts["classes"][2], atol=1e-6) for word in chosen)
    chosen = np.array(chosen)[: len(chosen) - len(chosen) % 3]
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).numpy()
    expected = []
    for image in unit(images):
        known = np.exp(20 * (texts["classes"] @ image)).sum()
        shares = [np.exp(20 * (words @ image)).sum() for words in np.split(chosen[order], 3)]
        expected.append(np.mean([share / (known + share) for share in shares]))
    np.testing.assert_allclose(expit(found), expected, rtol=1e-4)


def test_csp_declares_adjectives_joined_with_superclasses():
    classes, nouns, adjectives = CSP(seed=4).request.texts
    assert (classes.words, len(classes.templates), nouns.templates) == (CLASSES, 8, classes.templates)
    assert (len(adjectives.forms), len(adjectives.templates), adjectives.seed) == (14, 4, 4)
    [prompts] = adjectives.prompts(["red"], ())
    assert [p.split(" red ")[0] for p in prompts[1:]] == ["a nice photo of", "a good photo of", "a close-up photo of"]
    assert prompts[0].split()[0] == "red"
    assert f"{{}} {prompts[0].split()[1]}" in adjectives.forms


@pytest.mark.parametrize(("beta", "temperature"), [(0.25, 1.0), (1.0, 0.01), (0.0, 0.1)])
def test_eoe_is_the_class_probability_less_a_part_of_the_outliers(beta, temperature, monkeypatch):
    texts, images = worded(d=20, n=40, classes=5, labels=33)
    monkeypatch.setattr(prompts, "_WORDS", 7)
    found = scored(EOE("labels", beta=beta, temperature=temperature), texts, images)
    expected = []
    for image in unit(images):
        known, other = (np.exp((texts[k] @ image) / temperature) for k in ("classes", "labels"))
        total = known.sum() + other.sum()
        expected.append(-(known.max() / total - beta * other.max() / total))
    np.testing.assert_allclose(found - (1 - beta) / 38, expected, rtol=1e-4, atol=2e-6)
