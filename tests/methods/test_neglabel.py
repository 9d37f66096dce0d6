"""NegLabel against its arithmetic in float64, word by word and group by group."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from openbench.core.features import Head
from openbench.core.request import CLASSES
from openbench.errors import FieldError, MethodError
from openbench.methods import prompts
from openbench.methods.prompts import NegLabel

from .problems import fitted_on_texts, given, unit, worded

LISTS = {"classes": 7, "wordnet_nouns": 90, "wordnet_adjectives": 41}


def far(words, classes, quantile, share):
    closeness = [np.quantile([float(w @ c) for c in classes], quantile) for w in words]
    return words[np.argsort(closeness)[: int(len(words) * share)]]


@pytest.mark.parametrize(("groups", "share", "scale"), [(10, 0.5, 100.0), (1, 0.15, 100.0), (7, 1.0, 5.0)])
def test_equals_the_share_of_each_group_in_float64(groups, share, scale):
    texts, images = worded(**LISTS)
    method = fitted_on_texts(NegLabel(groups=groups, share=share, scale=scale), texts)
    chosen = np.concatenate(
        [far(texts[k], texts["classes"], 0.95, share) for k in ("wordnet_nouns", "wordnet_adjectives")]
    )
    used = len(chosen) - len(chosen) % groups
    order = torch.randperm(used, generator=torch.Generator().manual_seed(0)).numpy()
    expected = []
    for image in unit(images):
        known = np.exp(scale * (texts["classes"] @ image)).sum()
        shares = []
        for words in np.split(chosen[:used][order], groups):
            shares.append(known / (known + np.exp(scale * (words @ image)).sum()))
        expected.append(1 - np.mean(shares))
    found = method.score(given(features=images))
    np.testing.assert_allclose(expit(found.double().numpy()), expected, rtol=2e-3 if scale == 100 else 1e-4, atol=1e-9)


def test_words_are_read_in_parts_with_the_same_outcome(monkeypatch):
    texts, _ = worded(**LISTS)
    whole = fitted_on_texts(NegLabel(groups=5), texts).words_
    monkeypatch.setattr(prompts, "_CELLS", 50)
    assert torch.equal(fitted_on_texts(NegLabel(groups=5), texts).words_, whole)


def test_images_near_words_or_near_classes_do_not_tie():
    eye = np.eye(8)
    method = fitted_on_texts(
        NegLabel(share=1.0, groups=2, adjectives=None), {"classes": eye[:4], "wordnet_nouns": eye[4:]}
    )
    away = np.linspace(0, 0.3, 60)[:, None]
    for images in (eye[4:].sum(axis=0) + away * eye[0], eye[:4].sum(axis=0) + away * eye[4]):
        found = method.score(given(features=images))
        assert len(found.unique()) == 60


def test_errors_say_what_is_missing():
    texts, _ = worded(**{**LISTS, "wordnet_nouns": 3})
    with pytest.raises(MethodError, match=r"NegLabel\.fit: a share of 0\.15 of 3 words is empty"):
        fitted_on_texts(NegLabel(), texts)
    with pytest.raises(FieldError, match="texts of 'classes' read but not there"):
        NegLabel().fit(None, Head(torch.ones(3, 4), torch.zeros(3)))
    narrow = {t: torch.ones(5, 3) for t in NegLabel().request.texts}
    with pytest.raises(FieldError, match=r"have the shape \(5, 3\) — pass \(m, 4\)"):
        NegLabel().fit(None, Head(torch.ones(3, 4), torch.zeros(3), texts=narrow))


def test_it_declares_the_classes_and_both_lists_with_their_prompts():
    first, nouns, adjectives = NegLabel().request.texts
    assert (first.words, first.templates) == (CLASSES, ("the nice {}",))
    assert (nouns.words, nouns.without, nouns.templates) == ("wordnet_nouns", ("animal", "food"), ("the nice {}",))
    assert (adjectives.words, adjectives.templates) == ("wordnet_adjectives", ("This is a {} photo",))
    assert len(NegLabel(adjectives=None).request.texts) == 2
