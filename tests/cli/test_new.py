"""`new`: what it writes runs and passes its own test as it is; what cannot be is refused and leaves nothing."""

import io
import sys
import tomllib
import zipfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from openbench.__main__ import main
from openbench.cli.commands import new
from openbench.config import folders
from openbench.results.records.store import RecordStore
from tests.forked import Forked

SHORT = ["training.recipe.epochs=1", "metrics.replicates=0", "metrics.correction=simes", "runtime.progress=false"]
SHORT += ["~benchmark.csid", "~benchmark.near.nine", "~benchmark.far.noise", "benchmark.id.train.limit=60"]
SHORT += [f"benchmark.{path}.limit=40" for path in ("id.test", "near.eight", "far.patches", "ood_val")]
NAMES = {kind: f"zz_own_{kind}" for kind in new.KINDS}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with one of each kind, and what was printed about each."""
    folder, said = tmp_path_factory.mktemp("new"), {}
    for kind, name in NAMES.items():
        with redirect_stdout(io.StringIO()) as out:
            assert main(["new", kind, name, "--dir", str(folder)]) == 0
        said[kind] = out.getvalue()
    return folder, said


@pytest.fixture
def inside(written, monkeypatch):
    folder, _ = written
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("OPENBENCH_CACHE", str(folder / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(folder / "results"))
    yield folder
    for name in NAMES.values():
        sys.modules.pop(name, None)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def typed(text: str, what: str) -> list[str]:
    """The words of a printed command after `python -m openbench`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{what}:")]
    return line.partition("python -m openbench ")[2].split()


@pytest.mark.parametrize("kind", new.KINDS)
def test_what_is_written_runs_with_the_printed_command(kind, inside, written, capsys):
    text = written[1][kind]
    assert f"cd {inside}" in text
    assert main([*typed(text, "run"), *SHORT]) == 0
    record, _ = RecordStore(inside / "results").look_up("latest")
    shown = record.to_dict()
    place = {"method": shown["method"]["name"], "training": shown["backbone"]["training"]}
    place |= {"backbone": shown["backbone"]["name"], "dataset": "far" if f"far/{NAMES[kind]}" in record.counts else ""}
    assert place[kind] == ("far" if kind == "dataset" else NAMES[kind])
    assert NAMES[kind] in record.provenance["sources"]
    capsys.readouterr()
    assert main(typed(text, "list")) == 0
    assert NAMES[kind] in capsys.readouterr().out


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A new package, installed as pip does it with -e; and what was printed."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["new", "package", "zz-own-package", "--dir", str(tmp_path)]) == 0
    home = tmp_path / "zz-own-package"
    project = tomllib.loads((home / "pyproject.toml").read_text())["project"]
    ((group, points),) = project["entry-points"].items()
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    about = tmp_path / "site" / "zz_own_package-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    for folder in (home / "src", about.parent):
        monkeypatch.syspath_prepend(str(folder))
    yield home, out.getvalue(), about / "METADATA"
    for name in [name for name in sys.modules if name.startswith("zz_own_package")]:
        del sys.modules[name]


def test_a_new_package_runs_and_its_version_is_part_of_the_record(inside, package, capsys):
    _, text, metadata = package
    assert typed(text, "run")[-1] == "method=zz_own_package"
    ids, found = [], []
    for version in ("0.1.0", "0.2.0"):
        metadata.write_text(metadata.read_text().replace("0.1.0", version))
        folders._added.cache_clear()
        assert main([*typed(text, "run"), *SHORT]) == 0
        record, _ = RecordStore(inside / "results").look_up("latest")
        ids.append(record.run_id)
        found.append(record.provenance["sources"])
    assert [sources["package zz-own-package"] for sources in found] == ["0.1.0", "0.2.0"]
    assert len(found[0]["zz_own_package.zz_own_package"]) == 64
    assert ids[0] != ids[1]
    assert main(["show", "record", ids[1], "--results", str(inside / "results")]) == 0
    assert "source that is not openbench's: package zz-own-package 0.2.0\n" in capsys.readouterr().out


def test_the_generated_tests_pass(written, package, tmp_path, monkeypatch):
    monkeypatch.chdir(written[0])
    words = ["-q", "-p", "no:cacheprovider", "-W", "error", ".", str(package[0])]
    # Whatever else is installed would load for a second.
    tests = Forked(lambda: pytest.main(words), tmp_path / "note", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    _, said = tests.ended()
    assert said.splitlines()[-1].startswith("10 passed in "), said


def test_a_wheel_of_a_new_package_has_its_configs(package, tmp_path):
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling")
    (file,) = builder.WheelBuilder(str(package[0])).build(directory=str(tmp_path), versions=["standard"])
    assert "zz_own_package/configs/method/zz_own_package.yaml" in zipfile.ZipFile(file).namelist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["package", "ends-"], "allowed: at most 60 lower-case letters, digits and underscores between them"),
        (["package", "knn"], "method 'knn' exists"),
        (["method", "knn"], "method 'knn' exists"),
        (["method", "class"], "no keyword of Python or yaml"),
        (["method", "json"], "is that of an installed module"),
        (["method", "request"], "would be called Request, like something that it needs"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(arguments, words, tmp_path, capsys):
    assert main(["new", *arguments, "--dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("words", "there", "said"),
    [
        (["method", "near_one"], "mine/method/near_one.yaml", "exists (python -m openbench show method near_one --c"),
        (["package", "near-one"], "near-one/README.md", "exists"),
    ],
)
def test_files_that_exist_are_left_alone(words, there, said, tmp_path, capsys):
    file = tmp_path / there
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    assert main(["new", *words, "--dir", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert files_in(tmp_path) == {there}
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["new", "method", "near_one", "--dir", str(tmp_path / "file")]) == 2
    assert "cannot be written (File exists) — choose another place" in capsys.readouterr().err
