"""`ob.evaluate`: the same numbers and records as `run`, reuse, several models, and what is refused before anything."""

import json

import numpy as np
import pytest
import torch

import openbench as ob
from openbench import _compat
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.compose.config import composed
from openbench.engine import prepare
from openbench.errors import ConfigError, DataError, NotApplicableError
from openbench.methods.knn import KNN

from ..prepared import run_config  # noqa: TID252 — the tests are no package
from .own_models import DIGITS, small


def plain(result):
    """A record as its file holds it."""
    return json.loads(json.dumps(result.record.to_dict()))


def files(folder):
    return sorted(p.name for p in folder.rglob("*.json"))


def test_a_module_gives_a_record_for_each_method_and_is_reused(evaluate, tmp_path):
    model = small().train()
    first = evaluate(model, ["msp", KNN(k=3)])
    assert list(first) == ["msp", "knn"]
    for name, result in first.items():
        assert result.path.stem == result.record.run_id
        assert result.record.backbone["name"] == "small"
        assert result.record.method["name"] == name
        assert {s.role for s in result.scores} == {"id_test", "id_val", "near", "far", "ood_val"}
    assert first["knn"].record.method["params"]["k"] == 3
    assert first["knn"].record.trials == []
    assert model.training
    again = evaluate(model, ["msp", KNN(k=3)], seed=np.int64(0), device=torch.device("cpu"), batch_size=np.int32(256))
    assert [plain(r) for r in again.values()] == [plain(r) for r in first.values()]
    assert all(any(n.startswith("reused: nothing was computed") for n in r.notes) for r in again.values())
    assert len(files(tmp_path / "results" / "records")) == 2
    model.fc.weight.data.mul_(2)
    other = evaluate(model)["msp"].record
    assert other.run_id != first["msp"].record.run_id
    assert other.metrics != first["msp"].record.metrics


def test_missing_images_may_be_allowed_by_an_argument(evaluate):
    (allowed,) = evaluate(small(), incomplete="allow").values()
    assert allowed.record.config["benchmark"]["incomplete"] == "allow"


def test_missing_sets_are_named_at_once_in_the_words_of_python(evaluate, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path / "empty"))
    with pytest.raises(DataError) as error:
        evaluate(small(), [ob.method("msp"), KNN()], benchmark="mnist", overrides=[])
    text = str(error.value)
    assert "benchmark 'mnist': 7 of 7 data sets are missing or incomplete" in text.splitlines()[0]
    assert "id.train (needed by method 'knn', which is fitted on it)" in text
    assert "overrides=['~benchmark.ood_val', '~benchmark.far.notmnist'" in text
    assert 'incomplete="allow"' in text
    assert "benchmark.incomplete=allow" not in text


def test_features_that_the_call_itself_made_are_not_said_to_be_reused(evaluate):
    found = evaluate(small(), ["msp", KNN()])
    assert "reused " not in repr(found).replace("reused only by", "")
    again = repr(evaluate(small(), ["msp", KNN()]))
    assert again.count("reused: nothing was computed") == again.replace("reused only by", "").count("reused") == 1


def test_by_name_the_record_is_that_of_run_and_by_module_its_numbers_are_the_same(evaluate, tmp_path):
    name = "resnet8_digits"
    torch.manual_seed(0)

    class Other(CifarResNet):
        pass

    model = Other(SPECS["resnet8"], 6)
    file = tmp_path / "weights.pt"
    torch.save(model.state_dict(), file)
    words = [*DIGITS, f"+backbone.weights={file}"]
    by_name = evaluate(name, "knn", preprocess=None, overrides=words, tune="none")
    by_module = evaluate(model, "knn", preprocess="benchmark", tune="none")
    record, other = by_name["knn"].record, by_module["knn"].record
    assert (record.metrics, record.tuned, record.trials) == (other.metrics, other.tuned, other.trials)
    assert record.counts == other.counts
    assert record.run_id != other.run_id
    job = composed("run", ["+benchmark=digits", f"backbone={name}", "method=knn", "tune=none", *words])
    runtime = job.runtime | {"cache": str(tmp_path / "cache"), "results": str(tmp_path / "results")}
    outcome = run_config(job.config, runtime)
    assert (outcome.status, plain(outcome)) == ("skipped", plain(by_name["knn"]))


def test_several_models_are_evaluated_on_one_benchmark_that_is_opened_once(evaluate, monkeypatch):
    opened = []
    monkeypatch.setattr(prepare, "load_benchmark", lambda *a, real=prepare.load_benchmark: opened.append(a) or real(*a))
    found = evaluate([small(0), small(1)])
    assert list(found) == ["small", "small_2"]
    assert len(opened) == 1
    assert found["small"]["msp"].record.backbone["digest"] != found["small_2"]["msp"].record.backbone["digest"]
    assert list(evaluate({"first": small(0)})) == ["first"]
    assert repr(found).split("\n\nsmall_2\n") == [f"small\n{found['small']!r}", repr(found["small_2"])]
    assert found.table().index.get_level_values("model").unique().tolist() == ["small", "small_2"]


def test_a_wrong_number_of_classes_is_refused_where_the_method_reads_them(evaluate, tmp_path):
    with pytest.raises(NotApplicableError, match=r"'msp' reads logits.*'small' has 10 output.*'digits' has 6"):
        evaluate(small(classes=10), [KNN(), "msp"])
    assert not files(tmp_path)  # the first of the two was not run
    # Its features are those of the network with as many classes as there are: both draw them first.
    found = [evaluate(small(classes=n), KNN(k=2))["knn"].metrics["eight"]["auroc"] for n in (10, 6)]
    assert found[0] == found[1]


def test_every_method_is_checked_before_the_first_is_run(evaluate, monkeypatch, tmp_path):
    monkeypatch.setattr("openbench.api.evaluate.run", lambda *_: pytest.fail("a method was run"))
    torch.save(CifarResNet(SPECS["resnet8"], 6).state_dict(), tmp_path / "weights.pt")
    words = [*DIGITS, f"+backbone.weights={tmp_path / 'weights.pt'}"]
    with pytest.raises(ConfigError, match="'neglabel'"):
        evaluate("resnet8_digits", ["knn", "neglabel"], preprocess=None, overrides=words)
    model = small()
    with pytest.raises(NotApplicableError, match="method 'knn' reads features, but backbone 'lambda' has logits only"):
        evaluate(lambda x: model(x), ["msp", KNN()])
    with pytest.raises(NotApplicableError, match="'gram' reads maps of its layers, but backbone 'small' has features"):
        evaluate(model, ["msp", "gram"])


def test_benchmarks_and_methods_of_ones_own_are_found_in_a_folder(evaluate, tmp_path):
    for group, text in {
        "benchmark": "# @package _global_\ndefaults: [digits, _self_]\nbenchmark: {name: mine}\n",
        "method": "_target_: openbench.methods.knn.KNN\nk: 3\n",
    }.items():
        (tmp_path / "configs" / group).mkdir(parents=True)
        (tmp_path / "configs" / group / "mine.yaml").write_text(text)
    found = evaluate(small(), "mine", benchmark="mine", config_dir=tmp_path / "configs")["mine"]
    assert found.record.benchmark["name"] == "mine"
    assert not found.record.overrides  # nothing that is typed makes an object
    assert found.metrics["eight"] == evaluate(small(), KNN(k=3))["knn"].metrics["eight"]


def test_warnings_are_shown_and_kept(evaluate):
    model = small()
    with pytest.warns(UserWarning, match="returns probabilities"):
        found = evaluate(lambda x: model(x).softmax(dim=1))
    assert "returns probabilities" in found["msp"].warnings[0]


def test_a_transform_that_is_run_as_it_is_is_kept_in_the_record(evaluate):
    v2 = _compat.library("torchvision.transforms.v2")
    scaled = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.3] * 3, [0.3] * 3)])
    found = evaluate(small(), preprocess=scaled)["msp"]
    assert "ToDtype(scale=True)" in found.record.backbone["preprocess"]["own"]["text"]
    expected = evaluate(small())["msp"].metrics["eight"]["auroc"]
    assert found.metrics["eight"]["auroc"] == pytest.approx(expected, abs=1e-3)
    assert plain(evaluate(small(), preprocess=scaled)["msp"]) == plain(found)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"methods": {"a/b": KNN()}}, "'a/b' cannot be the name of a method"),
        ({"benchmark": "digit"}, "digit.*did you mean 'digits'"),
        ({"overrides": "seed=1"}, r"overrides — found 'seed=1', allowed: a list, each item text"),
        ({"overrides": ["method=knn"]}, "overrides has 'method=knn' — use the argument of the call"),
        ({"overrides": ["backbone.precision=bf16"]}, "but the model is an object — change"),
        ({"overrides": ["method.k=3"], "methods": KNN()}, "but method 'knn' is an object — change"),
        ({"benchmark": "/tmp/x.yaml"}, "benchmark is '/tmp/x.yaml' — pass a name.*config_dir='FOLDER'"),
        ({"name": "a/b"}, "name 'a/b' — allowed: letters"),
        ({"model": small().state_dict()}, "model is a Tensor — pass a torch.nn.Module"),
        ({"incomplete": "alow"}, "benchmark.incomplete — found 'alow', allowed: .*did you mean 'allow'"),
        ({"model": "resnet20_cifar10"}, "preprocess is given for 'resnet20_cifar10', whose config has it"),
        ({"model": "weights.pt"}, "is a file of weights, not a network"),
        (
            {"model": "hf_hub:timm/resnet18", "preprocess": None},
            "is none of timm, torchvision, open_clip — load the network",
        ),
        ({"model": []}, "model is an empty list"),
        ({"model": {1: small(), "1": small()}}, "two models have one name"),
        ({"model": [small(), small()], "name": "x"}, "one name for 2 models"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_computed(evaluate, tmp_path, given, says):
    with pytest.raises(ConfigError, match=says):
        evaluate(given.pop("model", small()), given.pop("methods", "msp"), **given)
    assert not files(tmp_path)


def test_progress_is_for_terminals_and_the_table_is_printed_with_the_results(evaluate, capfd, monkeypatch):
    evaluate(small(), progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("openbench.api.evaluate.shown", lambda progress: progress)
    found = evaluate(small(1), progress=True)
    out, err = capfd.readouterr()
    assert (out, "images" in err, "AUROC" in err) == ("", True, False)
    print(found)
    assert capfd.readouterr().out.count("FPR@95: OOD positive") == 1


def test_what_openbench_method_returns_goes_wherever_a_method_goes(evaluate):
    alone, listed = evaluate(small(), ob.method("knn", k=7)), evaluate(small(), [ob.method("knn", k=7), "msp"])
    assert alone["knn"].record.method["params"]["k"] == 7
    assert (listed["knn"].record.run_id, list(listed)) == (alone["knn"].record.run_id, ["knn", "msp"])
