"""What a user types wrongly, and what the operating system refuses, is told in one message."""

import errno
import os

import numpy as np
import pytest
import torch

from openbench.__main__ import main
from openbench.cli.process import message_of
from openbench.errors import pip_install


def said(capsys, *argv):
    """The single message of a command line that must be refused with exit code 2."""
    code = main(list(argv))
    err = capsys.readouterr().err
    assert code == 2, err
    assert "Traceback" not in err
    assert "hydra" not in err.lower() or "hydra." in " ".join(argv)
    message = err.splitlines()
    assert len(message) == 1, err
    assert message[0].startswith("error: ")
    return message[0].removeprefix("error: ")


def test_unknown_command(capsys):
    assert "command 'rum' not found; did you mean 'run'?" in said(capsys, "rum")


def test_no_command_shows_the_help_and_is_an_error(capsys):
    assert main([]) == 2
    assert "Usage: python -m openbench" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["compare a b --images", "report a --images", "data verify digits --show"])
def test_a_number_of_images_or_pairs_is_not_negative(capsys, typed):
    assert "-1 is not in the range x>=0" in said(capsys, *typed.split(), "-1")


@pytest.mark.parametrize("typed", ["method=knm", "-m method=msp,knm"])
def test_unknown_option_of_a_group(engine, capsys, typed):
    message = said(capsys, "run", "+benchmark=digits", *typed.split())
    expected = (
        "method 'knm' not found in configs/method; did you mean 'knn'? "
        "(python -m openbench list method; your own files: --config-dir DIR)"
    )
    assert message == expected
    assert engine.asked == []


def test_a_missing_file_named_in_a_users_yaml_says_which_yaml(engine, configs, capsys):
    (configs / "benchmark" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /backbone: tinny\nbenchmark: {}\n"
    )
    message = said(capsys, "run", "+benchmark=mine")
    assert "backbone 'tinny' not found in configs/backbone" in message
    assert "did you mean 'tiny'?" in message


@pytest.mark.parametrize(
    ("command", "words"), [("run", []), ("extract", ["method=knn"]), ("run", ["-m", "method=glob(*)"])]
)
def test_no_benchmark_lists_them_and_gives_a_command(engine, capsys, command, words):
    assert said(capsys, command, *words) == (
        f"no benchmark chosen — add one with a plus sign: python -m openbench {command} +benchmark=digits "
        "(available: digits, letters; python -m openbench list benchmark)"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["+method.a=1", "method=msp"], "no benchmark chosen"),
        (["benchmark=digits"], "'benchmark' is added with a plus sign — write +benchmark=NAME"),
        (["+benchmark=digits", "-m", "--cfg", "job"], "--multirun"),
        (["--help", "method=knm"], "did you mean 'knn'"),
        (["+benchmark=digits", "--experimental-rerun=config.pickle"], "No such option '--experimental-rerun'"),
    ],
)
def test_words_that_do_not_fit_together(engine, capsys, words, expected):
    assert expected in said(capsys, "run", *words)
    assert engine.asked == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("method=zzzzz", "configs/method — available: knn, msp (python -m openbench list method; "),
        (
            "backbone.wights=3",
            "backbone has no key 'wights'; did you mean 'weights'? — allowed: weights; a parameter that its yaml "
            "leaves out takes a plus sign: +backbone.wights=VALUE",
        ),
        (
            "backbone={wights:3}",
            "backbone lacks a key of the value that it is given — add it with a plus sign: +backbone=",
        ),
        ("backbone.wights=3 seeed=1", "the config has no key 'seeed'; did you mean 'seed'?"),
        ("device=cpu", "did you mean 'runtime.device'?"),
        ("+sed=1", "config has no key 'sed'; did you mean 'seed'? — allowed: benchmark, backbone"),
        (
            "~benchmark.near.eigth",
            "does not compose — Could not delete from config. 'benchmark.near.eigth' does not exist",
        ),
        ("+seed=1", "'seed' exists already — drop the plus sign"),
        (
            "method=knn,msp",
            "'method=knn,msp' names several values — add -m to run them all (python -m openbench run -m …)",
        ),
        ("method=[knn,msp]", "'method=[knn,msp]' is a list — choose one; -m with commas"),
        ("knn", "argument 'knn' is not an override; did you mean 'method=knn'? — write key=value"),
        ("backbone.weights=[1", "override 'backbone.weights=[1' cannot be read — write key=value, and quote it"),
        ("seed=abc", "seed — found 'abc', allowed: a whole number from 0 to 4294967295"),
        ("backbone.weights=${nowhere}", "backbone has no value: Interpolation key 'nowhere' not found"),
        ("backbone.weights=???", "backbone has no value: Missing mandatory value: weights"),
        ("~method", "method is not chosen, found None (python -m openbench list method)"),
    ],
)
def test_a_users_mistake_is_put_into_words(engine, capsys, typed, expected):
    assert expected in said(capsys, "run", "+benchmark=digits", *typed.split())
    assert engine.asked == []


def test_a_key_that_only_the_swept_methods_have(engine):
    assert main(["run", "-m", "+benchmark=digits", "method=choice(knn)", "method.k=3"]) == 0
    assert [config["method"]["k"] for _, config, _ in engine.asked] == [3]


def test_a_sweep_over_nothing_is_an_error(engine, capsys):
    code = main(["run", "-m", "+benchmark=digits", "method=glob(z*)"])
    err = capsys.readouterr().err
    assert code == 2
    assert "no job to run — the sweep in +benchmark=digits method=glob(z*) names nothing that exists" in err


@pytest.mark.parametrize("runtime", ["joblib", "slurm"])
def test_a_launcher_that_is_not_installed_names_the_extra(engine, capsys, monkeypatch, runtime):
    from hydra.core.config_store import ConfigStore

    launchers = ConfigStore.instance().repo["hydra"]["launcher"]
    monkeypatch.setitem(ConfigStore.instance().repo["hydra"], "launcher", {"basic.yaml": launchers["basic.yaml"]})
    code = main(["run", "-m", "+benchmark=digits", f"runtime={runtime}"])
    assert code == 2
    assert f"is an optional extra that is not installed — {pip_install(runtime)}" in capsys.readouterr().err


def test_a_users_file_with_the_name_of_ours_is_refused(engine, tmp_path, capsys):
    mine = tmp_path / "mine" / "method"
    mine.mkdir(parents=True)
    (mine / "knn.yaml").write_text("_target_: my.KNN\n")
    message = said(capsys, "run", "--config-dir", str(mine.parent), "+benchmark=digits", "method=knn")
    assert f"method 'knn' is the name of several configs, from openbench and from {mine.parent} — " in message
    assert engine.asked == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"k: [1, 2\n", 'method/odd.yaml", line 2'),
        (b"# @package\n", "the config does not compose — Expected header format: KEY VALUE, got '@package'"),
        ("k: 1\n# größer\n".encode("latin-1"), "the config does not compose — 'utf-8' codec can't decode byte"),
    ],
)
def test_a_users_yaml_that_cannot_be_composed(engine, configs, capsys, text, expected):
    (configs / "method" / "odd.yaml").write_bytes(text)
    assert expected in said(capsys, "run", "+benchmark=digits", "method=odd")


def test_nodes_that_a_command_does_not_read_are_refused(engine, capsys):
    message = said(capsys, "train", "+benchmark=digits", "method=knn")
    assert message == "`train` does not depend on method, found method=knn — leave it out, or give it to `run`"
    assert "config has no key 'attack'" in said(capsys, "train", "+benchmark=digits", "+attack.name=fgsm")


def raised(act) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever the library raises is what is told
        act()
    return caught.value


TOO_MUCH = {
    "python": lambda: bytearray(1 << 60),
    "numpy": lambda: np.empty(1 << 58),
    "torch": lambda: torch.empty(1 << 56),
}


@pytest.mark.parametrize("library", TOO_MUCH)
def test_a_lack_of_memory_names_what_to_lower(library):
    told = message_of(raised(TOO_MUCH[library]))
    assert told is not None
    for key in ("not enough memory", "runtime.batch_size", "runtime.score_batch", "training.recipe.batch_size"):
        assert key in str(told)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_what_a_disk_refuses_names_the_file(number):
    told = message_of(OSError(number, os.strerror(number), "/some/file"))
    assert told is not None
    assert "'/some/file'" in str(told)
    assert os.strerror(number) in str(told)


@pytest.mark.parametrize("error", [RuntimeError("shape"), FileNotFoundError(errno.ENOENT, "x", "y")])
def test_an_error_of_ours_is_none_of_the_systems(error):
    assert message_of(error) is None
