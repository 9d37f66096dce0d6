import os

import numpy as np
import pytest
from PIL import Image as Pillow

from openbench.data.sources.base import ArrayItems, FileItems, decode
from openbench.errors import DataError

from .conftest import noisy, write_image


def test_colour_and_grey_files_come_back_pixel_by_pixel(tmp_path):
    for name, pixels in (("c.png", noisy((4, 6, 3))), ("g.png", noisy((4, 6)))):
        write_image(tmp_path / name, pixels)
        np.testing.assert_array_equal(decode(tmp_path / name), pixels)


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "CMYK", "1"])
def test_any_other_mode_becomes_rgb_as_pillow_converts_it(tmp_path, mode):
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    Pillow.fromarray(noisy((5, 7, 3))).convert(mode).save(path)
    expected = np.asarray(Pillow.open(path).convert("RGB"))
    np.testing.assert_array_equal(decode(path), expected)


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_corrupt_file_is_named_and_never_replaced(tmp_path, keep):
    path = tmp_path / "bad.jpg"
    write_image(path, noisy((40, 40, 3)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"bad\.jpg' cannot be read.*get the file again"):
        FileItems([path])[0]


def test_rows_of_an_array_are_read_in_manifest_order():
    pixels = noisy((6, 3, 3, 3))
    items = ArrayItems(pixels, np.array([5, 0, 1, 2]))
    np.testing.assert_array_equal(np.stack([items[i] for i in range(4)]), pixels[[5, 0, 1, 2]])


@pytest.mark.parametrize("mode", ["I", "I;16", "F"])
def test_grey_of_more_than_eight_bits_is_refused_not_clipped(tmp_path, mode):
    path = tmp_path / "deep.tif"
    Pillow.fromarray((noisy((5, 7)).astype(np.uint32) * 257).astype("f4" if mode == "F" else "u2")).convert(mode).save(
        path
    )
    with pytest.raises(DataError, match=rf"deep\.tif' cannot be read.*more than 8 bits \(mode {mode}"):
        decode(path)


@pytest.mark.parametrize("form", ["EPS", "PCX", "TGA", "ICO"])  # for the first Pillow calls another program
def test_other_formats_are_not_opened_whatever_their_name(tmp_path, form):
    path = tmp_path / "x.png"
    Pillow.fromarray(noisy((5, 7, 3))).save(path, format=form)
    with pytest.raises(DataError, match="cannot be read"):
        decode(path)


@pytest.mark.parametrize("contents", [None, np.zeros((1, 32), np.uint8)])
def test_a_pipe_does_not_stop_the_run(tmp_path, contents):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(DataError, match="not a regular file"):
        FileItems([tmp_path / "x.png"], contents)[0]


def test_an_orientation_in_the_exif_data_is_not_applied(tmp_path):
    pixels = noisy((5, 7, 3))
    exif = Pillow.Exif()
    exif[0x0112] = 6
    Pillow.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(decode(tmp_path / "x.png"), pixels)


def test_an_image_too_large_to_unpack_is_named(tmp_path, monkeypatch):
    write_image(tmp_path / "bomb.png", noisy((8, 8, 3)))
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 10)  # Pillow gives up beyond twice as many
    with pytest.raises(DataError, match=r"bomb\.png' cannot be read \(Image size \(64 pixels\)"):
        decode(tmp_path / "bomb.png")
