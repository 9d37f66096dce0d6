"""`extract`: fill the feature cache with the columns that a method needs."""

from omegaconf import DictConfig

from openbench.cli.hydra.app import Call, carry_out, launch
from openbench.cli.hydra.job import Done
from openbench.cli.process.exits import OK


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    return launch("extract", argv, job, unused=("tune", "metrics"))


def job(cfg: DictConfig) -> int:
    """Carry out one composed config, here or wherever a launcher put it."""
    return carry_out(cfg, "extract", act)


def act(call: Call) -> Done:
    """Extract and say how many images went through the network for each split; 0 = all was cached."""
    from openbench.engine import api

    passes = api.extract(call.config, call.runtime, call.say)
    for split, images in passes.items():
        print(f"{images:>10,}  {split}")
    line = f"{sum(passes.values()):,} images passed for {len(passes)} splits"
    print(line)
    return Done(OK, line)
