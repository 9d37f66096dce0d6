"""Recommendations from records whose answer is known by construction."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.detect.recommend import method_of, recommend
from openbench.engine.compatibility import Requirements
from openbench.errors import ConfigError
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from tests.results.records import make_record, metrics, named, with_method

N = 100  # images of each of four sets
# Method → how far its near and far scores lie above ID, its milliseconds per image, and its peak in MiB.
METHODS = {
    "msp": (1.5, 1.2, 0.01, 500),
    "energy": (1.5, 2.5, 0.1, 400),
    "knn": (1.51, 2.5, 1.0, 900),
    "odin": (0.7, 2.5, 0.01, 300),
}
ROLES = {"toy": Role.ID_TEST, "a": Role.NEAR, "b": Role.NEAR, "c": Role.FAR}


COUNTS = {f"{role}/{name}": {"n": N, "expected": N} for name, role in ROLES.items()}


def scores_of(method: str) -> list[SetScores]:
    """Scores of the same images for every method, each with some noise of its own."""
    near, far, *_ = METHODS[method]
    images, own = np.random.default_rng(0), np.random.default_rng([1, list(METHODS).index(method)])
    found = []
    for (name, role), shift in zip(ROLES.items(), (0.0, near, near, far), strict=True):
        scores = images.normal(size=N) + 0.3 * own.normal(size=N) + shift
        nothing = np.full(N, -1)
        found.append(SetScores.of_split(name, role, scores.astype(np.float32), nothing, nothing))
    return found


def write(folder, name, published=True, **changes):
    near, far, ms, peak = METHODS[name]
    record = with_method(make_record(counts=COUNTS), name)
    cost = {"seconds": {"score": ms * 4 * N / 1000}, "peak_mib": {"score": peak}, "passes": 0}
    record = replace(record, provenance=cost)
    record = named(replace(record, metrics=metrics(near / 2, far / 3), **changes))
    RecordStore(folder).write(record)
    if published:
        ScoreStore(folder / "scores").write(record.run_id, scores_of(name))


@pytest.fixture
def folder(tmp_path):
    for name in METHODS:
        write(tmp_path, name)
    return tmp_path


def advice(folder, **limits):
    (found,) = recommend("toy", folder=folder, **limits)
    return found


def names(candidates):
    return [one["method"] for one in candidates]


def test_the_only_method_is_said_to_be_within_limits_where_limits_leave_out_others(folder, tmp_path):
    assert "take odin: the only method within the limits;" in str(advice(folder, memory_mb=350))
    write(tmp_path / "one", "odin")
    assert "take odin: the only method with records;" in str(advice(tmp_path / "one"))


def test_near_decides_and_then_far(folder):
    # knn and energy differ by a hundredth of the spread; msp is as good by near but worse by far, odin worse by near.
    found = advice(folder)
    assert names(found.best) == ["knn", "energy"]
    assert found.compared == 4
    assert str(found).startswith(
        "toy · tiny · cross_entropy: take knn: the highest AUROC of the 2 that may be the best, of 4 "
    )


@pytest.mark.parametrize(
    ("limits", "best", "out"),
    [
        ({"latency_ms": 0.5}, ["energy"], {"knn": "1 ms per image", "odin": "its time is not measured"}),
        ({"memory_mb": 600}, ["energy"], {"knn": "944 MB"}),
        ({"without": ("training data", "gradients")}, ["energy"], {"knn": "needs training data"}),
        ({"memory_mb": 0.1}, [], {"odin": "315 MB"}),
        ({"latency_ms": 0.05}, ["msp"], {"knn": "1 ms per image", "energy": "0.1 ms per image"}),
    ],
)
def test_methods_beyond_the_limits_are_named_with_the_reason(folder, limits, best, out):
    found = advice(folder, **limits)
    assert names(found.best) == best
    assert {one["method"]: one["why"] for one in found.out}.items() >= out.items()


@pytest.mark.parametrize(("published", "best", "untested"), [((), "knn", 3), (("msp", "energy", "odin"), "energy", 1)])
def test_methods_without_published_scores_are_not_tested_and_it_says_so(tmp_path, published, best, untested):
    for name in METHODS:
        write(tmp_path, name, published=name in published)
    found = advice(tmp_path)
    assert (names(found.best), len(found.untested)) == ([best], untested)
    assert ("the highest AUROC, but not tested against the others" in str(found)) == (not published)


def test_passes_that_a_record_timed_count_where_a_method_takes_gradients(tmp_path):
    write(tmp_path / "cached", "odin")
    provenance = {"seconds": {"score": 0.004, "features": 1.5}, "peak_mib": {"score": 1}, "passes": 500}
    timed = with_method(make_record(counts=COUNTS, provenance=provenance), "odin")
    RecordStore(tmp_path / "timed").write(timed)
    assert advice(tmp_path / "cached").best[0]["ms_per_image"] is None
    assert advice(tmp_path / "timed").best[0]["ms_per_image"] == pytest.approx(0.01 + 3.0)


def test_oracles_are_not_recommended_and_deviations_are_told(tmp_path):
    oracle = {"tune": {"strategy": "oracle"}, "seed": 0, "method": {"_name_": "knn"}}
    write(tmp_path, "knn", config=oracle, tuned={"k": 5})
    deviating = {"name": "toy", "digest": "aaaa", "pristine": False, "deviations": ["far.d: dropped"]}
    write(tmp_path, "energy", benchmark=deviating)
    write(tmp_path, "msp", benchmark=deviating, config={**oracle, "method": {"_name_": "msp"}}, tuned={"k": 5})
    found = advice(tmp_path)
    assert names(found.best) == ["energy"]
    assert found.compared == 0
    assert found.deviations == ("far.d: dropped",)


def needs(name):
    return Requirements(method_of(name, {})).needs


def test_what_a_method_needs_is_known_by_its_name():
    assert (needs("knn"), needs("odin")) == (("training data",), ("gradients",))
    assert method_of("of my own", {}) is None
    of_text = ("mcm", "gl_mcm", "zero_shot_mls", "cover", "neglabel", "csp", "eoe", "clipn")
    assert [name for name in of_text if "text" not in needs(name)] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": ["training"]}, r"recommend.without has no key 'training'; did you mean 'training data'\?"),
        ({"backbone": "tine"}, "backbone 'tine' has no records in benchmark 'toy'; did you mean 'tiny'"),
    ],
)
def test_limits_that_nothing_has_are_refused(folder, changes, message):
    with pytest.raises(ConfigError, match=message):
        recommend("toy", folder=folder, **changes)


def told(capsys, folder, *words):
    code = main(["recommend", *words, "--results", str(folder)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_the_command_says_what_to_take_and_why_not_the_others(folder, capsys):
    code, said = told(capsys, folder, "+benchmark=toy", "needs=no_training_data", "latency_ms=5")
    assert code == 0
    assert "take energy: " in said
    assert "needs training data" in said
    assert "Process: its peak memory, Python and PyTorch included" in " ".join(said.split())  # wherever the lines break


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no benchmark chosen"),
        (["+benchmark=toi"], "benchmark 'toi' has no records in"),
        (["+benchmark=toy", "latency_ms=fast"], "latency_ms — found 'fast', allowed: a number > 0"),
        (["+benchmark=toy", "needs=no_data"], "needs — found 'no_data', allowed: no_training_data, "),
    ],
)
def test_words_that_cannot_be_used_are_refused(folder, capsys, words, message):
    code, said = told(capsys, folder, *words)
    assert code == 2
    assert message in said
