"""Files of scores of any shape, sound and damaged: another reader agrees, or there is one message."""

import contextlib
import csv
import io
import json
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from openbench.__main__ import main

COLUMNS = ("score", "set", "role")
ROLES = ("id_test", "near", "far", "id_val", "ood_val", "csid")
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.sampled_from([0.1 + 0.2, 0.3, 1e-320, float("inf"), float("-inf"), 2**53, 2**53 + 1, -(2**63)]),
)
ODD = st.sampled_from(["", " ", "nan", "high", "True", "1,5", "1;5", '"', "\n", "1e999", "0x1", "1_0", "é", "-0", "1."])
NAMES = st.sampled_from(["a", "b", "NA", "7", "null", "a b", "x,y", 'q"q', "ü"])


@st.composite
def rows(draw):
    """Rows that have the sets `evaluate` needs, and others in any order."""
    others = draw(st.lists(st.tuples(NUMBERS, NAMES, st.sampled_from(ROLES[1:])), max_size=12))
    needed = [(draw(NUMBERS), "c", "id_test") for _ in range(draw(st.integers(1, 6)))]
    # Every near and far set has a name of its own.
    others = [(score, f"{name}{role[0]}" if role in ROLES[1:3] else name, role) for score, name, role in others]
    return draw(st.permutations([*needed, (draw(NUMBERS), "o", "near"), *others]))


def as_csv(table, draw):
    out = io.StringIO()
    style = {"quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))}
    writer = csv.writer(out, lineterminator=draw(st.sampled_from(["\n", "\r\n"])), **style)
    writer.writerows([COLUMNS, *table])
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + out.getvalue().encode()


def as_parquet(table, draw):
    numbers = [float(score) for score, _, _ in table]
    names, roles = ([row[k] for row in table] for k in (1, 2))
    if draw(st.booleans()):
        names, roles = (pa.array(column).dictionary_encode() for column in (names, roles))
    out = io.BytesIO()
    pq.write_table(pa.table({"score": numbers, "set": names, "role": roles}), out, write_page_checksum=True)
    return out.getvalue()


@st.composite
def damaged(draw, content, text):
    """The bytes of a file after up to two accidents."""
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["cut", "byte", "gone", "put", "line"] if text else ["cut", "byte"]))
        if kind == "cut":
            content = content[:place]
        elif kind == "byte":
            content = content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :]
        elif kind == "gone":
            content = content[:place] + content[place + draw(st.integers(1, 8)) :]
        elif kind == "put":
            odd = draw(st.one_of(ODD, st.sampled_from([",", '"', "\r", "\0", ",,"])))
            content = content[:place] + odd.encode() + content[place:]
        else:
            lines = content.splitlines(keepends=True)
            chosen = draw(st.integers(0, max(0, len(lines) - 1)))
            content = b"".join([*lines[:chosen], *lines[chosen : chosen + 1], *lines[chosen:]])
    return content


def read_again(file):
    """[(score, set, role)] by another reader."""
    if file.suffix == ".parquet":
        columns = pq.read_table(io.BytesIO(file.read_bytes()), page_checksum_verification=True).to_pydict()
        return list(zip(*(columns[name] for name in COLUMNS), strict=True))
    with file.open(encoding="utf-8-sig", newline="") as text:
        header, *records = (record for record in csv.reader(text) if record)
    table = [dict(zip(header, record, strict=True)) for record in records]
    return [(float(row["score"]), row["set"], row["role"]) for row in table if any(row.values())]


def by_hand(table):
    """{near or far set: (number of scores, AUROC by all pairs)} and the number of ID scores."""
    ids = [score for score, _, role in table if role == "id_test"]
    ood = Counter(name for _, name, role in table if role in ("near", "far"))
    areas = {}
    for name, count in ood.items():
        scores = [score for score, other, role in table if other == name and role in ("near", "far")]
        areas[name] = count, sum((s > i) + 0.5 * (s == i) for s in scores for i in ids) / (count * len(ids))
    return areas, len(ids)


def check(content, suffix):
    with tempfile.TemporaryDirectory() as folder:
        file, out, err = Path(folder) / f"scores{suffix}", Path(folder) / "out.json", io.StringIO()
        file.write_bytes(content)
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = main(["evaluate", str(file), "--families", "ranking", "--json", str(out)])
        event(f"{suffix} exit {code}")
        if code:
            assert code == 2, err.getvalue()
            assert len(err.getvalue().splitlines()) == 1, err.getvalue()
            return code
        found = json.loads(out.read_text())
        areas, n = by_hand(read_again(file))
        assert found["id"]["n_id"] == n
        assert {name for name in found if name not in ("id", "near", "far") and "/" not in name} == areas.keys()
        for name, (count, area) in areas.items():
            assert found[name]["n_ood"] == count
            assert found[name]["auroc"] == pytest.approx(area, abs=1e-12)
        return code


FEW = settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(st.data(), rows(), st.sampled_from([".csv", ".parquet"]))
def test_a_sound_file_is_read_as_another_reader_reads_it(data, table, suffix):
    content = (as_csv if suffix == ".csv" else as_parquet)(table, data.draw)
    code = check(content, suffix)
    # Two different whole numbers of text with the same float64 are refused; in a parquet column of floats none are.
    close = {str(score) for score, _, _ in table} >= {str(2**53), str(2**53 + 1)}
    assert code == (2 if close and suffix == ".csv" else 0)


@FEW
@given(st.data(), rows(), st.sampled_from([".csv", ".parquet"]))
def test_a_damaged_file_is_read_as_another_reader_reads_it_or_refused(data, table, suffix):
    content = (as_csv if suffix == ".csv" else as_parquet)(table, data.draw)
    check(data.draw(damaged(content, suffix == ".csv")), suffix)
