"""`ob.evaluate` of small networks on few images of the digits."""

import pytest

import openbench as ob

from .own_models import DIGITS, DIGITS_PREPROCESS


@pytest.fixture
def evaluate(tmp_path):
    def call(model, methods="msp", **given):
        given = {"benchmark": "digits", "preprocess": DIGITS_PREPROCESS, "overrides": DIGITS, "progress": False} | given
        folders = {"cache": tmp_path / "cache", "results": tmp_path / "results"}
        return ob.evaluate(model, methods=methods, **(folders | given))

    return call
