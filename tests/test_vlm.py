"""Vision–language methods as a user runs them, with a small open_clip model of random weights, really loaded."""

from types import SimpleNamespace

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.core.record import ResultRecord, RunIdentity
from openbench.detect.detector import Detector
from openbench.detect.saved import load_detector
from openbench.engine.compatibility import check_classes, refuse_missing_parts
from openbench.engine.run import RunSpec
from openbench.engine.tune import Tuning
from openbench.errors import ConfigError, DataError, NotApplicableError
from openbench.methods.cover import CoVer
from openbench.methods.msp import MSP
from openbench.methods.prompts import EOE, NegLabel
from openbench.results.records.store import RecordStore

from .features.feature_toys import toy_backbone
from .tiny_clip import NAME, backbone, library, weights

DIGITS = ["+benchmark=digits", "~benchmark.csid", "~benchmark.ood_train", "~benchmark.far", "~benchmark.near.nine"]
DIGITS += ["+benchmark.id.val.limit=20", "+benchmark.id.test.limit=60", "+benchmark.near.eight.limit=20"]
DIGITS += ["~benchmark.ood_val", "tune=none", "metrics.families=[ranking]", "metrics.replicates=0"]
DIGITS += ["+benchmark.id.train.limit=300", "runtime.progress=false"]
CLIP = ["backbone=open_clip", f"backbone.model={NAME}"]


@pytest.fixture
def run(tmp_path_factory, tmp_path, monkeypatch):
    """Run a method and return its record; the cache is one for all tests of this file."""
    library()
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path_factory.getbasetemp() / "vlm"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))

    seen = set[str]()

    def act(*arguments: str) -> ResultRecord:
        assert main(["run", *DIGITS, *CLIP, f"backbone.weights={weights()}", *arguments]) == 0
        (new,) = [record for record in RecordStore(tmp_path / "results") if record.run_id not in seen]
        seen.add(new.run_id)
        return new

    return act


def words(folder, count: int) -> str:
    (folder / "mine.txt").write_text("".join(f"word {i}\n" for i in range(count)))
    return "mine.txt"


def test_the_words_enter_the_record_and_its_id(run, tmp_path):
    chosen = ["method=neglabel", "method.adjectives=null", "method.leave_out=[]", "method.groups=2"]
    first = run(*chosen, f"method.nouns={words(tmp_path, 40)}")
    classes, mine = first.method["texts"]
    assert (classes["words"], classes["count"], classes["templates"]) == ("classes", 6, ["the nice {}"])
    assert (mine["words"], mine["count"]) == ("mine.txt", 40)
    assert RunIdentity.of(first).run_id == first.run_id
    words(tmp_path, 41)
    other = run(*chosen, "method.nouns=mine.txt")
    assert other.provenance["passes"] == 0, "no image passes the network again"
    assert other.config == first.config
    assert other.run_id != first.run_id
    assert other.method["texts"][0] == classes


def test_the_words_of_a_method_that_scores_streams_enter_its_id(run, tmp_path):
    chosen = ["method=adaneg", "method.adjectives=null", "method.leave_out=[]", "method._stream_.orders=2"]
    first = run(*chosen, f"method.nouns={words(tmp_path, 40)}")
    assert [(texts["words"], texts["count"]) for texts in first.method["texts"]] == [("classes", 6), ("mine.txt", 40)]
    assert run(*chosen, f"method.nouns={words(tmp_path, 41)}").run_id != first.run_id


def test_words_that_a_search_tries_enter_the_id_too(tmp_path, monkeypatch):
    """The list that is chosen stays as it is, and another one that is tried changes: the choice may be another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.txt").write_text("okapi\n")
    space = {"outliers": ["second.txt", "first.txt"], "beta": [0.25, -1.0]}  # −1 is refused, and so not read
    read = {}
    for strategy in ("validation", "none"):
        for count in (2, 3):
            (tmp_path / "second.txt").write_text("".join(f"word {i}\n" for i in range(count)))
            spec = RunSpec(None, backbone(), EOE("first.txt"), "eoe", space, Tuning(strategy))
            read[strategy, count] = [(corpus["words"], corpus["count"], corpus["digest"]) for corpus in spec.texts]
    assert [corpus[:2] for corpus in read["validation", 3]] == [("classes", 3), ("first.txt", 1), ("second.txt", 3)]
    assert read["validation", 2][:2] == read["validation", 3][:2] == read["none", 2] == read["none", 3]
    assert read["validation", 2][2][2] != read["validation", 3][2][2]


def test_a_backbone_without_a_text_tower_is_refused_by_the_methods_name():
    with pytest.raises(NotApplicableError, match="method 'neglabel' reads embeddings of text: backbone 'toy' has no"):
        refuse_missing_parts(toy_backbone(), NegLabel(), "neglabel")


def test_a_list_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"word list 'wordnet_noun' not found; did you mean 'wordnet_nouns'\?"):
        _ = RunSpec(None, backbone(), NegLabel("wordnet_noun"), "neglabel", {}, Tuning("none")).texts


LEARN = ["backbone.prompt_learning.context=2", "backbone.prompt_learning.shots=3", "backbone.prompt_learning.epochs=2"]


def test_learnt_prompts_are_a_head_that_every_method_reads(run):
    first = run(*LEARN, "backbone.head=locoop", "method=gl_mcm")
    head = first.backbone["head"]
    assert (head["kind"], head["shots"], head["context"]) == ("locoop", 3, 2)
    assert first.backbone["name"].endswith("_locoop")
    again = run(*LEARN, "backbone.head=locoop", "method=mcm")
    assert again.backbone["digest"] == first.backbone["digest"]
    assert again.provenance["passes"] == 0
    assert again.backbone["head"] == head
    other = run(*LEARN, "backbone.head=coop", "method=mcm")
    assert other.backbone["head"]["sha256"] != head["sha256"]
    assert other.provenance["passes"] == 0, "the towers are frozen, and features are there"


def test_heads_on_the_features_of_the_image_tower_cost_one_pass_together(run, monkeypatch):
    monkeypatch.setattr("openbench.backbones.heads.LAMBDAS", (10.0, 0.003))  # smaller ones take most steps
    zero_shot = run("method=mls")
    first = run("backbone.head=linear_probe", "method=odin")  # by gradients through the tower and the new head
    assert first.backbone["head"]["kind"] == "linear_probe"
    accuracy = [record.metrics["id"]["accuracy"] for record in (zero_shot, first)]
    assert accuracy[0] < 0.3 < 0.6 < accuracy[1], "random towers know no names, and their features still tell digits"
    other = run("backbone.head=knn", "method=mls")
    assert (other.backbone["head"]["kind"], other.provenance["passes"]) == ("knn", 0)
    assert other.metrics["id"]["accuracy"] > accuracy[0]


def test_copies_cost_one_pass_each_and_are_kept(run):
    copies = ["method=cover", "method.kinds=[brightness]", "method.severities=[1,2]"]
    first = run(*copies)
    images = sum(c["n"] for name, c in first.counts.items() if not name.startswith("id_train"))
    assert first.provenance["passes"] in (2 * images, 3 * images)  # the clean ones may be there
    assert run(*copies, "method.base.temperature=0.01").provenance["passes"] == 0


def test_a_kind_of_copies_that_does_not_exist_is_named():
    toy = toy_backbone()
    benchmark = SimpleNamespace(classes=range(toy.num_classes))
    with pytest.raises(ConfigError, match="method 'cover': corruption — found 'fogs', allowed: gaussian_noise"):
        check_classes(benchmark, toy, CoVer(MSP(), ["fogs"], [1]), "cover")


def test_a_detector_by_text_is_kept_as_a_graph(tmp_path):
    pytest.importorskip("onnxruntime", reason="extra onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    for method, words in (("mcm", "save it as a graph"), ("gl_mcm", "a graph has no features of patches")):
        made = Detector(backbone(), method, batch_size=20).calibrate(pixels[:30], alpha=0.1)
        with pytest.raises(NotApplicableError, match=f"classifier was made from text.*{words}"):
            made.save(tmp_path / "weights")
        if method == "mcm":
            made.save(tmp_path / "mcm", network="onnx")
            found, expected = load_detector(tmp_path / "mcm").predict(pixels[30:]), made.predict(pixels[30:])
            np.testing.assert_allclose(found.score, expected.score, rtol=1e-4, atol=1e-5)
            assert np.abs(found.p_value - expected.p_value).max() <= 1.01 / 31  # a step
        else:
            with pytest.raises(NotApplicableError, match="features of patches"):
                made.save(tmp_path / "patches", network="onnx")
    assert [place.name for place in tmp_path.iterdir()] == ["mcm"]
