"""`evaluate` reads a file of scores exactly as it was written, or ends in one message."""

import decimal
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openbench.__main__ import main
from openbench.results.scores.formats import read_sets

from .conftest import numbers

HEAD = b"score,set,role\n"
ROWS = b"1,c,id_test\n2,c,id_test\n3,o,near\n"
LABELLED = b"score,set,role,label,p_0,p_1\n"
END = b"3,o,near,,,\n"


def written(tmp_path, content):
    file = tmp_path / "scores.csv"
    file.write_bytes(content)
    return file


def table(tmp_path, **columns):
    file = tmp_path / "scores.parquet"
    plain = {"score": pa.array([1.0, 2.0, 3.0]), "set": ["c", "c", "o"], "role": ["id_test", "id_test", "near"]}
    pq.write_table(pa.table(plain | columns), file)
    return file


def auroc(file, name="o"):
    return numbers(file)[name]["auroc"]


def refusal(file, capsys):
    """The one message with which `evaluate` ends."""
    assert main(["evaluate", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("error: ")


def test_metrics_are_not_written_over_the_scores(tmp_path, capsys):
    file = written(tmp_path, HEAD + ROWS)
    (tmp_path / "link.csv").symlink_to(file)
    assert main(["evaluate", str(file), "--json", str(tmp_path / "link.csv")]) == 2
    assert "would overwrite the scores" in capsys.readouterr().err
    assert file.read_bytes() == HEAD + ROWS


DAMAGED = {
    "a field more in one row": (HEAD + ROWS + b"4,o,near,1\n", "Row #5: Expected 3 columns, got 4"),
    "no set": (HEAD + ROWS + b"4,,near\n", "line 5: set is empty — allowed: a name on one line"),
    "no score": (HEAD + ROWS + b",o,near\n", "line 5: score is empty"),
    "nan": (HEAD + ROWS + b"nan,o,near\n", "line 5: score is empty — allowed: a number"),
    "open quote": (HEAD + b'1,"c,id_test\n2,o,near\n', "a quote is not closed"),
    "column of two lines": (
        b'"\nscore",set,role\n1,c,near\n',
        r"no column 'score'; did you mean '\nscore'?, found: \n",
    ),
    "nul byte": (HEAD + ROWS + b"4,o\0,near\n", r"line 5: set is 'o\x00'"),
    "empty": (b"", "Empty CSV file"),
    "doubled column": (b"score,set,role,score\n1,c,id_test,2\n", "has the column 'score' 2 times"),
    "negative probability": (LABELLED + b"1,c,id_test,0,-.4,1.4\n" + END, "line 2: p_0 is '-0.4' — allowed: a pr"),
    "sum": (LABELLED + b"1,c,id_test,0,.4,.9\n" + END, "line 2: p_0 … p_1 have a sum of 1.3 — allowed: class prob"),
    "label beyond": (LABELLED + b"1,c,id_test,2,.4,.6\n" + END, "line 2: label is '2' — allowed: a class index f"),
    "unknown role": (HEAD + ROWS + b"4,o,id_tst\n", "line 5: role is 'id_tst' — allowed: one of"),
    "gap": (b"score,set,role,p_0,p_2\n1,c,id_test,.4,.6\n3,o,near,,\n", "without a gap — found p_0, p_2"),
    "negative labels": (
        b"score,set,role,label\n1,c,id_test,-1\n2,c,id_test,-1\n3,o,near,\n",
        "line 2: label is '-1' and 1 more like it — allowed: a",
    ),
    "labels in part": (b"score,set,role,label\n1,c,id_test,0\n2,c,id_test,\n3,o,near,\n", "line 3: label is empty"),
    "correct in words": (b"score,set,role,correct\n1,c,id_test,True\n2,c,id_test,no\n", "Row #3: CSV conversion error"),
    "contradiction": (
        b"score,set,role,label,prediction,correct\n1,c,id_test,3,3,1\n2,c,id_test,3,1,1\n3,o,near,,,\n",
        "line 3: correct is '1' — allowed: 1 where label and",
    ),
    "two validation sets": (HEAD + ROWS + b"1,v,id_val\n1,w,id_val\n", "has 2 sets of the role id_val: v, w"),
    "space in a name": (HEAD + ROWS + b"4,o ,far\n", "look alike"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_csv_file_that_cannot_be_read_as_written_is_refused(tmp_path, capsys, case):
    content, expected = DAMAGED[case]
    assert expected in refusal(written(tmp_path, content), capsys)


@pytest.mark.parametrize(
    "content",
    [
        HEAD + ROWS,
        b"\xef\xbb\xbf" + HEAD + ROWS,
        (HEAD + ROWS).replace(b"\n", b"\r\n"),
        (HEAD + ROWS).replace(b"\n", b"\r"),
        (HEAD + ROWS).replace(b"\n", b"\n\n"),
        HEAD + ROWS + b",,\n,,\n",
        HEAD + ROWS.strip(),
        b'"score","set","role"\n"1","c","id_test"\n" 2","c","id_test"\n"+3e0","o","near"\n',
        b'"the ""note""",score,set,role\n"x, y\nz",1,c,id_test\n,2,c,id_test\n,3,o,near\n',
    ],
)
def test_every_way_of_writing_the_same_csv_gives_the_same_rows(tmp_path, content):
    found = read_sets(written(tmp_path, content))
    assert [(s.name, s.role, s.scores.tolist()) for s in found] == [("c", "id_test", [1, 2]), ("o", "near", [3])]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("score", pa.array([1, 2, 3], pa.timestamp("ns")), "Unsupported cast from timestamp[ns]"),
        ("score", pa.array([[1.0], [2.0], [3.0]]), "Unsupported cast from list"),
        ("score", pa.array([1, 2, 2**53 + 1]), "Integer value 9007199254740993 not in range"),
        ("score", pa.array([1.0, np.nan, 3.0]), "row 1: score is empty — allowed: a number"),
        ("set", pa.array(["c", None, "o"]), "row 1: set is empty — allowed: a name on one line"),
    ],
)
def test_a_parquet_file_with_what_is_no_score_or_no_name_is_refused(tmp_path, capsys, column, values, expected):
    assert expected in refusal(table(tmp_path, **{column: values}), capsys)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3], pa.int8()),
        pa.array(np.float16([1, 2, 3])),
        pa.array(["1", "2", "3"], pa.large_string()),
        pa.array([1.0, 2.0, 3.0]).dictionary_encode(),
        pa.array([decimal.Decimal(1), decimal.Decimal("2.000"), decimal.Decimal(3)]),
    ],
)
def test_every_type_of_number_is_read(tmp_path, column):
    try:
        file = table(tmp_path, score=column)
    except pa.ArrowNotImplementedError:
        pytest.skip(f"pyarrow {pa.__version__} writes no column of {column.type}")
    assert [s.scores.tolist() for s in read_sets(file)] == [[1, 2], [3]]


@pytest.mark.parametrize(("wrong", "right"), [("False", "true"), ("FALSE", "True"), ("0", "1"), ("0.0", "1.0")])
def test_correctness_in_words_means_what_it_says(tmp_path, wrong, right):
    file = written(tmp_path, f"score,set,role,correct\n1,c,id_test,{wrong}\n2,c,id_test,{right}\n3,o,near,\n".encode())
    assert read_sets(file)[0].correct.tolist() == [0, 1]
    assert read_sets(table(tmp_path, correct=pa.array([False, True, None])))[0].correct.tolist() == [0, 1]


def test_scores_of_the_other_sign_are_asked_about(tmp_path, capsys):
    assert auroc(written(tmp_path, HEAD + b"3,c,id_test\n2,o,near\n1,x,far\n")) == 0
    assert "AUROC is 0 at most: is a larger score more OOD?" in capsys.readouterr().err
    assert auroc(written(tmp_path, HEAD + b"3,c,id_test\n2,o,near\n4,x,far\n")) == 0
    assert "WARNING" not in capsys.readouterr().err


def test_what_is_not_a_regular_file_is_refused_and_not_waited_for(tmp_path, capsys):
    pipe, loop, folder = (tmp_path / name for name in ("pipe.csv", "loop.parquet", "folder.csv"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    folder.mkdir()
    for file in (pipe, loop, tmp_path / ("a" * 300 + ".csv")):
        assert "not found" in refusal(file, capsys)
    assert "has no files of scores — allowed: .csv, .parquet" in refusal(folder, capsys)


def test_a_torn_parquet_file_is_refused(tmp_path, capsys):
    raw, torn = table(tmp_path).read_bytes(), tmp_path / "torn.parquet"
    for length in (0, 3, 4, 11, len(raw) // 2, len(raw) - 1):
        torn.write_bytes(raw[:length])
        assert "cannot be read as parquet" in refusal(torn, capsys)
