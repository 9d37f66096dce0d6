import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import RecordError
from openbench.metrics.rank_ranges import RankRange
from openbench.results.leaderboard import plots
from openbench.results.leaderboard.plots import STYLES
from openbench.results.leaderboard.ranking import boards

from .records import make_record, metrics, named, split_scores, with_method, with_seed


@pytest.fixture
def drawn(monkeypatch):
    """The axes that were drawn, kept for inspection; their pictures have few points, since nobody looks at them."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(plots, "_DPI", 60)
    kept, original = [], Figure.add_subplot
    monkeypatch.setattr(Figure, "add_subplot", lambda self, *a, **k: kept.append(original(self, *a, **k)) or kept[-1])
    return kept


@pytest.fixture
def unsaved(drawn, monkeypatch):
    """The axes of pictures that are not made of them, which takes most of the time."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    return drawn


def board(n: int = 12, seeds: int = 1):
    base, rng = make_record(), np.random.default_rng(0)
    records = []
    for index in range(n):
        method = with_method(base, f"method_{index}")
        near, far = rng.uniform(0.7, 0.9), rng.uniform(0.8, 0.98)
        runs = [with_seed(method, s, near + 0.01 * s, far - 0.015 * s) for s in range(seeds)]
        if seeds == 1:  # of far sets, an interval of half the width, and not around its middle
            known = metrics(near, far)
            known["far"] |= {"auroc_low": far - 0.002, "auroc_high": far + 0.008}
            runs = [replace(run, metrics=known) for run in runs]
        records += runs
    return boards(records)[0]


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_every_method_is_a_point_where_its_numbers_say_with_its_bars(tmp_path, drawn, seeds):
    found = board(seeds=seeds)
    assert is_png(plots.near_far(found, tmp_path / "deep" / "near_far.png"))
    (axes,) = drawn
    containers = {c.get_label(): c for c in axes.containers}
    assert len(containers) == 12
    for row in found.ranked:
        far, near = row.values["far auroc"], row.values["near auroc"]
        line, _, (x_bar, y_bar) = containers[row.method]
        assert line.get_xydata().tolist() == [[100 * far.value, 100 * near.value]]
        ends = x_bar.get_segments()[0][:, 0], y_bar.get_segments()[0][:, 1]
        for estimate, (low, high) in zip((far, near), ends, strict=True):
            value, std = estimate.value, estimate.std
            expected = (estimate.low, estimate.high) if seeds == 1 else (value - std, value + std)
            assert (low, high) == pytest.approx([100 * end for end in expected])


def test_no_two_of_twelve_methods_share_colour_and_marker(tmp_path, unsaved):
    plots.near_far(board(12), tmp_path / "p.png")
    styles = {(c[0].get_color(), c[0].get_marker()) for c in unsaved[0].containers}
    assert len(styles) == 12


def test_of_a_crowd_those_are_named_that_no_other_beats_on_both(tmp_path, unsaved):
    found = board(30)
    plots.near_far(found, tmp_path / "p.png")
    values = {row.method: (row.values["far auroc"].value, row.values["near auroc"].value) for row in found.ranked}
    front = {a for a, x in values.items() if not any(y != x and y[0] >= x[0] and y[1] >= x[1] for y in values.values())}
    named = {note.get_text(): note.xy for note in unsaved[0].texts}
    assert set(named) == front
    for method, place in named.items():
        assert place == pytest.approx([100 * value for value in values[method]])


def test_beside_a_crowd_every_method_stands_in_order_with_its_interval_and_its_ranks(tmp_path, unsaved):
    found = board(30)
    first = found.ranked[0]
    plots.near_far(found, tmp_path / "p.png", ranges={first.runs: RankRange(0.9, 1, 4)})
    beside = unsaved[1]
    assert [label.get_text() for label in beside.get_yticklabels()] == [row.method for row in found.ranked]
    for place, (row, container) in enumerate(zip(found.ranked, beside.containers, strict=True)):
        near = row.values["near auroc"]
        assert container[0].get_xydata().tolist() == [[100 * near.value, place]]
        ends = container[2][0].get_segments()[0][:, 0]
        assert ends.tolist() == pytest.approx([100 * near.low, 100 * near.high])
    assert "1–4" in [note.get_text() for note in beside.texts]


@pytest.mark.slow
def test_the_families_of_a_crowd_are_colours_with_a_marker_each(tmp_path, drawn):
    found = board(30)
    families = {row.method: ("logits", "features", "text")[at % 3] for at, row in enumerate(found.ranked)}
    plots.near_far(found, tmp_path / "p.png", families)
    (legend,) = drawn[0].figure.legends  # in the axes it would lie on points
    assert [text.get_text() for text in legend.get_texts()] == ["logits", "features", "text"]
    assert len({(colour, marker) for colour, marker in STYLES.values()}) == len(STYLES)
    assert len({marker for name, (_, marker) in STYLES.items() if name}) == len(STYLES) - 1


def test_rows_of_one_method_are_told_apart_in_the_legend(tmp_path, unsaved):
    base = make_record()
    logitnorm = named(replace(base, backbone={**base.backbone, "training": "logitnorm"}))
    plots.near_far(boards([base, logitnorm])[0], tmp_path / "p.png")
    assert {c.get_label() for c in unsaved[0].containers} == {"knn · cross_entropy", "knn · logitnorm"}


def test_augmentations_are_told_apart_in_the_legend(tmp_path, unsaved):
    base = make_record()
    mixed = named(replace(base, backbone={**base.backbone, "digest": "m", "augment": "mixup"}))
    plots.near_far(boards([base, mixed])[0], tmp_path / "p.png")
    assert {c.get_label() for c in unsaved[0].containers} == {"knn", "knn · mixup"}


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(tmp_path, drawn):
    first, second = (plots.near_far(board(3), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def only(group: str, record):
    """The record with the numbers of one group and its sets."""
    other, sets = ("far", ("c",)) if group == "near" else ("near", ("a", "b"))
    kept = {name: values for name, values in record.metrics.items() if name not in (other, *sets)}
    counts = {name: count for name, count in record.counts.items() if not name.startswith(other)}
    return replace(record, metrics=kept, counts=counts)


@pytest.mark.parametrize("group", ["near", "far"])
def test_a_board_with_one_group_has_its_methods_sorted_with_their_intervals(tmp_path, drawn, group):
    records = [
        replace(with_method(make_record(), f"m{i}"), metrics=metrics(0.8 + i / 50, 0.7 + i / 50)) for i in (0, 2, 1)
    ]
    (found,) = boards([only(group, record) for record in records])
    assert plots.draw_all([found], tmp_path) == ([tmp_path / "toy.png"], [])
    assert is_png(tmp_path / "toy.png")
    (axes,) = drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == ["m2", "m1", "m0"]
    first = 80 if group == "near" else 70
    points = [container[0].get_xydata().tolist() for container in axes.containers]
    assert points == [[[pytest.approx(first + 4), 0]], [[pytest.approx(first + 2), 1]], [[pytest.approx(first), 2]]]
    ends = axes.containers[0][2][0].get_segments()[0][:, 0]
    assert ends[1] - ends[0] == pytest.approx(2)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert group in axes.get_xlabel()


def test_a_board_without_any_auroc_is_named_and_stops_no_other(tmp_path, unsaved):
    empty = replace(make_record(metrics={"id": {"accuracy": 0.5}}, benchmark={"name": "empty", "digest": "d"}))
    drawn, without = plots.draw_all(boards([empty, make_record()]), tmp_path)
    assert ([path.name for path in drawn], without) == (["toy.png"], ["empty"])


def test_boards_of_one_name_have_pictures_of_their_own(tmp_path, unsaved):
    other = named(replace(make_record(), benchmark={**make_record().benchmark, "digest": "bbbb"}))
    drawn, _ = plots.draw_all(boards([make_record(), other]), tmp_path)
    assert [path.name for path in drawn] == ["toy.png", "toy_bbbb.png"]


@pytest.mark.slow
def test_of_very_many_methods_the_best_are_drawn_and_the_title_says_so(tmp_path, unsaved):
    plots.near_far(board(130), tmp_path / "p.png")
    assert len(unsaved[1].containers) == 100
    assert "the best 100 of 130" in unsaved[0].figure.get_suptitle()


def areas(axes) -> dict[str, float]:
    outlines = [p for p in axes.patches if p.get_label().partition(" (")[0] and not p.get_label().startswith("_")]
    return {
        p.get_label().partition(" (")[0]: float(np.sum(p.get_data().values * np.diff(p.get_data().edges)))
        for p in outlines
    }


def test_each_density_has_unit_area_and_validation_is_left_out(tmp_path, drawn):
    assert is_png(plots.histograms(split_scores(), tmp_path / "h.png", "knn on toy"))
    found = areas(drawn[0])
    assert list(found) == ["ID test", "csID", "near OOD", "far OOD"]
    assert list(found.values()) == pytest.approx([1.0] * 4)


def test_lines_differ_by_style_and_not_by_colour_alone(tmp_path, unsaved):
    plots.histograms(split_scores(), tmp_path / "h.png")
    styles = [str(line.get_linestyle()) for line in unsaved[0].get_legend().get_lines()]
    assert len(set(styles)) == 4


def test_infinite_and_extreme_scores_end_in_the_outermost_bins(tmp_path, unsaved):
    scores = np.concatenate([np.linspace(0, 1, 997), [np.inf, -np.inf, 1e30]]).astype(np.float32)
    plots.histograms(
        [SetScores.of_split("t", Role.ID_TEST, scores, np.zeros(1000), np.zeros(1000))], tmp_path / "h.png"
    )
    left, right = unsaved[0].get_xlim()
    assert -0.1 < left < right < 1.1
    assert areas(unsaved[0])["ID test"] == pytest.approx(1.0)


def test_constant_scores_can_be_drawn(tmp_path):
    split = SetScores.of_split("t", Role.ID_TEST, np.ones(5, np.float32), np.zeros(5), np.zeros(5))
    assert is_png(plots.histograms([split], tmp_path / "h.png"))


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="no finite test scores"):
        plots.histograms([s for s in split_scores() if s.role == Role.ID_VAL], tmp_path / "h.png")


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"picture '.*file/h\.png' cannot be written"):
        plots.histograms(split_scores(), tmp_path / "file" / "h.png")


@pytest.mark.slow
def test_the_module_loads_without_matplotlib():
    program = "import sys, openbench.results.leaderboard.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_where_nothing_is_ranked_the_picture_shows_the_rest_and_says_so(tmp_path, unsaved):
    record = make_record()
    record = replace(record, benchmark={**record.benchmark, "pristine": False, "deviations": ["tin: dropped"]})
    plots.near_far(boards([record])[0], tmp_path / "p.png")
    assert len(unsaved[0].containers) == 1
    assert "not ranked" in unsaved[0].get_title()


STRANGE = [
    "漢字かな",
    "한글",
    "🧿🫠",
    "\ue000",
    "\u0f3a\u1fad",
    "$x^2$",
    "\x1b[2J",
    "a\nb",
    "\u0301",
    "𒀀",
    "_a",
    "%s {x} \\alpha",
]


def all_printable(drawn) -> bool:
    shown = [part for axes in drawn for part in (axes.get_title(), *axes.get_legend_handles_labels()[1])]
    return all(map(str.isprintable, shown))


# Warnings are errors here, among them matplotlib's of glyphs that a font does not have.
@pytest.mark.slow
def test_names_of_any_characters_are_drawn_in_a_legend_without_a_warning(tmp_path, drawn, capfd):
    trainings = [replace(make_record(), backbone={**make_record().backbone, "training": name}) for name in STRANGE]
    plots.near_far(boards(map(named, trainings))[0], tmp_path / "a.png")
    assert len(drawn[0].get_legend().get_texts()) == len(STRANGE)
    assert capfd.readouterr() == ("", "")
    assert all_printable(drawn)


@pytest.mark.parametrize("name", STRANGE)
def test_names_of_any_characters_are_drawn_as_a_title_without_a_warning(tmp_path, drawn, name, capfd):
    plots.histograms(split_scores(), tmp_path / "b.png", name)
    assert capfd.readouterr() == ("", "")
    assert all_printable(drawn)


def test_a_character_that_the_font_lacks_is_written_as_its_escape(tmp_path, drawn):
    plots.histograms(split_scores(), tmp_path / "a.png", "漢 é α 𒀀")
    assert drawn[0].get_title() == r"\u6f22 é α \U00012000"
