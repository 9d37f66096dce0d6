"""A file's defaults list may refer to what is chosen of another group."""

import pytest
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from openbench.compose.config import compose


def composed(folder, default, chosen):
    (folder / "method").mkdir(exist_ok=True)
    (folder / "method/x.yaml").write_text(f"defaults:\n  - {default}\n  - _self_\nk: 1\n")
    return compose("run", ["+benchmark=digits", "method=x", f"tune={chosen}"], folder)


def test_a_default_is_the_choice_that_it_refers_to(tmp_path):
    for chosen in ("none", "oracle"):
        found = composed(tmp_path, "/tune@base: ${tune}", chosen)
        assert OmegaConf.to_container(found.method.base) == OmegaConf.to_container(found.tune)
        assert found.method.k == 1


def test_a_file_named_by_a_choice_is_looked_for_where_hydra_looks(tmp_path):
    with pytest.raises(MissingConfigException, match="Could not load 'method/tune/none'"):
        composed(tmp_path, "/tune/${tune}", "none")
