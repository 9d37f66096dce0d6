import re
import subprocess
import sys

import pytest

from openbench.__main__ import main
from openbench.cli.app import COMMANDS, app
from openbench.compose.config import jobs
from openbench.errors import MethodError, NotApplicableError


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_run_hands_the_scientific_and_the_runtime_part_to_the_engine(engine):
    assert main(["run", "+benchmark=digits", "method=knn", "method.k=7", "runtime.device=cpu", "seed=3"]) == 0
    [(command, config, runtime)] = engine.asked
    assert command == "run"
    assert set(config) == {"benchmark", "backbone", "training", "method", "tune", "metrics", "seed"}
    assert config["method"] == {"_target_": "toy.KNN", "k": 7, "_space_": {"k": [1, 5]}, "_name_": "knn"}
    assert config["backbone"]["_name_"] == "tiny"  # the benchmark's choice
    assert config["seed"] == 3
    assert runtime.device == "cpu"
    assert runtime.on_existing == "skip"


def test_what_is_to_be_known_of_the_scores_stands_before_the_numbers(engine, capsys):
    engine.provenance = {"warnings": ["WARNING: method 'msp' gives all 5 images\x1b[2J"]}
    assert main(["run", "+benchmark=digits"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("WARNING: method 'msp' gives all 5 images")
    assert "\x1b" not in first
    assert rest


def test_scientific_config_does_not_depend_on_runtime(engine):
    main(["run", "+benchmark=digits"])
    main(["run", "+benchmark=digits", "runtime.workers=4", "runtime.on_existing=verify", "runtime.cache=elsewhere"])
    first, second = (config for _, config, _ in engine.asked)
    assert first == second


def test_a_method_that_is_made_for_other_networks_is_an_error_of_a_run(engine):
    engine.broken["knn"] = NotApplicableError("backbone 'tiny' has no layer 'confidence'")
    assert main(["run", "+benchmark=digits", "method=knn"]) == 2


def test_a_run_leaves_no_file_behind_and_a_sweep_writes_below_the_cache_only(engine, tmp_path):
    assert main(["run", "+benchmark=digits"]) == 0
    main(["run", "-m", "+benchmark=digits", f"runtime.cache={tmp_path / 'other'}"])
    assert files_below(tmp_path / "work") == files_below(tmp_path / "cache") == []
    assert {name.split("/")[0] for name in files_below(tmp_path / "other")} == {"sweeps"}


@pytest.mark.parametrize(
    ("words", "progress", "details"),
    [([], True, False), (["runtime.progress=false"], False, False), (["-q"], False, False), (["-v"], True, True)],
)
def test_progress_and_details_go_to_stderr_as_asked_for(engine, capsys, words, progress, details):
    main(["run", "+benchmark=digits", *words])
    printed = capsys.readouterr()
    assert ("scoring msp" in printed.err, "as typed in full: " in printed.err) == (progress, details)
    assert "scoring msp" not in printed.out


@pytest.mark.parametrize(("word", "named"), [("runtime.progress=false", True), ("-q", False)])
def test_a_sweep_names_its_jobs_unless_it_is_to_be_quiet(engine, capsys, word, named):
    main(["run", "-m", "+benchmark=digits", word])
    assert ("job 1 of 1" in capsys.readouterr().err) == named


def test_bad_input_is_one_message_and_an_internal_error_has_its_traceback(engine, capsys):
    engine.broken["msp"] = MethodError("KNN.k — found 0")
    assert main(["run", "+benchmark=digits"]) == 2
    assert capsys.readouterr().err.splitlines() == ["error: KNN.k — found 0"]
    engine.broken["msp"] = ZeroDivisionError("a bug")
    assert main(["run", "+benchmark=digits"]) == 1
    assert re.match("Traceback(.|\n)*ZeroDivisionError: a bug", capsys.readouterr().err)


def test_a_check_that_finds_problems_is_exit_1(engine):
    assert main(["check", "+benchmark=digits"]) == 0
    engine.problems = True
    assert main(["check", "+benchmark=digits"]) == 1


def test_train_and_extract_print_what_they_made(engine, capsys):
    assert main(["train", "+benchmark=digits"]) == 0
    assert capsys.readouterr().out == "tiny: checkpoints/msp.safetensors\n"
    assert main(["extract", "+benchmark=digits"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1,500 images passed for 2 splits"


@pytest.mark.parametrize("command", ["run", "check"])
def test_help_composes_without_a_benchmark_and_its_commands_work(engine, capsys, command):
    assert main([command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line.split("openbench ")[1] for line in lines if line.startswith("python -m openbench")][:3]
    assert len(examples) == 3
    for example in examples:
        name, *words = [part.strip("'") for part in example.replace("='glob", "=glob").split()]
        *others, last = jobs([word for word in words if word != "-m"], None)
        assert bool(others) == ("-m" in words), example
        assert main([name, *last]) == 0, example


def test_cfg_prints_the_config_instead_of_running(engine, capsys):
    assert main(["run", "+benchmark=digits", "method=knn", "--cfg", "job"]) == 0
    assert "k: 50" in capsys.readouterr().out
    assert engine.asked == []


def test_config_dir_adds_a_users_method(engine, tmp_path):
    mine = tmp_path / "mine" / "method"
    mine.mkdir(parents=True)
    (mine / "mymethod.yaml").write_text("_target_: my.Method\nalpha: 2\n")
    arguments = ["--config-dir", str(mine.parent), "+benchmark=digits"]
    assert main(["run", *arguments, "method=mymethod", "method.alpha=4"]) == 0
    assert engine.asked[0][1]["method"] == {"_target_": "my.Method", "alpha": 4, "_name_": "mymethod"}
    assert main(["run", "-m", *arguments, "method=glob(my*)"]) == 0
    assert len(engine.asked) == 2


def test_every_command_of_the_table_exists():
    with app.make_context("openbench", ["list"]) as context:
        for name in COMMANDS:
            assert app.get_command(context, name) is not None, name


@pytest.mark.parametrize(
    "words", [["show", "method"], ["data"], ["verify", "--imags", "x"], ["compare", "a", "b", "--level", "x"]]
)
def test_a_command_line_that_does_not_fit_is_one_message_that_names_the_help(capsys, words):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert err.endswith(f"(python -m openbench {words[0]} --help)\n")


def test_top_level_help_loads_no_library_but_click():
    """So it costs little more than the interpreter; it lists every command."""
    program = (
        "import sys; before = set(sys.modules); import openbench.__main__ as m; m.main(['--help']); "
        "print('loaded:', *{x.partition('.')[0] for x in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert set(out.splitlines()[-1].split()) == {"loaded:", "click", "openbench"}
    assert all(f"\n  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_typed_search_path_is_searched_beside_the_config_dir(engine, tmp_path, sweep):
    for folder, name in (("a", "one"), ("b", "two")):
        (tmp_path / folder / "method").mkdir(parents=True)
        (tmp_path / folder / "method" / f"{name}.yaml").write_text(f"_target_: {folder}.Method\n")
    folders = ["--config-dir", str(tmp_path / "a"), f"hydra.searchpath=[file://{tmp_path / 'b'}]"]
    for names in ["one,two"] if sweep else ["one", "two"]:
        assert main(["run", *sweep, *folders, "+benchmark=digits", f"method={names}"]) == 0
    assert [config["method"]["_target_"] for _, config, _ in engine.asked] == ["a.Method", "b.Method"]


def test_commands_options_and_names_are_offered(capsys, monkeypatch):
    def offered(*words: str) -> list[str]:
        """What the tab key offers for the last word."""
        asked = {"_OPENBENCH_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
        for name, value in {**asked, "COMP_WORDS": " ".join(["openbench", *words])}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit, match="0"):
            main([])
        return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]

    assert main(["completion"]) == 0
    assert "_OPENBENCH_COMPLETE=bash_complete" in capsys.readouterr().out
    assert offered("leader") == ["leaderboard"]
    assert offered("leaderboard", "--vi") == ["--view"]
    assert offered("show", "method", "knn_") == ["knn_mfs", "knn_msp", "knn_plain"]
