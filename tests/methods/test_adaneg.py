import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp, softmax
from scipy.stats import entropy

from openbench.methods import prompts
from openbench.methods.prompts import AdaNeg, WordChoice, far_words, grouped

from .problems import assert_equal, f, given, problem, unit

SMALL = {"share": 0.4, "groups": 3, "scale": 12.0, "length": 4, "gap": 0.2}


def labels_of(method: AdaNeg, head) -> tuple[np.ndarray, np.ndarray]:
    """Texts of the classes, and of the words in groups: those that NegLabel takes, which its own test holds."""
    classes, *lists = map(head.text, method.texts)
    words = [far_words(corpus, classes, WordChoice(method.quantile, method.share), "test") for corpus in lists]
    return classes.double().numpy(), grouped(torch.cat(words), method.groups, method.seed).double().numpy()


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
def test_equals_one_image_after_the_other(kind, sharpness, monkeypatch):
    monkeypatch.setattr(prompts, "_BLOCK", 32)
    monkeypatch.setattr(prompts, "_CELLS", 7 * 32 * SMALL["length"])
    data = problem(kind, n=200)
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


def test_without_images_it_ranks_as_neglabel():
    """Nothing is assigned where the gap takes all scores; NegLabel's score is the log odds of the share."""
    from openbench.methods.prompts import NegLabel

    data = problem("signed")
    x = given(features=data.test.features)
    method = AdaNeg(**{**SMALL, "gap": 1.0}).fit(None, data.head)
    plain = NegLabel(groups=3, share=0.4, scale=12.0).fit(None, data.head).score(x)
    torch.testing.assert_close(method.score_next(x, method.memory()), 1.1 * torch.sigmoid(plain), rtol=1e-5, atol=1e-6)
