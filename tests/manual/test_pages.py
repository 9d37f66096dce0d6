"""The manual: what openbench offers has a page, what pages name is there, and their commands are commands."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml", reason="extra docs")

from generate import benchmarks, commands, everything, metrics, sheets
from generate.markdown import Docstring
from generate.pictures import PICTURES

import openbench as ob
from openbench import _compat, paths  # noqa: F401 - torchvision beside a CPU-only torch
from openbench.api.methods import beyond_features, chosen_method
from openbench.cli import registry
from openbench.cli.app import COMMANDS
from openbench.cli.commands import study
from openbench.data import dataset
from openbench.errors import OpenbenchError
from openbench.studies.cells import StudyOptions, different_runs, planned

from ..documents import (  # noqa: TID252 — the tests are no package
    FENCE,
    commands as told,
    composes,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = sorted([DOCS / "index.md", *(DOCS / "do").glob("*.md"), *(DOCS / "understand").glob("*.md")])


SHOWN = ("digits", "mnist", "imagenet1k", "cifar10")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All generated pages; the help of commands is taken as read, since each would start a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "_help", lambda name: f"usage: python -m openbench {name}")
        patch.setenv("OPENBENCH_DATA", str(tmp_path_factory.mktemp("none")))  # pages tell of no machine's images
        patch.setattr(dataset, "load_listing", cache(dataset.load_listing))  # benchmarks share their sets
        page = benchmarks.benchmark  # which takes a quarter of a second, of fifty that are alike
        patch.setattr(benchmarks, "benchmark", lambda entry, of: page(entry, of) if entry.name in SHOWN else entry.name)
        return everything.pages()


def test_everything_on_offer_has_a_page(made):
    apart = ("method", "benchmark", "training", "augment")
    wanted = {f"{group}/{entry.name}" for group in apart for entry in registry.entries(group)}
    wanted |= {f"{group}/index" for group in registry.groups()}
    wanted |= {f"command/{name}" for name in COMMANDS}
    wanted |= {f"python/{name}" for name in ob.__all__ if not name.startswith("_")}
    assert wanted - set(made) == set()
    for group in registry.groups():
        for entry in () if group in apart else registry.entries(group):
            assert f"## {entry.name}\n" in made[f"{group}/index"]


def test_a_method_has_the_comparisons_of_its_own_tests_on_its_page(made):
    shown = {
        name: re.findall(r"^\| (.*) \| \d+ \| [\d.e-]+ \|$", made[name], re.MULTILINE)
        for name in ("method/core", "method/csp", "method/eoe", "method/oodd")
    }
    assert "equals residuals taken sample by sample" in shown["method/core"]
    assert "equals one image after the other" in shown["method/oodd"]
    assert shown["method/csp"] == ["takes words that are nearly a class last"]
    assert shown["method/eoe"] == ["is the class probability less a part of the outliers"]
    assert "covariances weighed" not in made["method/mds"]  # of mds_ensemble


def test_a_page_shows_an_estimator_if_and_only_if_there_is_one(made):
    names = [entry.name for entry in registry.entries("method")]
    for name in names:
        try:
            method = chosen_method(name).method
        except OpenbenchError:  # an extra that is not installed
            continue
        read = beyond_features(method)
        assert (f'ob.method("{name}")' in made[f"method/{name}"]) == (not read), (name, read)


def test_pages_tell_of_nothing_that_the_next_build_has_elsewhere(made):
    assert [name for name, text in made.items() if re.search(r" at 0x[0-9a-f]+>", text)] == []


def test_every_key_of_the_shipped_configs_is_told(made):
    found = set(re.findall(r"`(\w+)\.(\w+)`", made["keys"]))
    for node, (file, _) in commands.NODES.items():
        keys = re.findall(r"^(\w+):", (paths.config_dir() / f"{file}.yaml").read_text(), re.M)
        assert {(node, key) for key in keys if not key.startswith("_") and key != "defaults"} <= found


def test_every_key_of_a_record_belongs_to_one_metric():
    keys = set()
    for name in ("knn", "msp"):
        for file in (ROOT / "results/records/digits/resnet8_digits" / name).glob("*.json"):
            keys |= {key for values in json.loads(file.read_text())["metrics"].values() for key in values}
    assert len(keys) > 200
    entries = metrics.entries()
    for key in keys:
        base = re.sub(r"_(low|high)$", "", key.removeprefix("pooled_"))
        assert len([entry.slug for entry in entries if re.fullmatch(entry.keys, base)]) == 1, key


def test_a_page_shows_what_was_measured(made):
    file, *_ = (ROOT / "results/records/cifar10/resnet20_cifar10/knn").glob("*.json")  # also with another δ
    near = 100 * json.loads(file.read_text())["metrics"]["near"]["auroc"]
    assert f"| cifar10, in part | resnet20_cifar10 | 1 | {near:.2f} [" in made["method/knn"]
    assert "In part: images or sets were missing" in made["method/knn"]
    assert "| digits | resnet8_digits | 3 |" in made["method/knn"]


def test_benchmarks_show_images_that_anybody_may_publish(made):
    assert made["benchmark/digits"].count("data:image/png") == 13  # a strip for each set
    assert made["benchmark/mnist"].count("data:image/png") == 2
    assert "data:image/png" not in made["benchmark/imagenet1k"]
    assert re.findall(r'alt="Images of (\w+)"', made["benchmark/cifar10"]) == ["mnist"]


def test_pictures_stand_beside_their_makers_and_licences(made):
    digits, by = made["benchmark/digits"], "https://creativecommons.org/licenses/by"
    assert [f"{by}/{version}/" in digits for version in ("4.0", "2.0")] == [True, True]
    assert all(name in digits for name in ("Alpaydin and Kaynak", "danielbuechele", "vultilion"))
    assert [name in made["benchmark/mnist"] for name in ("Yann LeCun", f"{by}-sa/3.0/", "David Flanagan")] == [True] * 3
    assert "Yann LeCun" not in digits
    for strip in sheets.STORED.rglob("*.png"):
        assert sheets.credit(strip.relative_to(sheets.STORED).as_posix())
    with pytest.raises(ValueError, match="empty"):
        sheets.credit("nobody.png")


def test_generated_links_lead_to_pages(made):
    for name, text in made.items():
        for target in re.findall(r"\]\((?!http)([^)#]+)\.md\)", text):
            path = Path(name).parent / target
            assert path.as_posix() in made, f"{name} → {target}"


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_what_a_written_page_names_is_there(file, made):
    text = FENCE.sub("", file.read_text())
    made_pages = {DOCS / "look_up" / f"{name}.md" for name in made}
    pictures = {DOCS / "pictures" / f"{name}.md" for name in (*PICTURES, "first_table")}
    lessons = {DOCS / "learn" / f"{example.stem}.rst" for example in (ROOT / "examples").glob("*.py")}
    known = made_pages | pictures | lessons
    linked = re.findall(r"\]\((?!http|#)([^)#]+)", text) + re.findall(r"^```\{include\} (.+)$", file.read_text(), re.M)
    resolved = {target: (file.parent / target).resolve() for target in linked}
    assert [target for target, path in resolved.items() if not path.exists() and path not in known] == []
    quoted = re.findall(r"`((?:openbench|configs|data_manifests|tests|docs|scripts|results)/[\w./-]*)`", text)
    assert [path for path in quoted if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_every_command_of_a_written_page_is_one(file):
    for words in told(file):
        assert words[0] in COMMANDS
        if words[0] in ("run", "train", "extract", "check") and "--config-dir" not in words:
            composes(words)
        if words[0] == "study" and words[1] != "new" and not words[1].endswith(".yaml"):
            asked = study.study.make_context("study", list(words[1:])).params
            named = study.named(asked["name"]).narrowed(asked["rows"], asked["columns"])
            assert different_runs(planned(named, StudyOptions(tuple(asked["overrides"])))) or named.layout == "mixture"


def test_python_of_written_pages_runs(monkeypatch):
    blocks = [text for page in WRITTEN for language, text in FENCE.findall(page.read_text()) if language == "python"]
    assert blocks
    monkeypatch.chdir(ROOT)
    exec(compile("\n".join(blocks), "the written pages", "exec"), {"__name__": "pages"})


def test_a_docstring_is_taken_apart():
    found = Docstring.parse(
        "Sum.\n\nscore(x) = x.\n\nArgs:\n    k: which\n        one.\n\nRaises:\n    E: bad.\n\nReference: A."
    )
    assert (found.summary, found.paragraphs, found.reference) == ("Sum.", ["score(x) = x."], "A.")
    assert (found.arguments, found.raises) == ({"k": "which one."}, {"E": "bad."})
