"""The advice that names a pip command."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import openbench
from openbench import installation
from openbench.installation import DISTRIBUTION, pip_install

ROOT = Path(openbench.__file__).parent.parent


class Installed:
    """A stand-in for importlib.metadata: distribution names with the text of their direct_url.json."""

    PackageNotFoundError = installation.metadata.PackageNotFoundError

    def __init__(self, **origins):
        self.origins = {name.replace("_", "-"): origin for name, origin in origins.items()}

    def distribution(self, name):
        if name not in self.origins:
            raise self.PackageNotFoundError(name)
        return self

    def read_text(self, file):
        assert file == "direct_url.json"
        return self.origins[DISTRIBUTION]


def origin(url, **dir_info):
    return json.dumps({"url": url, "dir_info": dir_info})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "pip install 'openbench-ood[slurm]'"),
        (origin("https://host/openbench_ood-0.1.0.whl"), "pip install 'openbench-ood[slurm]'"),
        (origin("file:///home/me/my%20code"), "pip install '/home/me/my code[slurm]'"),
        (origin("file:///code/ob", editable=True), "pip install -e '/code/ob[slurm]'"),
    ],
)
def test_an_extra_comes_from_where_openbench_came_from(monkeypatch, text, expected):
    monkeypatch.setattr(installation, "metadata", Installed(openbench_ood=text))
    assert pip_install("slurm") == expected


def test_a_checkout_that_is_not_installed_advises_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "metadata", Installed())
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert pip_install("", "--force-reinstall") == "pip install --force-reinstall 'openbench-ood'"
    (tmp_path / "pyproject.toml").touch()
    assert pip_install("ray") == f"pip install -e '{tmp_path}[ray]'"


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="this copy of openbench is not a checkout")
def test_nobody_is_told_to_install_the_other_project():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION
    files = [p for name in ("openbench", "configs", "scripts") for p in (ROOT / name).rglob("*") if p.is_file()]
    files += [ROOT / "README.md", ROOT / "pyproject.toml"]
    wrong = re.compile(r"pip install (-\S+ )*['\"]?openbench(?!-ood)|\"openbench\[")
    found = [p for p in files if p.suffix in (".py", ".yaml", ".md", ".toml") and wrong.search(p.read_text())]
    assert found == []
