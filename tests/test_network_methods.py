"""Methods that need more than a plain pass, as a user runs them: a step beside, the network itself, several ones."""

import pytest

from openbench.__main__ import main
from openbench.core.record import ResultRecord
from openbench.results.records.store import RecordStore

SHORT = ["+benchmark=digits", "training.recipe.epochs=2", "runtime.progress=false", "~benchmark.csid", "~benchmark.far"]
SHORT += ["~benchmark.near.nine", "benchmark.preprocess.resize=8", "benchmark.preprocess.crop=8"]  # as on the disk
SHORT += ["~benchmark.ood_train", *(f"+benchmark.{part}.limit=60" for part in ("id.test", "ood_val", "near.eight"))]
ENSEMBLE = ["backbone=ensemble", "backbone@backbone.member=resnet8_digits", "backbone.members=2"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, tmp_path, monkeypatch):
    """Run a command on the shared cache with results of its own, and return the records it wrote by method."""
    monkeypatch.setenv("OPENBENCH_CACHE", str(cache))

    def act(*arguments: str, command: str = "run", results: str = "results", code: int = 0) -> dict[str, ResultRecord]:
        monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / results))
        metrics = ["metrics.families=[ranking]", "metrics.replicates=0"] if command == "run" else []
        assert main([command, *SHORT, *metrics, *arguments]) == code
        return {record.method["name"]: record for record in RecordStore(tmp_path / results)}

    return act


def scored_images(record: ResultRecord) -> int:
    return sum(c["n"] for name, c in record.counts.items() if not name.startswith(("id_train", "ood_train")))


def test_one_further_pass_serves_every_setting_of_adascale(run):
    run("method=adascale_a", command="extract")
    record = run("method=adascale_l")["adascale_l"]
    assert record.provenance["passes"] == 0
    assert len(record.trials) == 36
    assert record.metrics["near"]["auroc"] > 0.5


def test_a_live_method_costs_its_passes_once(run):
    settings = ("method=pro", "tune=none", "method.steps=2")
    first = run(*settings)["pro"]
    # The classifier's answers take a plain pass, unless another test has made it; the walk three.
    images = scored_images(first)
    assert first.provenance["passes"] in (3 * images, 4 * images)
    again = run(*settings, results="again")["pro"]
    assert again.provenance["passes"] == 0
    assert again.metrics == first.metrics


def test_an_ensemble_runs_every_kind_of_method_and_shares_its_members(run):
    for method in ("ensemble", "knn_msp", "odin"):  # of its members; of mean logits and features; of gradients
        records = run(*ENSEMBLE, f"method={method}", "tune=none")
    assert set(records) == {"ensemble", "knn_msp", "odin"}
    assert {record.backbone["name"] for record in records.values()} == {"ensemble2_resnet8_digits"}
    assert len({record.backbone["digest"] for record in records.values()}) == 1
    # Its first member is the network that the same seed gives alone: nothing is trained for it.
    alone = run("method=msp", "runtime.train=never", results="alone")["msp"]
    assert alone.backbone["digest"] != records["odin"].backbone["digest"]


def test_a_method_for_ensembles_is_refused_elsewhere(run, capsys):
    assert run("method=ensemble", results="none", code=2) == {}
    assert "no layer 'members'" in capsys.readouterr().err
