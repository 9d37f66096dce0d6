"""The state of a training, how it is saved and restored, and the files of a checkpoint."""

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from openbench.backbones.device import check_precision
from openbench.digest import file_sha256
from openbench.errors import MethodError
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed
from openbench.storage.files import write_whole
from openbench.training._job import TrainingJob
from openbench.training.loop._progress import EpochRow
from openbench.training.loop.distributed import ALONE, BatchNorm, Team

logger = logging.getLogger(__name__)

STATE = "state.pt"
SUFFIX, EXTRAS = ".safetensors", ".extras.safetensors"
_ORDER, _GLOBAL = 1, 2


@dataclass
class Session:
    """A training in progress.

    Args:
        job: what is trained.
        folder: where state and weights go.
        device: where the network is.
        network: the backbone's own module.
        prepared: the module that the method's `prepare` returned.
        optimiser: over the method's parameter groups.
        scaler: gradient scaling, active for fp16 alone.
        generator: order, augmentation, the method's draws; on the CPU.
        average: of the weights, if the recipe has one; it is validated and saved in place of the weights.
        team: the processes that train together; the first one writes.
        curve: the epochs that are over.
        best: the best epoch so far: `epoch` (from 1), `value` (larger is better), `files` (name → SHA-256).
        resumed_after: epochs that an earlier, interrupted process had finished.
        files: file name in the folder → SHA-256, once the training has ended: weights of the best and the last epoch.
    """

    job: TrainingJob
    folder: Path
    device: torch.device
    network: nn.Module
    prepared: nn.Module
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator
    average: "EMA | None" = None
    team: Team = ALONE
    curve: list[EpochRow] = field(default_factory=list)
    best: dict[str, Any] | None = None
    resumed_after: int = 0
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, job: TrainingJob, folder: Path, device: torch.device, start: Path | None = None, team: Team = ALONE
    ) -> "Session":
        """Return a session at epoch 0, global generators seeded for dropout and heads.

        The network's weights are fresh from the seed, or those in the file `start` for a method with `initial`.
        """
        recipe, method = job.method.schedule, job.method
        check_precision(recipe.precision, device, "training.recipe.precision")
        torch.manual_seed(stream(job.seed, _GLOBAL))
        backbone = job.backbone.initialise(job.seed)
        network = (backbone if start is None else backbone.load(start)).to(device).module()
        prepared = method.prepare(network, job.backbone.feature_dim, job.backbone.num_classes).to(device)
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        prepared = prepared.to(memory_format=layout)  # type: ignore[call-overload]
        if not any(part is network for part in prepared.modules()):
            raise MethodError(
                f"{type(method).__name__}.prepare returned a module without the network, whose weights could not be "
                "saved — return the network, or a module with it as a child"
            )
        groups = [{"lr_scale": 1.0, "lr_constant": False, **group} for group in method.parameter_groups(prepared)]
        optimiser = torch.optim.SGD(
            groups,
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
        )
        scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        generator = torch.Generator().manual_seed(stream(job.seed, _ORDER))
        average = None if recipe.ema is None else EMA(prepared, recipe.ema)
        return cls(job, folder, device, network, prepared, optimiser, scaler, generator, average, team)

    def weights(self) -> AbstractContextManager[None]:
        """Return a context in which the network has the weights to save: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    def save_if_best(self, value: float) -> None:
        """Save the weights if the epoch that has just ended is no worse than any before; `value`: larger is better."""
        if not self.team.leads or (self.best is not None and value < self.best["value"]):
            return
        epoch = len(self.curve)
        # Under a new name: until `save` has recorded it, an interrupted training resumes with the previous best epoch.
        self.best = {"epoch": epoch, "value": value, "files": self.write_weights(f"best-{epoch}")}

    def write_weights(self, stem: str) -> dict[str, str]:
        """Write the network's weights, and what the method added to it if anything; return file name → SHA-256."""
        prefix = next(name for name, part in self.prepared.named_modules() if part is self.network)
        within = f"{prefix}." if prefix else ""
        extras = {k: v for k, v in self.prepared.state_dict().items() if not k.startswith(within)}
        files = {}
        with self.weights():  # state_dict holds the tensors themselves, not copies
            for suffix, state in ((SUFFIX, self.network.state_dict()), (EXTRAS, extras)):
                if state:
                    path = self.folder / f"{stem}{suffix}"
                    # safetensors accepts neither shared storage nor other strides; weights are laid out channels last.
                    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
                    write_whole(path, save(plain))
                    files[path.name] = file_sha256(path)
        return files

    def save(self) -> None:
        """Write the state that a resumed training needs into one file, then delete weights that are no longer best."""
        if not self.team.leads:
            return
        state: dict[str, Any] = {
            "digest": self.job.digest,
            "prepared": self.prepared.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "generator": self.generator.get_state(),
            "global": {"cpu": torch.get_rng_state()},
            "curve": [asdict(row) for row in self.curve],
            "best": self.best,
        }
        if self.device.type == "cuda":
            state["global"]["cuda"] = torch.cuda.get_rng_state(self.device)
        content = io.BytesIO()
        torch.save(state, content)
        write_sealed(self.folder / STATE, content.getvalue())
        best = self.best["files"] if self.best else {}
        for file in self.folder.glob(f"best-*{SUFFIX}"):
            if file.name not in best:
                file.unlink()

    def resume(self) -> None:
        """Continue where an interrupted training stopped, if one did.

        A state that cannot be used is reported and ignored: the training then begins again, which costs time but not
        correctness.
        """
        state = self.team.broadcast(self._usable_state() if self.team.leads else None)
        if state is None:
            return
        self.prepared.load_state_dict(state["prepared"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.restore(state["average"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["global"]["cpu"])
        if self.device.type == "cuda" and "cuda" in state["global"]:
            torch.cuda.set_rng_state(state["global"]["cuda"], self.device)
        self.curve = [EpochRow(**row) for row in state["curve"]]
        self.best, self.resumed_after = state["best"], len(self.curve)

    def _usable_state(self) -> dict[str, Any] | None:
        path = self.folder / STATE
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(read_sealed(path)), map_location="cpu", weights_only=True)
            best = state["best"]["files"].items()
            if state["digest"] == self.job.digest and all(file_sha256(self.folder / n) == sha256 for n, sha256 in best):
                return state
        except (DamagedError, FileNotFoundError):
            pass
        logger.info(f"training {self.job}: '{path}' cannot be used — training again from the start")
        return None


def stream_of_rank(seed: int, step: int, rank: int) -> int:
    """Return the seed of the separate draws of one of several processes, from a step on."""
    return stream(seed, _GLOBAL, step, rank)


def stream(seed: int, *purpose: int) -> int:
    """Return the seed of the draws for a purpose."""
    # Neighbouring seeds and the streams of one seed are unrelated; torch's own seeding is linear in the seed.
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class EMA:
    """A moving average: after step t it is d_t·average + (1 − d_t)·weights, d_t = min(d, (1 + t)/(10 + t)).

    d_t is smaller in the first steps, so that the average forgets the random weights that training starts from. It
    covers all parameters, and the running mean and variance of batch norm, which belong to the weights they were taken
    with. Other buffers (counters, queues, prototypes) are not averaged.

    Args:
        model: what is averaged; its present weights are the average before the first step.
        decay: d in (0, 1).

    Reference:
        Polyak, Juditsky: Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30(4), 1992; the
        warm-up of d is that of TensorFlow's ExponentialMovingAverage with `num_updates`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.step, self._model = decay, 0, model
        self._mean = {name: value.detach().clone() for name, value in _averaged(model).items()}

    def update(self) -> None:
        """Take in the weights after a step."""
        self.step += 1
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        # Looked up each time: DistributedDataParallel replaces buffers by other tensors.
        means, values = list(self._mean.values()), [value.detach() for value in _averaged(self._model).values()]
        get_ema_multi_avg_fn(decay)(means, values, self.step)  # type: ignore[no-untyped-call]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the network the averaged weights while the body runs."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in _averaged(self._model).items():
            weights = value.clone()
            value.copy_(self._mean[name])
            self._mean[name] = weights

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"step": self.step, "mean": self._mean}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.step = state["step"]
        self._mean = {name: mean.to(self._mean[name].device) for name, mean in state["mean"].items()}


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are averaged, by name; a shared one comes once."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for path, part in model.named_modules():
        if isinstance(part, BatchNorm):
            tensors |= {f"{path}.{name}": value for name, value in part.named_buffers() if value.is_floating_point()}
    return tensors
