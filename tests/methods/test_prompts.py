"""Scores against prompts, in float64 image by image."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import expit, logsumexp, softmax
from scipy.stats import entropy

from openbench.core.features import Head
from openbench.core.request import CLASSES
from openbench.errors import FieldError, MethodError
from openbench.methods import prompts
from openbench.methods.prompts import CLIPN, CSP, EOE, GLMCM, MCM, AdaNeg, NegLabel, ZeroShot

from .problems import KINDS, assert_equal, equals, f, fitted_on_texts, given, problem, scores, unit, worded


@equals(MCM(0.01), MCM(1.0), MCM(10.0))
def test_mcm_equals_softmax_of_scipys_cosines(data, method):
    cosine = 1 - cdist(f(data.test), data.weight, metric="cosine")
    return 1 / data.head.num_classes - softmax(cosine / method.temperature, axis=1).max(axis=1)


def test_mcm_a_thousand_near_equal_probabilities_do_not_tie():
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(1000, 512, generator=generator), torch.zeros(1000))
    x = given(features=torch.randn(3000, 512, generator=generator))
    assert len(MCM().fit(None, head).score(x).unique()) > 0.999 * len(x)


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (0.01, 0.5), (10.0, 2.0)])
def test_gl_mcm_equals_softmax_of_scipys_cosines_patch_by_patch(temperature, weight, monkeypatch):
    monkeypatch.setattr(prompts, "_IMAGES", 7)
    data = problem("signed")

    def largest(vectors):
        cosine = 1 - cdist(vectors, data.weight, metric="cosine")
        return softmax(cosine / temperature, axis=1).max(axis=1)

    patches = data.test.patches.double().numpy()
    local = np.array([largest(of_image).max() for of_image in patches])
    expected = 1 / 6 - largest(f(data.test)) + weight * (1 / 6 - local)
    found = scores(GLMCM(temperature, weight), data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 / temperature * 1e-2 + 1e-8)


@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_zero_shot_scores_are_those_of_scipys_cosines(kind, temperature):
    data = problem(kind)
    cosine = 1 - cdist(f(data.test), data.weight, metric="cosine")
    energy = -temperature * logsumexp(cosine / temperature, axis=1)
    assert_equal(scores(ZeroShot("energy", temperature), data), energy)
    assert_equal(scores(ZeroShot("mls", temperature), data), -cosine.max(axis=1))
    p = np.sort(softmax(cosine / temperature, axis=1), axis=1)
    odds = np.log(p[:, :-1].sum(axis=1) / p[:, -1]) - np.log(p.shape[1] - 1)
    # At 0.01 the float32 rounding of a cosine counts a hundred times.
    np.testing.assert_allclose(scores(ZeroShot("msp", temperature), data), odds, rtol=1e-4, atol=1e-4)


LISTS = {"classes": 7, "wordnet_nouns": 90, "wordnet_adjectives": 41}


def far(words, classes, quantile, share):
    closeness = [np.quantile([float(w @ c) for c in classes], quantile) for w in words]
    return words[np.argsort(closeness)[: int(len(words) * share)]]


@pytest.mark.parametrize(("groups", "share", "scale"), [(10, 0.5, 100.0), (1, 0.15, 100.0), (7, 1.0, 5.0)])
def test_neglabel_equals_the_share_of_each_group_in_float64(groups, share, scale):
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


def test_neglabel_words_are_read_in_parts_with_the_same_outcome(monkeypatch):
    texts, _ = worded(**LISTS)
    whole = fitted_on_texts(NegLabel(groups=5), texts).words_
    monkeypatch.setattr(prompts, "_CELLS", 50)
    assert torch.equal(fitted_on_texts(NegLabel(groups=5), texts).words_, whole)


def test_neglabel_images_near_words_or_near_classes_do_not_tie():
    eye = np.eye(8)
    method = fitted_on_texts(
        NegLabel(share=1.0, groups=2, adjectives=None), {"classes": eye[:4], "wordnet_nouns": eye[4:]}
    )
    away = np.linspace(0, 0.3, 60)[:, None]
    for images in (eye[4:].sum(axis=0) + away * eye[0], eye[:4].sum(axis=0) + away * eye[4]):
        found = method.score(given(features=images))
        assert len(found.unique()) == 60


def test_neglabel_errors_say_what_is_missing():
    texts, _ = worded(**{**LISTS, "wordnet_nouns": 3})
    with pytest.raises(MethodError, match=r"NegLabel\.fit: a share of 0\.15 of 3 words is empty"):
        fitted_on_texts(NegLabel(), texts)
    with pytest.raises(FieldError, match="texts of 'classes' read but not there"):
        NegLabel().fit(None, Head(torch.ones(3, 4), torch.zeros(3)))
    narrow = {t: torch.ones(5, 3) for t in NegLabel().request.texts}
    with pytest.raises(FieldError, match=r"are \(5, 3\) — pass \(m, 4\)"):
        NegLabel().fit(None, Head(torch.ones(3, 4), torch.zeros(3), texts=narrow))


def test_neglabel_it_declares_the_classes_and_both_lists_with_their_prompts():
    first, nouns, adjectives = NegLabel().request.texts
    assert (first.words, first.templates) == (CLASSES, ("the nice {}",))
    assert (nouns.words, nouns.without, nouns.templates) == ("wordnet_nouns", ("animal", "food"), ("the nice {}",))
    assert (adjectives.words, adjectives.templates) == ("wordnet_adjectives", ("This is a {} photo",))
    assert len(NegLabel(adjectives=None).request.texts) == 2


SMALL = {"share": 0.4, "groups": 3, "scale": 12.0, "length": 4, "gap": 0.2}


def labels_of(method: AdaNeg, head) -> tuple[np.ndarray, np.ndarray]:
    """Texts of the classes, and of the words in groups: those that NegLabel takes, which its own test holds."""
    return tuple(embedded.double().numpy() for embedded in method.embedded(head))


def negative(cosines, classes: int, groups: int, scale: float) -> float:
    """The mean over groups of the share of the words."""
    known = logsumexp(scale * cosines[:classes])
    words = logsumexp(scale * cosines[classes:].reshape(groups, -1), axis=1)
    return float(np.mean(expit(words - known)))


def image_by_image(method: AdaNeg, data) -> tuple[np.ndarray, dict]:
    """Every image assigned and every proxy made again, one after the other."""
    classes, words = labels_of(method, data.head)
    texts, c, g, s = np.concatenate([classes, *words]), len(classes), len(words), method.scale
    held: dict[int, list] = {}
    result = []
    for image in unit(f(data.test)):
        cosines = texts @ image
        plain = negative(cosines, c, g, s)
        known = 1 - plain > method.threshold + method.gap * (1 - method.threshold)
        word = 1 - plain < method.threshold - method.gap * method.threshold
        if known or word:
            side = cosines[:c] if known else cosines[c:]
            label, doubt = int(side.argmax()) + (0 if known else c), entropy(softmax(s * side))
            images = held.setdefault(label, [])
            images.append((doubt, len(result), image))
            images.sort(key=lambda entry: entry[:2])
            del images[method.length - 1 :]
        proxies = texts.copy()
        for label, images in held.items():
            entries = np.array([texts[label], *(held_image for *_, held_image in images)])
            proxies[label] = unit(np.exp(-method.sharpness * (1 - entries @ image)) @ entries)
        result.append(negative(proxies @ image, c, g, s) + method.weight * plain)
    return np.array(result), held


@pytest.mark.parametrize(
    ("kind", "sharpness"),
    [("rectified", 0.0), ("signed", 0.0), ("two_classes", 0.0), ("rectified", 5.5), ("signed", 100.0)],
)
def test_adaneg_equals_one_image_after_the_other(kind, sharpness, monkeypatch):
    monkeypatch.setattr(prompts, "_BLOCK", 32)
    monkeypatch.setattr(prompts, "_CELLS", 7 * 32 * SMALL["length"])
    data = problem(kind, n=150)
    method = AdaNeg(**SMALL, sharpness=sharpness).fit(None, data.head)
    memory = method.memory()
    found = torch.cat([method.score_next(rows, memory) for rows in given(features=data.test.features).batches(75)])
    expected, held = image_by_image(method, data)
    assert_equal(found.numpy(), expected, rtol=5e-5)
    assert {label: len(images) for label, images in memory.heaps.items()} == {k: len(v) for k, v in held.items()}
    assert max(map(len, held.values())) == method.length - 1, "no label is full: the problem tests too little"
    classes = len(labels_of(method, data.head)[0])
    assert kind != "rectified" or {label < classes for label in held} == {True, False}
    assert len(memory.features) == sum(map(len, held.values()))


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


def fitted(method: CLIPN, yes: np.ndarray, no: np.ndarray) -> CLIPN:
    texts = dict(zip(method.request.texts, (torch.tensor(t).float() for t in (yes, no)), strict=True))
    return method.fit(None, Head(torch.ones(yes.shape), torch.zeros(len(yes)), texts=texts))


@pytest.mark.parametrize("scale", [100.0, 3.0])
def test_clipn_both_forms_are_those_of_the_paper_class_by_class(scale):
    rng = np.random.default_rng(0)
    centre = rng.normal(size=16)
    yes, no, images = (unit(rng.normal(size=(n, 16)) * 0.3 + centre) for n in (5, 5, 40))
    atd, ctw = [], []
    for image in images:
        z, against = scale * yes @ image, scale * no @ image
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        p_no = [np.exp(a) / (np.exp(a) + np.exp(b)) for a, b in zip(against, z, strict=True)]
        atd.append(1 - sum(p[c] * (1 - p_no[c]) for c in range(5)))
        ctw.append(p_no[int(np.argmax(z))])
    x = given(features=7 * images)
    for variant, expected in (("atd", atd), ("ctw", ctw)):
        found = fitted(CLIPN(variant, scale=scale), yes, no).score(x)
        np.testing.assert_allclose(expit(found.double().numpy()), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("variant", ["atd", "ctw"])
def test_clipn_images_far_from_all_classes_do_not_tie(variant):
    eye = np.eye(6)
    images = eye[3:4] + np.linspace(0, 0.3, 50)[:, None] * eye[0]
    found = fitted(CLIPN(variant), eye[:3], eye[3:]).score(given(features=images + eye[4] + eye[5]))
    assert len(found.unique()) == 50
