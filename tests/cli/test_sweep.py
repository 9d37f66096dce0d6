"""What a sweep over benchmarks can be told, and what it composes."""

import pytest

from openbench.__main__ import main
from openbench.compose.config import jobs

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
    assert main(["run", "-m", *typed, "hydra/launcher=basic"]) == 0
    nodes = [config["backbone"] for _, config, _ in engine.asked]
    alone, swept = [[(type(node[f"v{n}"]), node[f"v{n}"]) for n in range(len(VALUES))] for node in nodes]
    assert "none" not in [found for _, found in alone]
    assert swept == alone
    assert engine.overrides[0] == engine.overrides[1]


def test_jobs_are_every_combination_the_last_key_changing_first(configs):
    found = jobs(["method=glob(*,exclude=m*)", "seed=range(2)", "a.b=3", "c=x,y"], None)
    assert found == [["method=knn", f"seed={seed}", "a.b=3", f"c={letter}"] for seed in (0, 1) for letter in ("x", "y")]


def test_a_glob_over_methods_leaves_out_those_that_score_a_stream(engine, configs, capsys):
    write(configs / "method/oodd.yaml", "_target_: toy.OODD\n_stream_: {orders: 5}")
    assert main(["run", "-m", "+benchmark=digits", "method=glob(*,exclude=m*)"]) == 0
    assert ran(engine, "method") == [("knn",)]
    assert capsys.readouterr().err.count("skipped: oodd, which score a stream of images: name them to run them\n") == 1
    assert main(["run", "-m", "+benchmark=digits", "method=knn,oodd"]) == 0
    assert ran(engine, "method")[1:] == [("knn",), ("oodd",)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["seed=interval(1,9)"], "seed=interval(1,9) names no values — write them, e.g. seed=1,2,5"),
        (["seed=0,1", "knn"], "argument 'knn' is not an override"),
        (["hydra.verbose=true,false"], "Sweeping over Hydra's configuration is not supported"),
        (["seed=0,1", "hydra/sweeper=climber"], "a sweep runs every combination — leave out hydra/sweeper"),
    ],
)
def test_a_sweep_without_a_list_of_jobs_is_refused(engine, tmp_path, capsys, words, told):
    write(tmp_path / "mine/hydra/sweeper/climber.yaml", "_target_: climber.Climber")
    assert main(["run", "-m", "+benchmark=digits", *words, "--config-dir", f"{tmp_path}/mine"]) == 2
    assert told in capsys.readouterr().err
    assert engine.asked == []


@pytest.fixture
def groups(configs):
    """A benchmark of groups beside the toy benchmarks, which names those that `-m` runs."""
    text = """
        # @package _global_
        benchmark: {name: "groups_${benchmark.group}", group: a_vs_b}
        hydra: {sweeper: {params: {benchmark.group: "a_vs_b, b_vs_a"}}}
    """
    write(configs / "benchmark/groups.yaml", text)


@pytest.mark.usefixtures("groups")
def test_a_sweep_runs_every_group_with_every_method_unless_groups_are_named(engine, capsys):
    assert main(["run", "-m", "+benchmark=groups", "method=msp"]) == 0
    assert ran(engine, "benchmark", "method") == [("groups_a_vs_b", "msp"), ("groups_b_vs_a", "msp")]
    assert "sweep: 2 jobs, 2 done, 0 failed (" in capsys.readouterr().err
    assert main(["run", "-m", "+benchmark=groups", "benchmark.group=c_vs_d"]) == 0
    assert ran(engine, "benchmark")[2:] == [("groups_c_vs_d",)]


@pytest.mark.usefixtures("groups")
def test_without_a_sweep_there_is_one_group(engine):
    assert main(["run", "+benchmark=groups", "method=msp"]) == 0
    assert ran(engine, "benchmark") == [("groups_a_vs_b",)]
