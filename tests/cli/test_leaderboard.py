import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openbench.cli.app import carry_out
from openbench.cli.commands.leaderboard import _condition
from openbench.core.record import ResultRecord
from openbench.errors import ConfigError, RecordError
from openbench.results.records.store import RecordStore, text_of
from tests.results.records import make_record, undigested


def main(words: list[str]) -> int:
    return carry_out(["leaderboard", *words])


def record(name: str, near: float, **changes) -> ResultRecord:
    """A run whose numbers follow from its only near and only far set."""
    fields = {
        "config": {"seed": 0, "method": {"_name_": f"m{name}"}},
        "backbone": {"name": "tiny", "digest": name, "training": "cross_entropy"},
        "method": {"name": f"m{name}", "version": 1, "reference": "", "params": {}},
        "metrics": {
            **{name: {"auroc": near, "fpr95": 0.2, "autc": 0.3} for name in ("near", "far", "a", "b")},
            "id": {"accuracy": 0.5},
        },
        "header": "FPR@95: OOD positive · AUTC: scaling none, w = 1",
        "counts": {"near/a": {"n": 5, "expected": 5}, "far/b": {"n": 5, "expected": 5}},
        "provenance": {},
    }
    return make_record(**{**fields, **changes})


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path))
    for name, near in (("1", 0.6), ("2", 0.8)):
        RecordStore(tmp_path).write(record(name, near))
    return tmp_path


def test_it_writes_the_pages_once_and_is_then_up_to_date(results, capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.count("wrote ") == 3
    assert main([]) == 0
    assert capsys.readouterr().out == "up to date\n"
    page = (results / "leaderboard" / "toy.md").read_text()
    assert page.index("| m2 |") < page.index("| m1 |")


def test_check_fails_without_writing_until_the_pages_are_there(results, capsys):
    assert main(["--check"]) == 1
    assert f"outdated: {results / 'leaderboard' / 'toy.md'}" in capsys.readouterr().out
    assert not (results / "leaderboard").exists()
    main([])
    assert main(["--check"]) == 0
    page = results / "leaderboard" / "toy.md"
    page.write_text(page.read_text().replace("80.00", "90.00"))
    assert main(["--check"]) == 1


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RecordError, match=r"results folder '.*none' not found — give one with --results DIR"):
        main(["--results", str(tmp_path / "none")])


def only_file(results: Path, method: str) -> Path:
    return next((results / "records").rglob(f"{method}/*.json"))


def test_a_damaged_file_is_named_and_the_boards_are_made_of_the_others(results, capsys):
    broken = only_file(results, "m1")
    broken.write_text(json.dumps({}))
    assert main([]) == 2
    said = capsys.readouterr().err
    assert f"error: {broken}: not a result record" in said
    assert "1 file was left out" in said
    page, index = ((results / "leaderboard" / name).read_text() for name in ("toy.md", "README.md"))
    assert "| m2 |" in page
    assert "| m1 |" not in page
    assert f"- records/toy/tiny/m1/{broken.name}: not a result record" in index
    assert main(["--check"]) == 2


def edited(results: Path, method: str, group: str, key: str, value) -> Path:
    path = only_file(results, method)
    data = undigested(path)
    data["metrics"][group][key] = value
    path.write_text(text_of(data))
    return path


def test_an_edited_mean_is_not_ranked_and_the_command_says_why(results, capsys):
    path = edited(results, "m1", "near", "auroc", 0.999)
    assert main([]) == 0
    reason = "near.auroc does not follow from its sets (0.999 recorded, 0.6 computed)"
    assert f"not ranked: toy/tiny/m1/{path.name}: {reason}" in capsys.readouterr().err
    page = (results / "leaderboard" / "toy.md").read_text()
    ranked, unranked = page.split("### Not ranked")
    assert "m1" not in ranked
    assert reason in unranked


def test_a_record_under_an_invented_run_id_is_not_ranked(results, capsys):
    path = only_file(results, "m1")
    data = undigested(path)
    path.unlink()
    path.with_name("abcdef.json").write_text(text_of({**data, "run_id": "abcdef"}))
    assert main([]) == 0
    expected = f"run id abcdef does not follow from what was run, which gives {data['run_id']}"
    assert expected in capsys.readouterr().err


def columns_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_view_is_printed_across_methods_and_writes_nothing(results, capsys):
    assert main(["--view", "threshold", "--format", "csv"]) == 0
    rows = columns_of(capsys.readouterr().out)
    assert [(r["of"], r["rank"], r["method"], r["autc ↓"]) for r in rows] == [
        ("near", "1", "m2", "0.3"),
        ("near", "2", "m1", "0.3"),
        ("far", "1", "m2", "0.3"),
        ("far", "2", "m1", "0.3"),
    ]
    assert not (results / "leaderboard").exists()


def test_networks_and_methods_are_printed_with_what_survives_above(results, capsys):
    for name, near in (("1", 0.7), ("2", 0.9)):
        made = record(name, near)
        RecordStore(results).write(record(name, near, backbone={**made.backbone, "name": "big", "digest": "big"}))
        same = {"backbone": {**made.backbone, "digest": "tiny"}, "config": {**made.config, "seed": 1}}
        RecordStore(results).write(record(name, near, **same))
    assert main(["--view", "networks", "--of", "near"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("toy: near AUROC, networks × methods: 2 methods on 2 networks. Kendall's τ")
    assert said.index("Kendall's τ between") < said.index("mean rank") < said.index("Kendall's τ [95 %]")
    assert main(["--view", "networks", "--of", "near", "--format", "latex"]) == 0
    assert all(line.isascii() for line in capsys.readouterr().out.splitlines() if line[:1] != "%")
    with pytest.raises(ConfigError, match="'n_ood' has no better and worse"):
        main(["--view", "networks", "--metric", "n_ood"])


def test_costs_count_the_training_images_for_methods_that_read_them(results, capsys):
    made = record("3", 0.7)
    counts = {**made.counts, "id_train/a": {"n": 7, "expected": 7}}
    for name in ("knn", "msp"):
        RecordStore(results).write(record("3", 0.7, counts=counts, method={**made.method, "name": name}))
    assert main(["--view", "cost", "--format", "csv"]) == 0
    lines = csv.DictReader(io.StringIO(capsys.readouterr().out))
    passes = {line["method"]: int(line["passes without a cache"]) for line in lines}
    assert passes == {"knn": 17, "msp": 10, "m1": 10, "m2": 10, "all": 47}


def test_a_table_for_a_paper_has_few_columns_and_the_digest_in_a_comment(results, capsys):
    assert main(["--view", "overview", "--format", "latex"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("% overview · AUROC ↑ · toy · standard · digest aaaa")
    assert r"\caption{OOD detection on toy: AUROC." in text
    assert r"method & near & far \\" in text
    assert r"m2 & \textbf{80.00} & \textbf{80.00} \\" in text
    assert main(["--view", "ranking", "--of", "near", "--columns", "fpr95,method"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["FPR@95", "↓", "method"]


def test_rows_are_chosen_by_what_they_are(results, capsys):
    config = {"seed": 0, "method": {"_name_": "m3"}}
    backbone = {"name": "tiny", "digest": "3", "training": "outlier_exposure"}
    backbone |= {"outliers": "tin597", "augment": "pixmix"}
    RecordStore(results).write(record("3", 0.9, config=config, backbone=backbone))

    def methods(*where: str) -> list[str]:
        assert main([*(word for text in where for word in ("--where", text)), "--format", "csv"]) == 0
        return [row["method"] for row in columns_of(capsys.readouterr().out)]

    assert methods("training=*") == ["m3", "m2", "m1"]
    assert methods("outliers=none") == ["m2", "m1"]
    assert methods("augment=pixmix,mixup") == ["m3"]
    assert methods("method=m1,m3", "training=cross*") == ["m1"]
    assert _condition("training=a=b,c") == ("training", ("a=b", "c"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "training=vos"], "--where training=vos: no record — available: cross_entropy"),
        (["--where", "trainig=vos"], "did you mean 'training'"),
        (["--where", "training"], "found 'training' — allowed: KEY=VALUE"),
        (["--benchmark", "toi"], "--benchmark: 'toi' not found among the records; did you mean 'toy'"),
        (["--benchmark", "t*,toi"], "--benchmark: 'toi' not found among the records; did you mean 'toy'"),
        (["--view", "ranking", "--columns", "auroq"], "--columns: 'auroq' not found; did you mean 'auroc'"),
        (["--view", "ranking", "--of", "nea"], "--of: 'nea' not found; did you mean 'near'"),
        (["--of", "nea"], "--of: 'nea' not found; did you mean 'near'"),
        (["--view", "cost", "--of", "near"], "--of has no effect, as --view cost does not read it"),
        (["--check", "--view", "id", "--format", "csv"], "--view, --format has no effect, as --check does not read"),
        (["--site", "site", "--where", "method=m1"], "--where has no effect, as --site does not read it"),
        (["--published", "--view", "id"], "--view has no effect, as --published does not read it"),
        (["--view", "overview", "--metric", "fpr95"], "--metric fpr95 has no effect — it is read by --view networks"),
    ],
)
def test_a_choice_that_leaves_nothing_is_an_error_that_says_what_there_is(results, arguments, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        main(arguments)


def test_it_answers_without_torch(results):
    begin = "import sys\nfrom openbench.__main__ import main\n"
    answer = begin + "code = main(['leaderboard'])\nprint('torch' in sys.modules, code)"
    printed = subprocess.run([sys.executable, "-c", answer], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "False 0"


def test_plots_are_drawn_beside_the_tables(results, capsys):
    assert main(["--results", str(results), "--plots"]) == 0
    drawn = sorted(p.name for p in (results / "leaderboard").glob("*.png"))
    assert drawn
    assert all((results / "leaderboard" / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
