"""The main job as a user runs it: real engine, real network, embedded images."""

import json
import sys

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.config.build import target_of
from openbench.digest import digest
from openbench.paths import config_dir
from openbench.results.records.store import RecordStore, text_of
from openbench.results.scores.stored import ScoreStore

SHORT = ["+benchmark=digits", "training.recipe.epochs=2", "metrics.replicates=0", "runtime.progress=false"]
SHORT += ["benchmark.preprocess.resize=8", "benchmark.preprocess.crop=8"]  # as they lie on the disk, not enlarged
METHODS = ("msp", "odin", "energy", "mds", "knn")
STEPS = ["method._space_.temperature=[1,1000]"]  # of ODIN: with its two epsilons, four of its settings


def spelt(method, *more):
    """A command in the spelling of its record, which is composed only once for the run and its verification."""
    chosen = ["backbone=resnet8_digits", "training=cross_entropy", f"method={method}", "tune=validation", *more]
    return ["run", "-q", SHORT[0], *chosen, *(word for word in SHORT[1:] if not word.startswith("runtime"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A cache and a results folder in which the methods were run one after the other."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBENCH_CACHE", str(folder / "cache"))
        patch.setenv("OPENBENCH_RESULTS", str(folder / "results"))
        for method in METHODS[:-1]:
            assert main([*spelt(method), *STEPS * (method == "odin")]) == 0
        assert main(["run", *SHORT, "method=knn"]) == 0
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.setenv("OPENBENCH_CACHE", str(place / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(place / "results"))
    return place


@pytest.fixture
def records(here):
    return {record.method["name"]: record for record in RecordStore(here / "results")}


def test_records_name_the_version_and_the_paper_of_their_method(records):
    assert set(records) == set(METHODS)
    for name, record in records.items():
        method = target_of(yaml.safe_load((config_dir() / "method" / f"{name}.yaml").read_text()), name)
        assert (record.method["version"], record.method["reference"]) == (method.version, method.reference)
    assert len({record.method["version"] for record in records.values()}) > 1


def test_records_say_what_was_typed_and_the_digest_of_their_config(records):
    record = records["knn"]
    chosen = ["+benchmark=digits", "backbone=resnet8_digits", "training=cross_entropy", "method=knn", "tune=validation"]
    assert record.overrides == [*chosen, *(word for word in SHORT[1:] if not word.startswith("runtime"))]
    assert record.config_digest == digest(record.config)


def test_one_forward_pass_serves_all_methods(records):
    counts = {name: count["n"] for name, count in records["msp"].counts.items()}
    scored = sum(n for name, n in counts.items() if not name.startswith(("id_train", "ood_train")))
    passes = {name: record.provenance["passes"] for name, record in records.items()}
    assert passes.pop("msp") == scored  # the first: every image that is scored, once
    assert passes.pop("mds") == counts["id_train/digits"]  # the first that reads the training images
    # ODIN declares passes of its own: a step and a forward pass per image and setting.
    validation = counts["id_val/digits"] + counts["ood_val/digits"]
    assert passes.pop("odin") == 2 * (4 * validation + scored - validation)
    assert set(passes.values()) == {0}


def test_attacked_images_are_scored_beside_clean_ones_and_not_ranked(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path))
    assert main(spelt("energy", "+attack=fgsm")) == 0
    assert "Not the benchmark as defined, so not ranked: OOD images moved towards acceptance" in " ".join(
        capsys.readouterr().out.split()
    )
    (record,) = RecordStore(tmp_path)
    (clean,) = [r for r in RecordStore(here / "results") if r.method["name"] == "energy"]
    assert record.run_id != clean.run_id
    assert record.metrics["near"] == clean.metrics["near"]
    assert record.metrics["attacked/near"]["auroc"] < clean.metrics["near"]["auroc"] - 0.05
    assert record.benchmark["pristine"] is False
    assert main(["verify", record.run_id]) == 0


def test_every_method_sees_the_same_classifier(records):
    seen = {(r.metrics["id"]["accuracy"], r.backbone["weights_sha256"]) for r in records.values()}
    assert len(seen) == 1


def test_the_record_holds_what_the_kept_scores_give(here, records):
    for name in ("knn", "energy"):
        record = records[name]
        scores = {(s.role.value, s.name): s for s in ScoreStore(here / "cache" / "scores").read(record.run_id)}
        id_test = scores["id_test", "digits"].scores
        for role in ("near", "far"):
            found = []
            for (split_role, split), ood in scores.items():
                if split_role == role:
                    truth = np.r_[np.zeros(len(id_test)), np.ones(len(ood.scores))]
                    found.append(roc_auc_score(truth, np.r_[id_test, ood.scores]))
                    assert record.metrics[split]["auroc"] == pytest.approx(found[-1], abs=1e-9)
            assert record.metrics[role]["auroc"] == pytest.approx(np.mean(found), abs=1e-9)


def test_tuning_chose_the_best_trial_and_kept_all(records):
    trials = records["knn"].trials
    assert [trial["params"]["k"] for trial in trials] == [50, 100, 200, 500, 1000]
    feasible = [trial for trial in trials if "auroc" in trial]
    assert records["knn"].tuned == max(feasible, key=lambda trial: trial["auroc"])["params"]
    assert "number of training samples" in trials[-1]["infeasible"]


def test_every_role_is_exercised(records):
    roles = {name.partition("/")[0] for name in records["msp"].counts}
    assert roles == {"id_train", "id_val", "id_test", "csid", "ood_train", "ood_val", "near", "far"}
    assert records["msp"].benchmark["pristine"]
    assert "full_spectrum/near" in records["msp"].metrics


def test_running_again_in_any_batches_changes_nothing_and_verify_reproduces(here, records, capsys):
    before = {path: path.read_bytes() for path in (here / "results").rglob("*.json")}
    assert main(["run", *SHORT, "method=knn", "runtime.batch_size=64", "runtime.score_batch=100"]) == 0
    assert f"skipped {next((here / 'results').rglob(records['knn'].run_id + '.json'))}" in capsys.readouterr().out
    assert main(["run", *SHORT, "method=knn", "runtime.on_existing=verify"]) == 0
    assert "verified" in capsys.readouterr().out
    assert main(["run", *SHORT, "method=knn", "runtime.on_existing=error"]) == 2
    assert "use runtime.on_existing=skip" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (here / "results").rglob("*.json")} == before


def undigested(text: str) -> dict:
    """The content of a record's file without its digest, as somebody who edits the file on purpose leaves it."""
    content = json.loads(text)
    del content["content_sha256"]
    return content


def test_a_record_is_verified_by_its_name_alone(here, records, capsys):
    before = {path: path.read_bytes() for path in (here / "results").rglob("*.json")}
    run_id = records["msp"].run_id
    assert main(["verify", run_id[:9], "runtime.progress=false"]) == 0
    assert f"{run_id} msp: verified, reproduces: " in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (here / "results").rglob("*.json")} == before


def test_a_network_that_came_out_otherwise_is_compared_and_no_record_is_written(here, records, capsys):
    """The record as another processor would have left it: the same config on other weights."""
    record = records["knn"]
    path = next((here / "results").rglob(f"{record.run_id}.json"))
    text, other = path.read_text(), "e" * 16
    data = undigested(text) | {"run_id": other}
    data["backbone"] |= {"digest": "e" * 16, "weights_sha256": "e" * 64}
    path.unlink()
    path.with_name(f"{other}.json").write_text(text_of(data))
    before = {path: path.read_bytes() for path in (here / "results").rglob("*.json")}
    try:
        run = ["run", *SHORT, "method=knn", "runtime.on_existing=verify"]
        ends = f"{other} knn: compared, ", f"compared {path.with_name(other)}"
        for command, end in zip((["verify", other], run), ends, strict=True):
            assert main(command) == 0
            out = capsys.readouterr().out
            assert "not the same network: weights " in out
            assert end in out
        assert {path: path.read_bytes() for path in (here / "results").rglob("*.json")} == before
    finally:
        path.with_name(f"{other}.json").unlink()
        path.write_text(text)


def test_verify_names_what_it_cannot_use(here, records, capsys):
    assert main(["verify", "0123456789abcdef"]) == 2
    assert "record '0123456789abcdef' not found" in capsys.readouterr().err
    assert main(["verify", records["knn"].run_id, "method.k=5"]) == 2
    assert "takes its config from the record — found method.k=5" in capsys.readouterr().err
    assert main(["verify", "runtime.device=cpu"]) == 2
    assert "no run id" in capsys.readouterr().err


def test_a_record_of_other_images_is_refused_before_a_training(here, records, tmp_path, monkeypatch, capsys):
    path = next((here / "results").rglob(f"{records['knn'].run_id}.json"))
    data = undigested(path.read_text())
    data["benchmark"] |= {"digest": "other", "deviations": ["near.x: dropped"]}
    copy = tmp_path / path.relative_to(here / "results")
    copy.parent.mkdir(parents=True)
    copy.write_text(text_of(data))
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    assert main(["verify", records["knn"].run_id, "--results", str(tmp_path)]) == 2
    assert "here: none; in the record: near.x: dropped" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "checkpoints").exists()


def test_records_name_the_processor_and_its_instructions(records):
    for record in records.values():
        assert record.provenance["processor"]
        assert record.provenance["instructions"] == torch.backends.cpu.get_cpu_capability()
        assert not record.provenance.get("sources")


def test_without_ood_validation_a_search_is_refused_before_anything_is_computed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    assert main(["run", *SHORT, "~benchmark.ood_val", "method=knn"]) == 2
    assert "has no OOD validation set to tune on — use tune=held_out_classes or" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "checkpoints").exists()


def test_the_leaderboard_ranks_every_method(here, capsys):
    assert main(["leaderboard"]) == 0
    assert main(["leaderboard", "--check"]) == 0
    page = (here / "results" / "leaderboard" / "digits.md").read_text()
    assert all(f"| {name} |" in page for name in METHODS)


FLIPPED = """
from openbench.methods.msp import MSP
from sign_of_test import SIGN


class Own(MSP):
    def score(self, x):
        return SIGN * super().score(x)
"""


def test_a_sign_flipped_in_ones_own_method_changes_the_table_and_supersedes_the_old_record(
    here, tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_of_test.py").write_text(FLIPPED)
    (tmp_path / "method").mkdir()
    (tmp_path / "method/own.yaml").write_text("_target_: own_of_test.Own\n")
    found = []
    for sign in (1, -1, -1, 1):
        for name in ("own_of_test", "sign_of_test"):
            sys.modules.pop(name, None)
        (tmp_path / "sign_of_test.py").write_text(f"SIGN = {sign}\n" + "#" * (sign < 0))
        assert main(["run", *SHORT, "method=own", "--config-dir", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        record = RecordStore(here / "results").look_up("latest")[0]
        found.append((record.run_id, record.metrics["near"]["auroc"], out.rstrip().splitlines()[-1].split()[0], out))
    (first, right, _, _), (second, flipped, _, said), again, back = found
    assert flipped == pytest.approx(1 - right, abs=1e-9)
    assert [status for *_, status, _ in found] == ["written", "written", "skipped", "skipped"]
    assert said.index(f"supersedes {first} (made before a change of sign_of_test)") < said.index("AUROC")
    assert "made from sources that are not openbench's: own_of_test, sign_of_test" in said
    assert "reused: nothing was computed" in again[3]
    assert f"superseded by {second}: made before a change of sign_of_test" in back[3]
    assert f"{first}.json" in back[3].splitlines()[-1]
