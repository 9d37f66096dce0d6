"""Sweeps by Hydra's launchers: one that loses a process, and where the logs of Slurm lie."""

import importlib.util
from contextlib import redirect_stderr

import pytest
from omegaconf import OmegaConf

from openbench import paths
from openbench.cli.commands.jobs import HydraCommand
from tests.forked import Forked


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the plug-in of a launcher is missing."""
    missing = importlib.util.find_spec(f"hydra_plugins.hydra_{name}_launcher") is None
    return pytest.mark.skipif(missing, reason=f"hydra-{name}-launcher is not installed")


@needs("joblib")
def test_a_sweep_that_lost_a_process_lists_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Of a benchmark that is composed quickly, as nothing is computed.
    words = ["-m", "+benchmark.name=x", "seed=0,1", "runtime=joblib", "hydra.launcher.n_jobs=2"]

    def sweep() -> None:
        from tests.cli.killed_jobs import act  # by a name which the launcher's processes can import

        with (tmp_path / "stderr").open("w") as told, redirect_stderr(told):
            assert HydraCommand("run", act)(words) == 1

    code, said = Forked(sweep, tmp_path / "stdout", OPENBENCH_CACHE=str(tmp_path)).ended()
    assert code == 0, said
    told = (tmp_path / "stderr").read_text()
    assert "Traceback" not in told
    assert "error: the launcher stopped: TerminatedWorkerError" in told
    rows = {line.split()[1]: line.split(maxsplit=2)[2].strip() for line in said.splitlines() if "seed=" in line}
    assert rows == {"seed=0": "written", "seed=1": "not ended"}
    assert "; the same command goes on (" in told.splitlines()[-1]


@needs("submitit")
def test_logs_of_slurm_jobs_lie_in_a_folder_that_is_there_before_the_jobs_are_submitted(tmp_path):
    from submitit.core.utils import JobPaths

    shipped = OmegaConf.load(paths.config_dir() / "runtime" / "slurm.yaml")
    shipped.hydra.sweep = {"dir": str(tmp_path)}
    folder = shipped.hydra.launcher.submitit_folder
    assert JobPaths.get_first_id_independent_folder(folder) == JobPaths(folder).stdout.parent
