"""An EXIF orientation is not applied, and whoever brings images with one is told how many."""

import io

import pytest
from PIL import Image as Pillow

from openbench.data.checking.verify import CheckReport, SplitCheck
from openbench.data.own.benchmark import check_readable, read_set
from openbench.data.sources.items import FileItems, is_turned

from ..logged import logged  # noqa: TID252 — the tests are no package
from .conftest import noisy, write_image
from .test_own_benchmark import a_benchmark


def photo(orientation, kind="JPEG", seed=0):
    """The bytes of a picture as a camera that was held otherwise writes it."""
    stream, exif = io.BytesIO(), Pillow.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Pillow.fromarray(noisy((6, 9, 3), seed)).save(stream, kind, exif=exif)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(("orientation", "turned"), [(None, False), (1, False), (2, True), (8, True), (0, False)])
def test_any_orientation_but_upright_is_found(tmp_path, kind, orientation, turned):
    (tmp_path / "x").write_bytes(photo(orientation, kind))
    assert is_turned(FileItems([tmp_path / "x"]), 0) is turned


def photos(folder):
    for i, orientation in enumerate([None, 1, 6, 3]):
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(photo(orientation, seed=i))
    return folder


def test_a_new_benchmark_says_how_many_images_of_a_set_are_turned(tmp_path):
    for i, name in enumerate(("cat", "dog")):
        write_image(tmp_path / "id" / name / "1.png", noisy((6, 6, 3), i))
    parts = dict.fromkeys(("train", "val", "test"), read_set(str(tmp_path / "id")))
    with logged() as said:
        check_readable(a_benchmark(tmp_path, id_sets=parts, ood={"near.mine": read_set(str(photos(tmp_path / "ood")))}))
    told = [line for line in said if "EXIF" in line]
    assert told[0] == "near.mine: 2 images carry an EXIF orientation, which is not applied"
    assert ["exif_transpose" in line for line in told] == [False, True]


def test_the_report_of_a_check_counts_them_where_there_are_any():
    report = CheckReport("b", (SplitCheck("near/a", 4, 4, turned=1), SplitCheck("near/b", 4, 4)))
    lines = [line for line in str(report).splitlines() if "EXIF" in line]
    assert lines[0].strip() == "1 image carries an EXIF orientation, which is not applied"
    assert ["exif_transpose" in line for line in lines] == [False, True]
    assert report.ok
