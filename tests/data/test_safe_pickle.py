import os
import pickle

import numpy as np
import pytest

from openbench.data.sources.archives import load_pickle, pixel_rows
from openbench.errors import DataError


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_arrays_lists_text_and_bytes_are_read(tmp_path):
    path = tmp_path / "p"
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "names": ["a"], "raw": b"\xff"}
    for protocol in (2, 4, 5):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        found = load_pickle(path)
        np.testing.assert_array_equal(found["data"], content["data"])
        assert found["labels"] == [1, 2]


def test_a_pickle_that_would_run_code_is_refused_before_it_does(tmp_path):
    path, trace = tmp_path / "p", tmp_path / "trace"
    path.write_bytes(pickle.dumps({"data": Evil(trace)}, protocol=2))
    with pytest.raises(DataError, match=r"refused — it names (posix|nt)\.system"):
        load_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize("raw", [b"", b"hello", pickle.dumps({"a": 1})[:-3], pickle.dumps([1, 2])])
def test_what_is_no_mapping_or_cut_off_is_refused(tmp_path, raw):
    path = tmp_path / "p"
    path.write_bytes(raw)
    with pytest.raises(DataError, match="pickle"):
        load_pickle(path)


@pytest.mark.parametrize("data", [np.zeros((2, 5), np.uint8), np.zeros((2, 12), np.int16), [1, 2], None])
def test_pixels_of_another_shape_or_type_are_refused(tmp_path, data):
    with pytest.raises(DataError, match=r"uint8 \(n, 12\) expected"):
        pixel_rows({"data": data}, tmp_path / "p", (3, 2, 2))
