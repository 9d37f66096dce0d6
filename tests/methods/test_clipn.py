import numpy as np
import pytest
import torch
from scipy.special import expit

from openbench.core.features import Head
from openbench.methods.prompts import CLIPN

from .problems import given, unit


def fitted(method: CLIPN, yes: np.ndarray, no: np.ndarray) -> CLIPN:
    texts = dict(zip(method.request.texts, (torch.tensor(t).float() for t in (yes, no)), strict=True))
    return method.fit(None, Head(torch.ones(yes.shape), torch.zeros(len(yes)), texts=texts))


@pytest.mark.parametrize("scale", [100.0, 3.0])
def test_both_forms_are_those_of_the_paper_class_by_class(scale):
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
def test_images_far_from_all_classes_do_not_tie(variant):
    eye = np.eye(6)
    images = eye[3:4] + np.linspace(0, 0.3, 50)[:, None] * eye[0]
    found = fitted(CLIPN(variant), eye[:3], eye[3:]).score(given(features=images + eye[4] + eye[5]))
    assert len(found.unique()) == 50
