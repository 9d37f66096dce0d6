"""`train`: train a backbone on a benchmark's ID images."""

from omegaconf import DictConfig

from openbench.cli.hydra.app import Call, carry_out, launch
from openbench.cli.hydra.job import Done
from openbench.cli.process.exits import OK


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    return launch("train", argv, job, unused=("method", "tune", "metrics"))


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "train", act)


def act(call: Call) -> Done:
    """Train and say where the checkpoint is."""
    from openbench.engine import api
    from openbench.training.loop.distributed import team

    trained = api.train(call.config, call.runtime, call.say)
    line = f"{trained.backbone.name}: {trained.source}"
    if team(call.runtime.get("device", "auto")).leads:
        print(line)
    return Done(OK, line)
