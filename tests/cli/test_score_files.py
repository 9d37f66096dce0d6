"""`evaluate` reads a file of scores exactly as it was written, or ends in one message."""

import decimal
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.results.scores.cells import read_sets
from openbench.results.scores.stored import ScoreStore

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


DAMAGED = {
    "a field more in every row": (HEAD + ROWS.replace(b"\n", b",9\n"), "line 2: found 4 fields — allowed: 3, as in"),
    "a field more in one row": (HEAD + ROWS + b"4,o,near,1\n", "line 5: found 4 fields — allowed: 3"),
    "a field fewer in one row": (HEAD + ROWS + b"\n4,o\n", "line 6: found 2 fields — allowed: 3"),
    "no set": (HEAD + ROWS + b"4,,near\n", "line 5: set is '' — allowed: a name in every row"),
    "after quoted newlines": (b"a," + HEAD + b'"x\n\ny",1,c,id_test\nz,,o,near\n', "line 5: score is ''"),
    "nan": (HEAD + ROWS + b"nan,o,near\n", "line 5: score is 'nan'"),
    "true": (HEAD + ROWS + b"True,o,near\n", "line 5: score is 'True'"),
    "beyond float64": (HEAD + ROWS + b"1e400,o,near\n", "line 5: score is '1e400' — allowed: a number that a"),
    "semicolons": ((HEAD + ROWS).replace(b",", b";"), "columns are separated by ';' — allowed: commas"),
    "open quote": (HEAD + b'1,"c,id_test\n2,o,near\n', "a quote is not closed (found 1)"),
    "name of two lines": (HEAD + ROWS + b'4,"o,near\n5,o",near\n', r"line 5: set is 'o,near\n5,o'"),
    "column of two lines": (
        b'"\nscore",set,role\n1,c,near\n',
        r"no column 'score'; did you mean '\nscore'?, found: \n",
    ),
    "nul byte": (HEAD + ROWS + b"4,o\0,near\n", "line 5: found a NUL byte"),
    "latin-1": (HEAD + ROWS + b"4,\xe9,near\n", "line 5: invalid continuation byte — allowed: UTF-8"),
    "empty": (b"", "is empty — write a header and one row"),
    "only a header": (HEAD.strip(), "has no rows"),
    "doubled column": (b"score,set,role,score\n1,c,id_test,2\n", "has the column 'score' 2 times"),
    "padded column": (b"score, set,role\n", "has no column 'set'; did you mean ' set'?"),
    "column twice by number": (LABELLED.replace(b"p_1", b"p_00"), "without a gap — found p_0, p_00"),
    "negative probability": (LABELLED + b"1,c,id_test,0,-.4,1.4\n" + END, "line 2: p_0 is '-.4' — allowed: a pr"),
    "nan probability": (LABELLED + b"1,c,id_test,0,nan,1\n" + END, "line 2: p_0 is 'nan'"),
    "sum": (LABELLED + b"1,c,id_test,0,.4,.9\n" + END, "line 2: p_0 … p_1 have a sum of 1.3 — allowed: class prob"),
    "half a label": (LABELLED + b"1,c,id_test,0.5,.4,.6\n" + END, "line 2: label is '0.5' — allowed: a class i"),
    "label beyond": (LABELLED + b"1,c,id_test,2,.4,.6\n" + END, "line 2: label is '2' — allowed: a class index f"),
    "correct in words": (
        b"score,set,role,correct\n1,c,id_test,True\n2,c,id_test,no\n3,o,near,\n",
        "line 3: correct is 'no'",
    ),
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


TYPES = {
    "boolean": (pa.array([True, False, True]), "bool"),
    "time": (pa.array([1, None, 3], pa.timestamp("ns")).fill_null(2), "timestamp[ns]"),
    "list": (pa.array([[1.0], [2.0], [3.0]]), "list<element: double>"),
}


@pytest.mark.parametrize("case", TYPES)
def test_a_parquet_column_of_another_type_is_not_a_score(tmp_path, capsys, case):
    column, kind = TYPES[case]
    assert f"column 'score' has the type {kind} — allowed: a number" in refusal(table(tmp_path, score=column), capsys)


NULLS = {
    "score": (pa.array([1.0, None, 3.0]), "row 1: score is null — allowed: a number"),
    "set": (pa.array(["c", None, "o"]), "row 1: set is null — allowed: a name in every row"),
}


@pytest.mark.parametrize("column", NULLS)
def test_a_row_with_a_null_is_refused_and_not_left_out(tmp_path, capsys, column):
    values, expected = NULLS[column]
    assert expected in refusal(table(tmp_path, **{column: values}), capsys)
    if column == "score":
        assert "row 1: score is 'nan'" in refusal(table(tmp_path, score=pa.array([1.0, np.nan, 3.0])), capsys)


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


@pytest.mark.parametrize(("wrong", "right"), [("False", "true"), ("FALSE", "True"), ("0", "1"), ("0.000000", "1.0")])
def test_correctness_in_words_means_what_it_says(tmp_path, wrong, right):
    file = written(tmp_path, f"score,set,role,correct\n1,c,id_test,{wrong}\n2,c,id_test,{right}\n3,o,near,\n".encode())
    assert read_sets(file)[0].correct.tolist() == [0, 1]
    for column in (pa.array([wrong, right, None]), pa.array([False, True, None])):
        assert read_sets(table(tmp_path, correct=column))[0].correct.tolist() == [0, 1]


LARGE = 2**53


@pytest.mark.parametrize(("step", "allowed"), [(1, False), (2, True)])
def test_whole_numbers_keep_their_order_or_are_refused(tmp_path, capsys, step, allowed):
    values = [LARGE, LARGE, LARGE + step]
    rows = [f"{v},{s},{r}" for v, s, r in zip(values, "cco", ("id_test", "id_test", "near"), strict=True)]
    for file in (
        table(tmp_path, score=pa.array(values)),
        table(tmp_path, score=pa.array([LARGE, LARGE, LARGE + step], pa.uint64())),
        table(tmp_path, score=pa.array([decimal.Decimal(v) for v in values])),
        written(tmp_path, HEAD + "\n".join(rows).encode()),
    ):
        if allowed:
            assert auroc(file) == 1.0
        else:
            assert f"score is '{LARGE + 1}' — allowed: scores that float64 tells apart; {LARGE}" in refusal(
                file, capsys
            )


def test_whole_numbers_written_as_decimals_keep_their_order_or_are_refused(tmp_path, capsys):
    file = written(tmp_path, HEAD + f"{LARGE}.0,c,id_test\n{LARGE + 1}.0,o,near\n".encode())
    assert f"is '{LARGE + 1}.0' — allowed: scores that float64 tells apart" in refusal(file, capsys)
    assert auroc(written(tmp_path, HEAD + f"{LARGE},c,id_test\n{LARGE}.0,o,near\n".encode())) == 0.5


def test_correctness_that_contradicts_label_and_prediction_is_refused(tmp_path, capsys):
    content = b"score,set,role,label,prediction,correct\n1,c,id_test,3,3,1\n2,c,id_test,3,1,1\n3,o,near,,,\n"
    assert "line 3: correct is '1' — allowed: 1 where label and" in refusal(written(tmp_path, content), capsys)


@pytest.mark.parametrize("rows", ["4,o ,far\n", "2,caf\u00e9,near\n3,cafe\u0301,near\n"], ids=["space", "unicode"])
def test_set_names_that_look_alike_are_refused(tmp_path, capsys, rows):
    assert "look alike" in refusal(written(tmp_path, HEAD + ROWS + rows.encode()), capsys)


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
    assert "is a pipe or a device — allowed: a regular file" in refusal(pipe, capsys)
    assert "cannot be opened — Too many levels of symbolic links" in refusal(loop, capsys)
    assert "has no files of scores — allowed: .csv, .parquet" in refusal(folder, capsys)
    assert "cannot be opened — File name too long" in refusal(tmp_path / ("a" * 300 + ".csv"), capsys)


def run_scores(tmp_path):
    rng = np.random.default_rng(0)

    def split(name, role, n):
        labels = rng.integers(0, 4, n) if role.is_id else np.full(n, -1)
        return SetScores.of_split(name, role, rng.normal(size=n).astype(np.float32), labels, rng.integers(0, 4, n))

    sets = [split("c", Role.ID_TEST, 20), split("a", Role.NEAR, 12), split("b", Role.FAR, 9)]
    return ScoreStore(tmp_path).write("0123456789abcdef", sets)


def test_a_torn_parquet_file_is_refused(tmp_path, capsys):
    raw, torn = run_scores(tmp_path).read_bytes(), tmp_path / "torn.parquet"
    for length in (0, 3, 4, 11, len(raw) // 2, len(raw) - 1):
        torn.write_bytes(raw[:length])
        assert "cannot be read as parquet" in refusal(torn, capsys)
