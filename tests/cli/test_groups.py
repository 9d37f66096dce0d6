"""A sweep over a benchmark of many groups runs them all without naming them."""

import shutil

import pytest

from openbench import paths
from openbench.__main__ import main

SHIPPED = paths.config_dir()


@pytest.fixture
def rebench(engine, configs):
    """The shipped benchmarks of groups, with what they refer to, in the toy config folder."""
    for pattern in ("benchmark/rebench_*.yaml", "dataset/*.yaml", "backbone/torchvision_resnet18_finetuned.yaml"):
        for file in SHIPPED.glob(pattern):
            target = configs / file.relative_to(SHIPPED)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)
    return engine


def asked(engine):
    return [(config["benchmark"]["name"], config["method"]["_name_"]) for _, config, _ in engine.asked]


def test_a_sweep_runs_every_group_with_every_method(rebench, capsys):
    assert main(["run", "-m", "+benchmark=rebench_case3", "method=msp"]) == 0
    sets = ("tiny_imagenet", "fashion_mnist", "kmnist", "places365", "textures")
    groups = [f"rebench_case3_{s}_vs_{'+'.join(o for o in sets if o != s)}" for s in sets]
    assert sorted(asked(rebench)) == sorted((group, "msp") for group in groups)
    assert "sweep: 5 jobs, 5 done, 0 failed (" in capsys.readouterr().err


def test_groups_named_on_the_command_line_are_the_only_ones(rebench):
    assert main(["run", "-m", "+benchmark=rebench_case1", "benchmark.group=kmnist_vs_textures"]) == 0
    assert asked(rebench) == [("rebench_case1_kmnist_vs_textures", "msp")]


def test_without_a_sweep_there_is_one_group(rebench):
    assert main(["run", "+benchmark=rebench_case2", "method=msp"]) == 0
    assert asked(rebench) == [("rebench_case2_tiny_imagenet+kmnist+places365_vs_fashion_mnist+textures", "msp")]
