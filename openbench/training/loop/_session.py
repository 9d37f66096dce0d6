"""The state of a training, how it is saved and restored, and the files of a checkpoint."""

import io
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from openbench import __version__
from openbench.checkout import made_now
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError, MethodError
from openbench.storage.checksum import DamagedError, read_sealed, read_stated, stated, write_sealed
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training._job import TrainingJob
from openbench.training.loop._progress import EpochRow
from openbench.training.loop.distributed import ALONE, BatchNorm, Team

logger = logging.getLogger(__name__)

STATE, JOB, FINISHED = "state.pt", "job.json", "finished.json"
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

    @classmethod
    def begin(
        cls, job: TrainingJob, folder: Path, device: torch.device, start: Path | None = None, team: Team = ALONE
    ) -> "Session":
        """Return a session at epoch 0, global generators seeded for dropout and heads.

        The network's weights are fresh from the seed, or those in the file `start` for a method with `initial`.
        """
        recipe, method = job.method.schedule, job.method
        check_precision(recipe.precision, device)
        torch.manual_seed(_stream(job.seed, _GLOBAL))
        backbone = job.backbone.initialise(job.seed)
        if (job.initial is None) != (start is None):
            raise MethodError(
                f"{type(method).__name__} {'has no `initial` training' if start else 'starts from other weights'} — "
                "pass `start` if and only if the method has `initial`"
            )
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
        generator = torch.Generator().manual_seed(_stream(job.seed, _ORDER))
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
        parts = {f"{stem}{SUFFIX}": self.network.state_dict()} | ({f"{stem}{EXTRAS}": extras} if extras else {})
        with self.weights():  # state_dict holds the tensors themselves, not copies
            return {name: write_weights(self.folder / name, state) for name, state in parts.items()}

    def save(self) -> None:
        """Write the state that a resumed training needs into one file, then delete weights that are no longer best."""
        if not self.team.leads:
            return
        state = {
            "digest": self.job.digest,
            "prepared": self.prepared.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "generator": self.generator.get_state(),
            "global": _global_states(self.device),
            "curve": [asdict(row) for row in self.curve],
            "best": self.best,
        }
        stream = io.BytesIO()
        torch.save(state, stream)
        write_atomically(self.folder / STATE, stream.getvalue(), write=write_sealed)
        best = self.best["files"] if self.best else {}
        for file in self.folder.glob(f"best-*{SUFFIX}"):
            if file.name not in best:
                file.unlink()

    def resume(self) -> bool:
        """Continue where an interrupted training stopped, and return whether there was one.

        A state that cannot be used is reported and ignored: the training then begins again, which costs time but not
        correctness.
        """
        state = self.team.broadcast(self._usable_state() if self.team.leads else None)
        if state is None:
            return False
        self.prepared.load_state_dict(state["prepared"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.restore(state["average"])
        self.generator.set_state(state["generator"])
        _set_global_states(state["global"], self.device)
        self.curve = [EpochRow(**row) for row in state["curve"]]
        self.best = state["best"]
        return True

    def _usable_state(self) -> dict[str, Any] | None:
        path = self.folder / STATE
        if not path.exists():
            return None
        state = _read(path)
        fault = _fault(state, self.job.digest, self.folder)
        if fault:
            logger.info(f"training {self.job}: '{path}' {fault} — training again from the start")
            return None
        return state


def drop_unfinished(folder: Path) -> None:
    """Delete state and weights of epochs, which a finished training does not need; errors are ignored."""
    for file in (f for name in (STATE, "best-*", f".{STATE}.*", ".best-*") for f in folder.glob(name)):
        with suppress(OSError):
            file.unlink()


def check_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError if a device cannot train at a precision."""
    able = {"fp32": True, "tf32": True, "bf16": device.type in ("cuda", "cpu"), "fp16": device.type == "cuda"}
    if not able[precision]:
        allowed = ", ".join(name for name, can in able.items() if can)
        raise ConfigError(
            f"training.recipe.precision={precision} is not possible on device '{device}' — choose {allowed}, or "
            "another runtime.device"
        )


def stream_of_rank(seed: int, step: int, rank: int) -> int:
    """Return the seed of the separate draws of one of several processes, from a step on."""
    return _stream(seed, _GLOBAL, step, rank)


def _stream(seed: int, *purpose: int) -> int:
    # Neighbouring seeds and the streams of one seed are unrelated; torch's own seeding is linear in the seed.
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _global_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_global_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = torch.load(io.BytesIO(read_sealed(path)), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, DamagedError, KeyError):
        return None
    return state if isinstance(state, dict) else None


def _fault(state: Mapping[str, Any] | None, digest: str, folder: Path) -> str:
    if state is None or "digest" not in state:
        return "cannot be read"
    if state["digest"] != digest:
        return "belongs to another training"
    for name, sha256 in state["best"]["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            return f"names weights '{name}' that are missing or altered"
    return ""


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
        live = _averaged(self._model)
        weights = {name: value.detach().clone() for name, value in live.items()}
        _copy(self._mean, live)
        try:
            yield
        finally:
            _copy(weights, live)

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"step": self.step, "mean": self._mean}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.step = state["step"]
        _copy(state["mean"], self._mean)


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are averaged, by name; a shared one comes once."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for path, part in model.named_modules():
        if isinstance(part, BatchNorm):
            tensors |= {f"{path}.{name}": value for name, value in part.named_buffers() if value.is_floating_point()}
    return tensors


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in target.items():
            value.copy_(source[name])


def write_atomically(path: Path, content: bytes, *, write: Callable[[Path, bytes], None] = write_whole) -> None:
    """Write a file of a checkpoint: readers see all of it or nothing.

    Args:
        path: the file.
        content: of it.
        write: how; `storage.checksum.write_sealed` adds a digest that is checked when the file is read.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        write(path, content)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{path}' cannot be written ({error.strerror or error}) — choose a writable folder with space: "
            "set OPENBENCH_CACHE or runtime.cache"
        ) from error


def write_weights(path: Path, state: Mapping[str, Tensor]) -> str:
    """Write tensors as safetensors and return the file's SHA-256, 64 hex digits."""
    # safetensors accepts neither shared storage nor other strides, and weights here are laid out channels last.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    write_atomically(path, save(plain))
    return file_sha256(path)


@dataclass(frozen=True)
class TrainingResult:
    """How a training went.

    Args:
        curve: one row per epoch.
        best_epoch: counted from 1.
        files: file name in the folder → SHA-256: weights of the best and the last epoch.
        resumed_after: epochs that an earlier, interrupted process had finished.
        seconds: wall time of all epochs.
    """

    curve: tuple[EpochRow, ...]
    best_epoch: int
    files: dict[str, str]
    resumed_after: int
    seconds: float


def write_job(folder: Path, job: TrainingJob) -> None:
    """Write `job.json`: what is trained, readable, with the digest that names the folder."""
    content = {
        "digest": job.digest,
        "backbone": job.backbone.name,
        "benchmark": job.benchmark,
        "images": {"id_train": len(job.id_train), "id_val": len(job.id_val)},
        **job.identity(),
    }
    write_atomically(folder / JOB, stated(readable(content)))


def write_finished(folder: Path, job: TrainingJob, result: TrainingResult, device: torch.device) -> None:
    """Write `finished.json`, the marker that every file is there; it must come last."""
    best = result.curve[result.best_epoch - 1]
    content = {
        "digest": job.digest,
        "files": result.files,
        "selection": job.method.selection,
        "best_epoch": result.best_epoch,
        "best_val_accuracy": best.val_accuracy,
        "last_val_accuracy": result.curve[-1].val_accuracy,
        "epochs": len(result.curve),
        "seconds": result.seconds,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "openbench": __version__,
        "torch": torch.__version__,
        "made": made_now(),
    }
    write_atomically(folder / FINISHED, stated(readable(content)))


def read_finished(folder: Path) -> dict[str, Any] | None:
    """Return the content of `finished.json`, or None if the training has not ended.

    Raises:
        CheckpointError: the file, or `job.json` beside it, is there but is not what was written.
    """
    path = folder / FINISHED
    try:
        content = read_stated(path)
        with suppress(FileNotFoundError):  # no code needs it; people read it
            read_stated(folder / JOB)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise CheckpointError(
            f"{error} — delete the folder '{folder}', or train again with runtime.train=force"
        ) from error
    if not isinstance(content.get("files"), dict):
        raise CheckpointError(f"'{path}' was altered and names no files — delete the folder and train again")
    return content
