from dataclasses import replace

import numpy as np
import pytest
from PIL import Image as Pillow

from openbench.data.checking.column_sheet import column_stats, draw_columns
from openbench.data.sources.items import ArrayItems

from .conftest import noisy
from .made import split_of


@pytest.fixture
def table():
    split = split_of(noisy((80, 6, 9, 3)))
    rows = np.random.default_rng(0).normal(size=(len(split), 5)).astype(np.float32)
    rows[:, 3] = 2.0
    return replace(split, items=ArrayItems(rows, np.arange(len(split)))), rows


def test_numbers_are_those_of_the_columns(table):
    split, rows = table
    found = column_stats(split)
    np.testing.assert_array_equal(found.percentiles[0], rows.min(axis=0))
    np.testing.assert_array_equal(found.percentiles[3], np.median(rows.astype(np.float64), axis=0))
    np.testing.assert_array_equal(found.percentiles[6], rows.max(axis=0))
    assert (np.diff(found.percentiles, axis=0) >= 0).all()
    assert str(found).startswith(f"{split.role}/{split.name}: {len(rows)} rows, 5 columns in [")
    assert str(found).endswith(", 1 constant")


def test_the_sheet_shows_where_values_lie(table, tmp_path):
    split, _ = table
    draw_columns(column_stats(split), tmp_path / "sheet.png")
    with Pillow.open(tmp_path / "sheet.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (500, 1200, 3)
    blue = (np.abs(pixels.astype(int) - (31, 119, 180)).max(axis=2) < 8).any(axis=0)
    # Four columns spread, one does not; the legend has one more patch.
    assert 4 <= (np.diff(blue.astype(int)) == 1).sum() <= 6
