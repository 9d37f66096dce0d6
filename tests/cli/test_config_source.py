"""The source that Hydra reads config files from."""

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.singleton import Singleton

from openbench.cli.hydra import config_source


def test_a_process_of_a_launcher_reads_configs_through_the_same_source():
    """As the joblib launcher does: one process takes over the state of another and registers plugins again."""
    config_source.install()
    before = Singleton._instances
    try:
        Singleton.set_state(Singleton.get_state())
        assert SourcesRegistry.instance().types["file"] is config_source.FileConfigSource
    finally:
        Singleton._instances = before
