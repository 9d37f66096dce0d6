"""Images in Arrow folders: what is decoded is what the digest says."""

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow

from openbench.errors import DataError

from .conftest import noisy
from .test_own import opened, write_arrow


def bitmap(pixels):
    """A cell whose size is that of every bitmap of this shape."""
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "BMP")
    return {"bytes": stream.getvalue(), "path": None}


@pytest.mark.parametrize("files", [1, 3])
def test_an_image_changed_inside_an_arrow_file_after_its_digest_was_taken_is_an_error_not_a_number(tmp_path, files):
    cells = [bitmap(noisy((4, 4, 3), i)) for i in range(40)]
    write_arrow(tmp_path / "ds", cells, [0] * 40, ["cat"], files)
    split = opened(tmp_path / "ds", ("cat",))
    other = bitmap(noisy((4, 4, 3), 500))["bytes"]
    for file in (tmp_path / "ds").glob("*.arrow"):
        place = file.read_bytes().find(cells[1]["bytes"])
        if place >= 0:
            with open(file, "r+b") as stream:
                stream.seek(place)
                stream.write(other)
    with pytest.raises(DataError, match="image 1 has changed since this run first read it"):
        split.items[1]
    assert np.array_equal(split.items[2], noisy((4, 4, 3), 2))
    again = opened(tmp_path / "ds", ("cat",))
    assert np.array_equal(again.items[1], noisy((4, 4, 3), 500))
    assert again.digest != split.digest


def test_an_arrow_column_that_holds_no_images_is_refused(tmp_path):
    write_arrow(tmp_path / "ds", [{"bytes": b"x", "path": None}], [0], ["cat"])
    file = next((tmp_path / "ds").glob("*.arrow"))
    table = pa.table({"image": ["a.png"], "label": [0]})
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"has the columns image .* — write one of type Image, with the bytes"):
        opened(tmp_path / "ds", ("cat",))
