"""What the pictures of boards show is what their rows say."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.metrics.rank_ranges import RankRange
from openbench.results.leaderboard import plots
from openbench.results.leaderboard.plots import board_picture, draw_boards, on_front
from openbench.results.leaderboard.ranking import boards
from openbench.results.scores.stored import ScoreStore

from .records import make_record, metrics, named, with_method, with_seed


def board(n=30, seeds=1):
    records = []
    for index in range(n):
        method, near, far = with_method(make_record(), f"method_{index}"), 0.7 + 0.004 * index, 0.98 - 0.003 * index
        runs = [with_seed(method, s, near + 0.01 * s, far - 0.015 * s) for s in range(seeds)]
        if seeds == 1:  # of near sets, an interval that is not around its middle
            known = metrics(near, far)
            known["near"] |= {"auroc_low": near - 0.002, "auroc_high": near + 0.008}
            runs = [replace(run, metrics=known) for run in runs]
        records += runs
    return boards(records)[0]


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_method_stands_in_order_with_its_interval_and_its_ranks(seeds):
    found = board(seeds=seeds)
    first = found.ranked[0]
    beside = board_picture(found, {}, {first.runs: RankRange(0.9, 1, 4)}).axes[1]
    assert [label.get_text() for label in beside.get_yticklabels()] == [row.method for row in found.ranked]
    for place, (row, container) in enumerate(zip(found.ranked, beside.containers, strict=True)):
        near = row.values["near auroc"]
        assert container[0].get_xydata().tolist() == [[100 * near.value, place]]
        ends = (near.low, near.high) if seeds == 1 else (near.value - near.std, near.value + near.std)
        assert container[2][0].get_segments()[0][:, 0].tolist() == pytest.approx([100 * end for end in ends])
    assert "1–4" in [note.get_text() for note in beside.texts]


def test_those_are_named_that_no_other_beats_on_both():
    axes = board_picture(board(), {}, {}).axes[0]
    rows = {row.method: (row.values["far auroc"].value, row.values["near auroc"].value) for row in board().ranked}
    points = np.array([[1.0, 1.0], [2.0, 0.0], [2.0, 1.0], [0.0, 3.0], [2.0, 1.0]])
    assert on_front(points) == [3, 2, 4]
    named = {note.get_text(): note.xy for note in axes.texts}
    front = {a for a, x in rows.items() if not any(y != x and y[0] >= x[0] and y[1] >= x[1] for y in rows.values())}
    assert set(named) == front
    for method, place in named.items():
        assert place == pytest.approx([100 * value for value in rows[method]])


def test_rows_of_one_method_are_told_apart():
    base = make_record()
    other = named(replace(base, backbone={**base.backbone, "training": "logitnorm"}))
    mixed = named(replace(base, backbone={**base.backbone, "digest": "m", "augment": "mixup"}))
    for more, names in ((other, {"knn · cross_entropy", "knn · logitnorm"}), (mixed, {"knn", "knn · mixup"})):
        axes = board_picture(boards([base, more])[0], {}, {}).axes[1]
        assert {label.get_text() for label in axes.get_yticklabels()} == names


def only(group, record):
    """The record with the numbers of one group and its sets."""
    other, sets = ("far", ("c",)) if group == "near" else ("near", ("a", "b"))
    kept = {name: values for name, values in record.metrics.items() if name not in (other, *sets)}
    counts = {name: count for name, count in record.counts.items() if not name.startswith(other)}
    return replace(record, metrics=kept, counts=counts)


@pytest.mark.parametrize("group", ["near", "far"])
def test_a_board_with_one_group_is_a_list_of_its_methods(group):
    records = [
        replace(with_method(make_record(), f"m{i}"), metrics=metrics(0.8 + i / 50, 0.7 + i / 50)) for i in (0, 2, 1)
    ]
    (found,) = boards([only(group, record) for record in records])
    (axes,) = board_picture(found, {}, {}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["m2", "m1", "m0"]
    first = 80 if group == "near" else 70
    points = [container[0].get_xydata().tolist() for container in axes.containers]
    assert points == [[[pytest.approx(first + 4), 0]], [[pytest.approx(first + 2), 1]], [[pytest.approx(first), 2]]]
    assert group in axes.get_xlabel()


def test_boards_of_one_name_have_files_of_their_own_with_equal_bytes_and_one_without_auroc_is_named(tmp_path):
    other = named(replace(make_record(), benchmark={**make_record().benchmark, "digest": "bbbb"}))
    empty = make_record(metrics={"id": {"accuracy": 0.5}}, benchmark={"name": "empty", "digest": "d"})
    drawn, without = draw_boards(boards([make_record(), other, empty]), tmp_path, {}, ScoreStore(tmp_path))
    assert [path.name for path in drawn] == ["toy.png", "toy_bbbb.png"]
    assert without == ["empty"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    assert drawn[0].read_bytes() == drawn[1].read_bytes()


def test_the_title_says_what_is_not_ranked_or_not_drawn(monkeypatch):
    monkeypatch.setattr(plots, "_ROWS", 10)
    record = make_record()
    record = replace(record, benchmark={**record.benchmark, "pristine": False, "deviations": ["tin: dropped"]})
    assert "not ranked" in board_picture(boards([record])[0], {}, {}).get_suptitle()
    crowd = board_picture(board(13), {}, {})
    assert len(crowd.axes[1].containers) == 10
    assert "the best 10 of 13" in crowd.get_suptitle()


STRANGE = ("漢字かな", "🧿🫠", "\u0f3a\u1fad", "$x^2$", "\x1b[2J", "a\nb", "\u0301", "𒀀", "_a", "%s {x} \\alpha")


# Warnings are errors here, among them matplotlib's of glyphs that a font does not have.
def test_names_of_any_characters_are_drawn_without_a_warning(tmp_path, capfd):
    trainings = [replace(make_record(), backbone={**make_record().backbone, "training": name}) for name in STRANGE]
    found = boards(map(named, trainings))
    figure = board_picture(found[0], {}, {})
    labels = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert len(labels) == len(STRANGE)
    assert all(map(str.isprintable, labels))
    assert r"knn · \U00012000" in labels  # what the font lacks is written as its escape
    draw_boards(found, tmp_path, {}, ScoreStore(tmp_path))
    assert capfd.readouterr() == ("", "")
