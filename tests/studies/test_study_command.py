"""The command `study`: what is to do, the tables in every format, and the yaml of a sweep."""

import csv
import io
import json
import re

import pytest
from markdown_it import MarkdownIt

from openbench.__main__ import main
from openbench.cli.commands import jobs
from openbench.errors import ConfigError
from openbench.results.tables.render import to_console
from openbench.studies.cells import StudyOptions, different_runs, planned
from openbench.studies.plan import progress, status, sweeps
from openbench.studies.study import names, study

from .runs import YAML, lookup, of, run, study as made_of, write

RECORDS = [run("msp", seed, near) for seed, near in enumerate((0.90, 0.91, 0.95))]
RECORDS += [run("knn", seed, near, 0.99) for seed, near in enumerate((0.80, 0.90))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a study and the records of five of its six runs."""
    monkeypatch.setenv("OPENBENCH_RESULTS", str(write(tmp_path / "results", RECORDS)))
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")  # an estimate of time is longer where the machine is slow
    (tmp_path / "two.yaml").write_text(YAML + "test: MSP\n")
    return tmp_path


def test_the_status_names_the_images_that_runs_with_another_data_set_lack(folder, capsys, monkeypatch):
    monkeypatch.setenv("OPENBENCH_DATA", str(folder / "nowhere"))
    monkeypatch.chdir(folder)
    assert main(["study", "local/corruptions", "--rows", "fog", "--columns", "1"]) == 0
    assert "lacks data: id.train (0 of 50,000); id.val (0 of 1,000); id.test (0 of 9,000)" in capsys.readouterr().out


def test_status_and_table_are_json_for_programs_and_the_status_says_how_to_go_on(folder, capsys):
    assert main(["study", str(folder / "two.yaml"), "--format", "json"]) == 0
    said = capsys.readouterr()
    ([row],) = (table["rows"] for table in json.loads(said.out))
    assert [row[key] for key in ("benchmark", "runs", "done", "to do", "trainings")] == ["digits", 6, 5, 1, 0]
    assert row["time, estimated"].startswith("about ")
    assert f"to make them: python -m openbench study {folder / 'two.yaml'} --run" in said.err
    assert main(["study", str(folder / "two.yaml"), "--table", "--format", "json"]) == 0
    near = [cell for cell in json.loads(capsys.readouterr().out) if cell["set"] == "near"]
    assert [(cell["row"], cell["runs"]) for cell in near] == [("MSP", 3), ("KNN", 2)]
    assert near[0]["value"] == pytest.approx(0.92)


def test_only_what_is_missing_is_run_and_a_study_that_is_done_runs_nothing(folder, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(jobs, "RUN", lambda argv: calls.append(argv) or 0)
    assert main(["study", str(folder / "two.yaml"), "--run", "runtime=joblib"]) == 0
    assert calls == [["-m", "+benchmark=digits", "method=knn", "seed=2", "runtime=joblib"]]
    write(folder / "results", [run("knn", 2, 0.85)])
    assert main(["study", str(folder / "two.yaml"), "--run"]) == 0
    assert len(calls) == 1
    assert "nothing is to do" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "sweeps_begun"), [(0, 2), (1, 2), (130, 1), (143, 1)])
def test_an_interrupt_ends_all_sweeps_and_a_failure_does_not(folder, monkeypatch, ended, sweeps_begun):
    calls = []
    monkeypatch.setattr(jobs, "RUN", lambda argv: calls.append(argv) or ended)
    (folder / "two.yaml").write_text(YAML.replace("KNN: method=knn", "KNN: method=knn, K3: [method=knn, method.k=3]"))
    assert main(["study", str(folder / "two.yaml"), "--run"]) == ended
    assert len(calls) == sweeps_begun


def test_methods_and_seeds_that_are_missing_together_are_one_sweep(tmp_path):
    text = YAML.replace(
        "KNN: method=knn", "KNN: method=knn, VOS: [training=vos, method=energy], K3: [method=knn, method.k=3]"
    )
    found = made_of(tmp_path, text)
    options = StudyOptions(incomplete=True)
    (part,) = progress(found, options, lookup(RECORDS[:3]))
    assert (len(part.done), len(part.missing), part.trainings) == (3, 9, 3)
    assert sweeps(found, part.missing, ["runtime=slurm"]) == [
        ["-m", "+benchmark=digits", "method=knn", "seed=0,1,2", "runtime=slurm"],
        ["-m", "+benchmark=digits", "training=vos", "method=energy", "seed=0,1,2", "runtime=slurm"],
        ["-m", "+benchmark=digits", "method.k=3", "method=knn", "seed=0,1,2", "runtime=slurm"],
    ]


def test_a_training_that_released_weights_would_ignore_is_not_to_do_and_its_cells_say_why(tmp_path):
    vos = "MSP: method=msp, VOS: [training=vos, method=energy]"
    found = made_of(tmp_path, YAML.replace("MSP: method=msp", vos).replace(", KNN: method=knn", ""))
    options = StudyOptions(("backbone=resnet20_cifar10",))
    (part,) = progress(found, options, lookup(()))
    assert (len(part.missing), len(part.refused), part.trainings) == (3, 3, 0)
    why = "needs a training, and backbone resnet20_cifar10 comes with its weights"
    table, line = status(found, [part], {}, 0, "again")
    said = " ".join(f"{to_console(table)} {line}".split())  # lines are as wide as the terminal
    assert f"digits: 3 runs cannot be made: {why} " in said
    assert [line[0].reason for line in of(found, (), options)] == ["nothing was run on digits yet", why]
    augmented = StudyOptions(("backbone=resnet20_cifar10", "+augment=pixmix"))
    assert [line[0].reason for line in of(found, (), augmented)] == [why, why]
    afresh = StudyOptions((*options.overrides, "backbone.weights=null"))
    assert not any(run.refused for run in different_runs(planned(found, afresh)))


def test_a_run_on_another_state_of_the_benchmark_than_the_tables_is_still_to_do(tmp_path):
    states = [{"digest": digest, "pristine": False, "deviations": [digest]} for digest in ("half", "half", "quarter")]
    records = [run("msp", seed, 0.9, of=state) for seed, state in enumerate(states)]
    found, options = made_of(tmp_path, YAML.replace(", KNN: method=knn", "")), StudyOptions(incomplete=True)
    (part,) = progress(found, options, lookup(records))
    ((near, _),) = of(found, records, options)
    assert len(part.done) == len(near.records) == 2
    assert [one.names["seed"] for one in part.missing] == [one.names["seed"] for one in part.partial] == ["2"]


def test_tables_are_written_in_every_format_and_say_the_same(folder, capsys):
    assert main(["study", str(folder / "two.yaml"), "--to", str(folder / "out")]) == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["two.csv", "two.md", "two.png", "two.tex"]
    tex = (folder / "out/two.tex").read_text()
    assert r"MSP & \textbf{92.00 $\pm$ 2.16} & 95.00 $\pm$ 0.00 \\" in tex
    assert r"KNN & 85.00 $\pm$ 5.00 (2 of 3) & \textbf{99.00 $\pm$ 0.00 (2 of 3)} \\" in tex
    page = MarkdownIt("commonmark").enable("table").render((folder / "out/two.md").read_text())
    assert "<strong>92.00 ± 2.16</strong>" in page
    rows = list(csv.DictReader(io.StringIO((folder / "out/two.csv").read_text())))
    assert [rows[2][key] for key in ("row", "column", "runs", "runs_wanted")] == ["KNN", "near", "2", "3"]
    assert float(rows[2]["value"]) == pytest.approx(0.85)
    assert set(rows[2]["records"].split()) == {record.run_id for record in RECORDS[3:]}
    assert (folder / "out/two.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_without_any_number_has_no_picture_and_says_why_it_is_empty(folder, capsys):
    assert main(["study", str(folder / "two.yaml"), "--table", "--rows", "KNN", "backbone=resnet20_cifar"]) == 0
    assert "empty, 2 cells: not run yet — KNN" in capsys.readouterr().out
    assert main(["study", str(folder / "two.yaml"), "--to", str(folder / "out"), "backbone=resnet20_cifar"]) == 0
    assert not list((folder / "out").glob("*.png"))


def test_a_study_of_a_sweep_has_its_runs(folder, capsys):
    file = folder / "mine.yaml"
    words = ["-m", "+benchmark=digits", "method=knn,msp", "seed=0,1", "--columns", "near.auroc,far.fpr95"]
    assert main(["new", "study", str(file), *words]) == 0
    found = study(str(file))
    assert [row.name for row in found.rows] == ["knn", "msp"]
    assert [column.name for column in found.columns] == ["near auroc", "far fpr95"]
    words_of_runs = {run.words for run in different_runs(planned(found, StudyOptions()))}
    assert words_of_runs == {("+benchmark=digits", f"method={m}", f"seed={s}") for m in ("knn", "msp") for s in (0, 1)}
    assert main(["study", str(file), "--table"]) == 0
    assert re.search(r"msp +90\.50 ± 0\.50", capsys.readouterr().out)
    assert main(["new", "study", str(file), *words]) == 2
    assert "exists — allowed: a new file, NAME.yaml" in capsys.readouterr().err


def test_every_shipped_study_finds_its_figures_and_knows_its_runs_which_can_be_made():
    unpublished, without_runs, unsaid, refused = {}, [], [], []
    for name in names():
        found = study(name)
        once = [column.model_copy(update={"seeds": column.seeds[:1]}) for column in found.columns]
        grid = planned(found.model_copy(update={"columns": tuple(once)}), StudyOptions())
        runs = different_runs(grid)
        if not runs and found.layout != "mixture":
            without_runs.append(name)
        refused += [f"{name}: {run.refused}" for run in runs if run.refused]
        sourced = found.source or found.layout == "tuning"  # which no paper has
        if not (sourced and found.deviations and found.path.read_text().count("python -m openbench study")):
            unsaid.append(name)
        if found.figures is not None:
            rows = [line[0].row.path for line in grid if not any(cell.published for cell in line)]
            unpublished |= {name: rows} if rows else {}
    assert (without_runs, unsaid, refused) == ([], [], [])
    # Rows of openbench's own beside those of the paper.
    assert set(unpublished) == {"openood_v1.5/outliers"}
    assert len(names()) > 25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("table1", "available: conformal/table1, openood_v1.5/table1 "),
        ("conformal/tabel1", "did you mean 'conformal/table1'"),
    ],
)
def test_a_study_that_does_not_exist_offers_those_of_that_name(name, said):
    with pytest.raises(ConfigError, match=rf"'{name}' not found in configs/study.* {said}"):
        study(name)
