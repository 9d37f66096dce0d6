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
