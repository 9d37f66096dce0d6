import numpy as np
import pytest
import torch
from scipy.special import expit

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.methods.clipn import CLIPN


@pytest.mark.parametrize("scale", [100.0, 3.0])
def test_both_forms_are_those_of_the_paper_class_by_class(scale):
    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    centre = rng.normal(size=16)
    yes, no, images = (unit(rng.normal(size=(n, 16)) * 0.3 + centre) for n in (5, 5, 40))
    atd, ctw = [], []
    for image in images:
        z, against = scale * yes @ image, scale * no @ image
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        p_no = [np.exp(a) / (np.exp(a) + np.exp(b)) for a, b in zip(against, z, strict=True)]
        atd.append(1 - sum(p[c] * (1 - p_no[c]) for c in range(5)))
        ctw.append(p_no[int(np.argmax(z))])
    x = FeatureSet({Field.FEATURES: torch.tensor(7 * images, dtype=torch.float32)})
    for variant, expected in (("atd", atd), ("ctw", ctw)):
        method = CLIPN(variant, scale=scale)
        texts = dict(zip(method.request.texts, (torch.tensor(t).float() for t in (yes, no)), strict=True))
        found = method.fit(None, Head(torch.ones(5, 16), torch.zeros(5), texts=texts)).score(x)
        np.testing.assert_allclose(expit(found.double().numpy()), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("variant", ["atd", "ctw"])
def test_images_far_from_all_classes_do_not_tie(variant):
    method, eye = CLIPN(variant), torch.eye(6)
    texts = dict(zip(method.request.texts, (eye[:3], eye[3:]), strict=True))
    images = eye[3:4] + torch.linspace(0, 0.3, 50)[:, None] * eye[0]
    found = method.fit(None, Head(torch.ones(3, 6), torch.zeros(3), texts=texts)).score(
        FeatureSet({Field.FEATURES: images + eye[4] + eye[5]})
    )
    assert len(found.unique()) == 50


def test_an_image_that_only_a_no_prompt_fits_is_unknown():
    method, eye = CLIPN(), torch.eye(6)
    texts = dict(zip(method.request.texts, (eye[:3], eye[3:]), strict=True))
    head = Head(torch.ones(3, 6), torch.zeros(3), texts=texts)
    found = method.fit(None, head).score(FeatureSet({Field.FEATURES: eye}))
    assert float(found[:3].max()) < -14
    # Two classes fit as little as not.
    torch.testing.assert_close(torch.sigmoid(found[3:]), torch.full((3,), (1 + 1 / 2 + 1 / 2) / 3))
