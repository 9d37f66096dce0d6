"""Hydra can run pickles and load any class; of that nothing can be asked for on our command line."""

import logging
import pickle

import pytest

from openbench.__main__ import main

RUN = ["run", "+benchmark=digits"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--experimental-rerun", "x.pickle"], "--experimental-rerun is a flag of Hydra that openbench does not take"),
        (["--exp", "x.pickle"], "--experimental-rerun is a flag of Hydra that openbench does not take"),
        (["--config-path", "/tmp"], "--config-path is a flag"),
        (["-cp", "/tmp"], "--config-path is a flag"),
        (["--config-name", "x"], "--config-name is a flag"),
        (["--package", "x", "--cfg", "job"], "--package is a flag"),
        (["--shell-completion", "install=bash"], "--shell-completion is a flag"),
    ],
)
def test_a_flag_of_hydra_that_makes_no_sense_here_is_refused(engine, capsys, flags, said):
    assert main([*RUN, *flags]) == 2
    assert said in capsys.readouterr().err
    assert engine.asked == []


def test_no_pickle_is_run(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return print, ("executed",)

    (tmp_path / "config.pickle").write_bytes(pickle.dumps(Trap()))
    assert main([*RUN, "--experimental-rerun", str(tmp_path / "config.pickle")]) == 2
    assert "executed" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "override",
    [
        "hydra.output_subdir=/tmp/elsewhere",
        "hydra.job.chdir=true",
        "hydra.job.name=../x",
        "hydra.run.dir=/tmp",
        "hydra.sweep.dir=/tmp",
        "hydra.sweep.subdir=../../x",
        "hydra.sweep.subdir=/tmp/x",
        "hydra.sweep.subdir='${oc.env:HOME}'",
        "+hydra.callbacks.x._target_=antigravity.x",
        "+hydra.callbacks.x={_target_:os.system}",
        "hydra.launcher._target_=os.system",
        "hydra.launcher={_target_:os.system}",
        "++hydra.launcher.x={_target_:os.system}",
        "hydra.launcher.submitit_folder=/tmp/x",
        "hydra.launcher.temp_folder=/tmp/x",
        "hydra/launcher=mine",
        "hydra/sweeper=mine",
        "hydra.sweeper._target_=os.system",
        "hydra.job_logging.handlers.x.class=os.system",
        "hydra/job_logging=default",
        "hydra.searchpath=[file:///tmp]",
        "hydra={run:{dir:/tmp}}",
        "~hydra.job",
        "+method@hydra.callbacks.x=knn",
        "method@hydra.launcher=knn",
        "+backbone@_global_.hydra.launcher=tiny",
    ],
)
@pytest.mark.parametrize("flags", [[], ["-m"], ["--cfg", "job"]])
def test_a_setting_of_hydra_that_loads_classes_or_leaves_the_cache_is_refused(engine, capsys, override, flags):
    assert main([*RUN, *flags, override]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "cannot be" in err or "nothing can be put into Hydra's own config" in err
    assert engine.asked == []


@pytest.mark.parametrize("override", ["hydra.sweep.subdir=deep/${seed}", "hydra.sweeper.max_batch_size=2"])
def test_what_only_arranges_a_sweep_is_taken(engine, override):
    assert main([*RUN, "-m", "seed=0,1", override]) == 0
    assert len(engine.asked) == 2


@pytest.mark.parametrize("what", ["searchpath", "defaults", "plugins"])
def test_flags_that_only_print_are_taken(engine, monkeypatch, what):
    monkeypatch.setattr(logging.root, "handlers", [])  # Hydra logs into the stream of this test, also afterwards
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    assert main([*RUN, "--info", what]) == 0
    assert engine.asked == []


GLOBAL = "# @package _global_\ndefaults: [digits, _self_]\n"
MINE, AT_TOP = "benchmark/mine.yaml", "# @package _global_\n"
# What a file of a user's folder holds, and what is said of it.
FOREIGN = {
    "callback": (MINE, GLOBAL + "hydra: {callbacks: {x: {_target_: subprocess.run}}}", "'hydra.callbacks.x'"),
    "escaped name": (MINE, GLOBAL + '"hy\\x64ra": {callbacks: {x: 1}}', "'hydra.callbacks.x'"),
    "folder of a run": (MINE, GLOBAL + "hydra: {run: {dir: /tmp/x}}", "'hydra.run.dir'"),
    "logging": ("runtime/mine.yaml", AT_TOP + "hydra: {job_logging: {x: 1}}", "'hydra.job_logging.x'"),
    "class": ("runtime/mine.yaml", AT_TOP + "hydra: {launcher: {_target_: x.Y}}", "'hydra.launcher._target_'"),
    "deep class": ("runtime/mine.yaml", AT_TOP + "hydra: {launcher: {a: [{_target_: x.Y}]}}", "'hydra.launcher.a'"),
    "launcher of one's own": ("hydra/launcher/mine.yaml", "_target_: x.Y", "a file of the group 'hydra/launcher'"),
    "package": ("method/mine.yaml", "# @package hydra.callbacks.x\n_target_: x.Y", "'@package hydra.callbacks.x'"),
    "default": (MINE, AT_TOP + "defaults: [override /hydra/launcher: mine]", "'override /hydra/launcher'"),
    "package of a default": (MINE, "defaults: [optional /method@hydra.callbacks.x: knn]", "hydra.callbacks.x' in its"),
    "lines of a shell": (MINE, AT_TOP + "hydra: {launcher: {setup: ['touch x']}}", "'hydra.launcher.setup'"),
    "other lines of it": (MINE, AT_TOP + "hydra: {launcher: {additional_parameters: {a: b}}}", "additional_parameters"),
    "a line break": (MINE, AT_TOP + 'hydra: {launcher: {partition: "a\\ntouch x"}}', "'hydra.launcher.partition'"),
    "a secret": (MINE, AT_TOP + "hydra: {sweeper: {params: {seed: '${oc.env:HOME}'}}}", "'hydra.sweeper.params'"),
    "a secret name": (MINE, AT_TOP + "defaults: [optional method: '${oc.env:HOME}']", "'optional method' in its"),
    "dotted key": (MINE, "hydra.callbacks: {}", "'hydra.callbacks'"),
}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("case", FOREIGN)
def test_a_config_file_that_sets_up_hydra_is_refused_before_anything_is_built(engine, tmp_path, capsys, case, linked):
    name, text, said = FOREIGN[case]
    folder = tmp_path / ("elsewhere" if linked else "mine")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
    if linked:
        (tmp_path / "mine").mkdir()
        top = name.partition("/")[0]
        (tmp_path / "mine" / top).symlink_to(folder / top)
        (tmp_path / "mine" / top / "circle").symlink_to(tmp_path / "mine")
    assert main([*RUN, "--config-dir", str(tmp_path / "mine")]) == 2
    shown = capsys.readouterr().err
    assert "sets up Hydra itself, which can run any program" in shown
    assert said in shown
    assert engine.asked == []


def test_a_config_file_may_say_what_is_swept_and_how_it_is_launched(engine, tmp_path):
    folder = tmp_path / "mine/runtime"
    folder.mkdir(parents=True)
    # What a job gets of a machine, in the words of the launchers for Slurm and joblib.
    keys = "timeout_min cpus_per_task gpus_per_node gpus_per_task tasks_per_node nodes mem_gb mem_per_cpu mem_per_gpu"
    keys += " cpus_per_gpu partition qos account constraint exclude gres array_parallelism signal_delay_s"
    keys += " max_num_timeout n_jobs prefer verbose pre_dispatch"
    launcher = ", ".join(f"{key}: 5" for key in keys.split())
    sweep = f"hydra: {{sweeper: {{params: {{seed: '0,1'}}}}, launcher: {{{launcher}}}}}"
    text = f"# @package _global_\ndefaults: [override /hydra/launcher: basic]\nruntime: {{progress: false}}\n{sweep}\n"
    (folder / "mine.yaml").write_text(text)
    assert main([*RUN, "--config-dir", str(tmp_path / "mine")]) == 0
    assert len(engine.asked) == 1
