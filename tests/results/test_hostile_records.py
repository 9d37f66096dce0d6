"""Record files that anybody may have made: each is read or listed with one reason, and the others make the boards."""

import copy
import itertools
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from markdown_it import MarkdownIt

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.frame import everything, run_of, runs
from openbench.results.leaderboard.across import ACROSS, across, across_csv, needed
from openbench.results.leaderboard.pages import MARK, generate, write
from openbench.results.leaderboard.plots import draw_boards
from openbench.results.leaderboard.ranking import boards
from openbench.results.records.store import RecordStore, load, text_of
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import FORMATS, render
from openbench.results.tables.views import VIEWS, run_tables

from .records import full_record, make_record, with_method

FOLDER = Path("records/toy/tiny/bad")


def changed(key, value):
    """A record's text with a key, dotted, of another value."""
    content = make_record(config={"seed": 0, "method": {"_name_": "knn"}, "metrics": {"confidence": 0.95}}).to_dict()
    node, (*before, last) = content, key.split(".")
    for name in before:
        node = node[name]
    node[last] = value
    return json.dumps({**content, "run_id": "bad"})


TEXT = changed("tuned", {})
BAD = {
    "name of a path": (changed("benchmark.name", "../../../X"), "key 'benchmark.name'"),
    "name of the index": (changed("benchmark.name", "readme"), "a name other than README"),
    "name of a file elsewhere": (changed("config.method._name_", "../x"), "key 'config.method._name_'"),
    "text in a number": (changed("metrics.near.auroc", "0.9"), "is '0.9' — allowed: a finite number"),
    "number of many digits": (TEXT.replace('"bad"', "9" * 5000), "not valid JSON"),
    "AUROC above one": (changed("metrics.c.auroc", 1.2), "key 'metrics.c.auroc' of the record is 1.2 — allowed: a"),
    "nothing counted": (changed("metrics.id.n_id", 0), "a whole number of at least 1"),
    "interval beside": (changed("metrics.near.auroc_low", 0.905), "is [0.905, 0.91] for 0.9 — allowed: an interval"),
    "interval turned": (changed("metrics.near.auroc_high", 0.85), "is 0.89 above 0.85 — allowed: the lower end first"),
    "set that moves the cursor": (changed("metrics", {"\x1b[2J": {}}), r"key 'metrics.\x1b[2J"),
    "training of right to left": (changed("backbone.training", "\u202eabc"), r"is '\u202eabc'"),
    "unknown key": (changed("surprise", 1), "unknown keys ['surprise']"),
    "deep JSON": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    "key twice": (TEXT.replace('"seed": 0', '"seed": 0, "seed": 1'), "the key 'seed' twice"),
    "another schema": (changed("schema", 99), "this version reads schema 2"),
    "text in a count": (changed("backbone.num_classes", "six"), "key 'backbone.num_classes'"),
    "no backbone": (changed("backbone", {}), "key 'backbone.name' of the record is missing"),
}


def results_with(tmp_path, content=None):
    """A results folder with a good record, and a bad file beside it."""
    RecordStore(tmp_path).write(make_record())
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "bad.json"


def only_reason(tmp_path):
    """The one reason why a file is left out, after the boards were made of the good record."""
    made = generate(tmp_path)
    write(tmp_path, made.files)
    assert [row.method for board in made.boards for row in board.ranked] == ["knn"]
    (reason,) = map(str, made.unreadable)
    assert str(tmp_path / FOLDER) in reason
    assert len(reason) < 600
    assert reason.isprintable()
    return reason


@pytest.mark.parametrize("case", BAD)
def test_a_bad_record_is_one_reason_and_the_boards_are_made_of_the_others(tmp_path, case):
    content, said = BAD[case]
    results_with(tmp_path / "results", content)
    assert said in only_reason(tmp_path / "results")
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert sorted(path.name for path in (tmp_path / "results/leaderboard").iterdir()) == [
        "README.md", "toy.csv", "toy.md",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "said"),
    [("bad.json", "symbolic links"), (".", "Is a directory")],
)
def test_a_link_to_itself_and_a_folder_are_reasons(tmp_path, target, said):
    results_with(tmp_path).symlink_to(target)
    assert said in only_reason(tmp_path)


def test_a_huge_file_is_not_read(tmp_path):
    with open(results_with(tmp_path), "wb") as stream:
        stream.truncate(1 << 30)
    assert "more than 16,777,216 bytes" in only_reason(tmp_path)


def test_no_module_that_a_record_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "trap/sub.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"seed": 0, "method": {"_name_": "knn"}, "training": {"_target_": "trap.sub.Training"}}
    record = make_record(config=config)
    assert boards([record])[0].ranked[0].outliers == "none"
    assert "trap" not in sys.modules


def test_a_page_that_is_a_link_is_replaced_and_what_it_led_to_is_kept(tmp_path):
    RecordStore(tmp_path / "results").write(make_record())
    (tmp_path / "private").write_text("mine")
    (tmp_path / "results/leaderboard").mkdir()
    for name in ("toy.md", "README.md", "toy.png"):
        (tmp_path / "results/leaderboard" / name).symlink_to(tmp_path / "private")
    made = generate(tmp_path / "results")
    write(tmp_path / "results", made.files)
    draw_boards(made.boards, tmp_path / "results/leaderboard", {}, ScoreStore(tmp_path))
    assert (tmp_path / "private").read_text() == "mine"
    assert (tmp_path / "results/leaderboard/toy.md").read_text().startswith("<!-- Generated")


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(RecordError, match=r"key 'metrics\.a.*' of the record is .* — allowed: a name on one line"):
        RecordStore(tmp_path).write(make_record(metrics={"a\nb": {"auroc": 0.5}}))
    with pytest.raises(RecordError, match="cannot be written: it has text that is not Unicode"):
        RecordStore(tmp_path).write(make_record(header="\ud800"))


HOSTILE = "<script>x</script> ![i](http://e.e/x) [x](javascript:y) https://e.e | `c` \x1b[31m\u202e\n\n# h\n| a |"


def test_free_text_of_a_record_brings_no_html_link_or_image_into_the_pages(tmp_path):
    node = {"_name_": "knn", "text": HOSTILE}
    about = {"name": "toy", "digest": "a [x](y) <b>", "pristine": False, "deviations": [HOSTILE, "<img src=x>"]}
    spoilt = make_record(
        benchmark=about,
        config={"seed": 0, "method": node},
        method={"name": "knn", "version": 1, "params": {"text": HOSTILE}},
        backbone={"name": "tiny", "digest": "b", "training": "<i>[t](u)</i>", "augment": "=1+1", "outliers": "$x$"},
        header=HOSTILE,
    )
    for record in (spoilt, make_record()):
        RecordStore(tmp_path).write(record)
    made = generate(tmp_path)
    assert made.unreadable == []
    links = []
    for path, text in made.files.items():
        assert all(line.isprintable() for line in text.split("\n"))
        if path.suffix == ".md":
            tokens = MarkdownIt("gfm-like").parse(text.removeprefix(MARK))
            inline = [child for token in tokens for child in token.children or ()]
            links += [str(token.attrs["href"]) for token in inline if token.type == "link_open"]
            assert not {"html_inline", "image"} & {token.type for token in inline}
            assert not {"html_block", "fence", "code_block"} & {token.type for token in tokens}
    assert set(links) == {"toy.md"}
    draw_boards([board for board in made.boards if board.digest != "aaaa"], tmp_path, {}, ScoreStore(tmp_path))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**30), 1e308, -1e-308, 0, 2**63]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["unable", "<script>", "=1+1", "[x](y)", "\x1b[2J", "a|b", "../x", "inf", "__class__"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def places(node, path=()):
    """The path of every value in a record."""
    if path:
        yield path
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(child, (*path, key))


def show_everything(record: ResultRecord, folder: Path, shown: set[tuple[str, str]]) -> None:
    """Whatever any command makes of a record; `shown` has the tables that were rendered already, with their forms."""
    tables = [table for view in VIEWS for table in run_tables(record, view)]
    good = with_method(make_record(), "msp")
    for view in ACROSS:
        found = boards([record, good], needed(view))
        tables += [*across(found, view), across_csv(found, view)]
    for table, form in itertools.product(tables, FORMATS):
        if (repr(table), form) not in shown:  # most values change few of the tables
            render(table, form)
            shown.add((repr(table), form))
    read = [run_of(record), run_of(good)]
    kept = list(runs(Held(folder, [record, good]), pytest.fail, everything))
    assert sorted(kept, key=str) == sorted(read, key=str)


class Held(RecordStore):
    """Records that lie in no file."""

    def __init__(self, root: Path, records: list[ResultRecord]) -> None:
        super().__init__(root)
        self.records = {self.path(record): record for record in records}

    def paths(self, on_error=None) -> list[Path]:
        return list(self.records)

    def read(self, path: Path) -> ResultRecord:
        return self.records[path]


SHOWN: set[tuple[str, str]] = set()
BASE = full_record(trials=[{"params": {"k": 5}, "auroc": 0.5, "set": "a"}], tuned={"k": {"a": 5}}).to_dict()
PLACES = sorted(places(json.loads(json.dumps(BASE))), key=str)


@settings(
    max_examples=settings.default.max_examples // 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=st.sampled_from(PLACES), value=VALUES, instead=st.booleans())
def test_a_record_with_any_value_anywhere_is_refused_or_shown(tmp_path, place, value, instead):
    content = copy.deepcopy(BASE)
    node = content
    for key in place[:-1]:
        node = node[key]
    if instead or isinstance(node, list):
        node[place[-1]] = value
    else:
        node[str(value)] = node.pop(place[-1])
    path = tmp_path / f"{BASE['run_id']}.json"
    try:
        path.write_text(text_of(content))  # by somebody who states the digest, too
        record = load(path)
    except RecordError:
        return
    show_everything(record, tmp_path, SHOWN)
