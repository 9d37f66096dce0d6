"""What a sweep over benchmarks can be told, and what it composes."""

import json
import sys
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from openbench.__main__ import main
from openbench.compose.sweep import jobs

from .conftest import write


def ran(engine, *keys):
    """What the jobs of a sweep were given, in their order."""
    return [tuple(config[key].get("_name_", config[key].get("name")) for key in keys) for _, config, _ in engine.asked]


def test_a_key_can_be_added_to_every_swept_benchmark(engine):
    assert main(["run", "-m", "+benchmark=digits,letters", "+benchmark.note=[1,two]"]) == 0
    assert [config["benchmark"]["note"] for _, config, _ in engine.asked] == [[1, "two"], [1, "two"]]


def test_a_key_that_one_swept_choice_lacks_names_that_job(engine, capsys):
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "method.k=3"]) == 2
    assert capsys.readouterr().err == (
        "error: method has no key 'k' — allowed: none; a parameter that its yaml leaves out takes a plus sign: "
        "+method.k=VALUE (in the job method=msp)\n"
    )
    assert engine.asked == []


VALUES = ("null", "'1'", "1e-3", "[1,2]", "'a b, c'", "{a:1}", "''")


def test_values_reach_the_jobs_of_a_sweep_as_they_reach_one_job(engine, configs):
    (configs / "backbone" / "tiny.yaml").write_text("".join(f"v{n}: none\n" for n in range(len(VALUES))))
    typed = ["+benchmark=digits", *(f"backbone.v{n}={value}" for n, value in enumerate(VALUES))]
    assert main(["run", *typed]) == 0
    assert main(["run", "-m", *typed, "seed=0,1"]) == 0
    nodes = [config["backbone"] for _, config, _ in engine.asked]
    alone, *swept = [[(type(node[f"v{n}"]), node[f"v{n}"]) for n in range(len(VALUES))] for node in nodes]
    assert "none" not in [found for _, found in alone]
    assert swept == [alone, alone]


def test_jobs_are_every_combination_the_last_key_changing_first(configs):
    found = jobs(["method=glob(*,exclude=m*)", "seed=range(2)", "a.b=3", "c=x,y"], None)
    assert found == [["method=knn", f"seed={seed}", "a.b=3", f"c={letter}"] for seed in (0, 1) for letter in ("x", "y")]


def test_a_glob_over_methods_leaves_out_those_that_score_a_stream(engine, configs, capsys):
    write(configs / "method/oodd.yaml", "_target_: toy.OODD\n_stream_: {orders: 5}")
    assert main(["run", "-m", "+benchmark=digits", "method=glob(*)"]) == 0
    assert ran(engine, "method") == [("knn",), ("msp",)]
    assert capsys.readouterr().err.count("skipped: oodd, which score a stream of images: name them to run them\n") == 1
    assert main(["run", "-m", "+benchmark=digits", "method=knn,oodd"]) == 0
    assert ran(engine, "method")[2:] == [("knn",), ("oodd",)]


class Climber(Sweeper):
    """Draws three values of method.k, one after the other, and notes what each of them was worth."""

    __module__ = "hydra_plugins.climber"  # where Hydra looks for sweepers

    def __init__(self, **settings):
        self.values = []

    def setup(self, *, hydra_context, task_function, config):
        self.arguments = {"config": config, "hydra_context": hydra_context, "task_function": task_function}

    def sweep(self, arguments):
        launcher = Plugins.instance().instantiate_launcher(**self.arguments)
        launcher.setup(**self.arguments)
        common = [word for word in arguments if not word.startswith("method.k")]
        for job, k in enumerate((3, 5, 7)):
            [ended] = launcher.launch([[*common, f"method.k={k}"]], initial_job_idx=job)
            self.values.append(ended.return_value)
        Path("values.json").write_text(json.dumps(self.values))


def test_an_installed_sweeper_chooses_the_jobs_by_the_auroc_on_validation(engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, Climber.__module__, sys.modules[__name__])
    Plugins.instance().register(Climber)
    write(tmp_path / "mine/hydra/sweeper/climber.yaml", f"_target_: {Climber.__module__}.Climber")
    monkeypatch.setattr("openbench.cli.commands.jobs._validation_auroc", lambda record, scores: 0.5)
    words = ["run", "-m", "+benchmark=digits", "method=knn", "method.k=interval(1,9)"]
    words += ["--config-dir", f"{tmp_path}/mine"]
    folder = f"hydra.sweep.dir={tmp_path}/${{hydra.job.name}}"
    assert main([*words, "hydra/sweeper=climber", folder]) == 0
    assert [config["method"]["k"] for _, config, _ in engine.asked] == [3, 5, 7]
    assert json.loads(Path("values.json").read_text()) == [0.5] * 3
    printed = capsys.readouterr()
    assert "validation AUROC ↑" in printed.out
    assert f"best on validation: job 1 (method.k=3)\nsweep: 3 jobs, 3 done, 0 failed ({tmp_path}/run)\n" in printed.err
    assert main(words) == 2
    assert "method.k=interval(1,9) needs a sweeper that draws values" in capsys.readouterr().err


def test_a_sweeper_that_would_minimise_the_auroc_is_refused(engine, tmp_path, capsys):
    write(tmp_path / "mine/hydra/sweeper/down.yaml", f"_target_: {Climber.__module__}.Climber\ndirection: minimize")
    words = ["+benchmark=digits", "method=msp,knn", "hydra/sweeper=down", "--config-dir", f"{tmp_path}/mine"]
    assert main(["run", "-m", *words]) == 2
    assert "add hydra.sweeper.direction=maximize" in capsys.readouterr().err
