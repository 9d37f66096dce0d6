"""The training loop of every method and network, from the seed to the weights of the best epoch."""

import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from openbench import __version__
from openbench.backbones.anatomy import last_linear
from openbench.backbones.device import HALVES, Precision, arithmetic, check_precision
from openbench.core.runtime import Runtime
from openbench.digest import file_sha256
from openbench.errors import ConfigError, MethodError, TrainingError, pip_install
from openbench.progress import Report
from openbench.source import made_now
from openbench.storage.checksum import DamagedError, read_sealed, stated, write_sealed
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training._images import ImageSet
from openbench.training.augment.augmentations import Mixing
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingJob, TrainingMethod
from openbench.training.loop.distributed import ALONE, BatchNorm, Team, sync_batch_norm

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

JOB, FINISHED = "job.json", "finished.json"
# Reading a loss waits for the device; reading it now and then is enough to stop a training that has diverged.
_CHECK_EVERY = 32
logger = logging.getLogger(__name__)

STATE = "state.pt"
SUFFIX, EXTRAS = ".safetensors", ".extras.safetensors"
_ORDER, _GLOBAL = 1, 2


@dataclass(frozen=True)
class EpochRow:
    """The results of one epoch.

    Args:
        epoch: counted from 1.
        step: steps taken so far.
        lr: learning rate of the epoch's last step.
        loss: mean training loss over the epoch's images.
        val_accuracy: on the ID validation split after the epoch, in [0, 1].
        images_per_second: training images, validation excluded.
        seconds: wall time of the epoch, validation included.
    """

    epoch: int
    step: int
    lr: float
    loss: float
    val_accuracy: float
    images_per_second: float
    seconds: float


def as_csv(rows: Sequence[EpochRow]) -> bytes:
    """Return the rows as CSV with a header, one line per epoch."""
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode()


def as_png(rows: Sequence[EpochRow], title: str, best_epoch: int) -> bytes:
    """Return a picture: loss and learning rate above, validation accuracy and the best epoch below."""
    # Imported here, since it takes half a second and only a finished training needs it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    curve = pd.DataFrame(rows)
    marker = "o" if len(rows) < 20 else None
    above.plot(curve.epoch, curve.loss, color="C0", marker=marker)
    above.set_ylabel("training loss", color="C0")
    rates = above.twinx()
    rates.plot(curve.epoch, curve.lr, color="C7", linestyle="--")
    rates.set_ylabel("learning rate", color="C7")
    below.plot(curve.epoch, 100 * curve.val_accuracy, color="C2", marker=marker)
    below.axvline(best_epoch, color="C3", linewidth=1)
    kept = f"kept: epoch {best_epoch}, {100 * rows[best_epoch - 1].val_accuracy:.2f} %"
    below.set_title(kept, loc="right", fontsize="medium")
    below.set(xlabel="epoch", ylabel="ID validation accuracy, %")
    figure.suptitle(title)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def events_in(folder: Path, rows: Sequence[EpochRow]) -> "SummaryWriter":
    """Return a writer of events for TensorBoard that has the rows, in place of what an interrupted process wrote.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    # Imported here, since it takes two seconds and only users who ask for it have it installed.
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"runtime.tensorboard=true, but {error} — {pip_install('tensorboard')}") from error
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
    for row in rows:
        add_scalars(writer, row)
    return writer


def add_scalars(writer: "SummaryWriter", row: EpochRow) -> None:
    """Write an epoch's numbers."""
    for name in ("loss", "lr", "val_accuracy", "images_per_second"):
        writer.add_scalar(name, getattr(row, name), row.step)
    writer.flush()


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
            groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
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


def train(job: TrainingJob, folder: Path, runtime: Runtime, start: Path | None = None, team: Team = ALONE) -> Session:
    """Train a job to its end in `folder`, continuing where an interrupted process stopped; return the session.

    On one machine's CPU with one number of threads the weights are the same bit for bit, interrupted or not. The
    global random state is left as it was. The backbone's own weights are those of the last step afterwards.

    Several processes divide every batch: order, augmentation and mixing are drawn alike in each, batch norm sees the
    whole batch, gradients are averaged. The result differs from one process's only by the rounding of sums, unless the
    network or the method draws in its forward pass (dropout): each process draws for its own images.

    Args:
        job: what is trained.
        folder: receives state after every epoch, then weights, `curve.csv`, `curve.png`; no other process may use it.
        runtime: device, workers, progress and compile; another device rounds differently.
        start: the weights of the method's `initial` training, where it has one.
        team: the processes that train together; gradients are then summed in another order.

    Raises:
        MethodError: the method breaks its contract.
        TrainingError: a loss that is not finite; the message names the step.
        ConfigError: a precision that the device cannot train at.
        OSError: the folder cannot be written.
    """
    recipe, device = job.method.schedule, team.device(runtime.device)
    if team.leads:
        write_job(folder, job)
    devices = [device] if device.type == "cuda" else []
    precision: Precision = "tf32" if recipe.precision == "tf32" else "fp32"
    with torch.random.fork_rng(devices=devices), arithmetic(precision, device), ExitStack() as stack:
        session = Session.begin(job, folder, device, start, team)
        session.resume()
        loop = _Loop(session, runtime.workers)
        stack.enter_context(sync_batch_norm(session.prepared, team))
        if runtime.compile:
            stack.enter_context(compiled(session.network))
        done, total = loop.step_at(session.resumed_after), loop.step_at(recipe.epochs)
        show = runtime.progress and team.leads
        report = stack.enter_context(Report(f"train {job}", total, done=done, unit="steps", show=show))
        events = stack.enter_context(events_in(folder, session.curve)) if runtime.tensorboard and team.leads else None
        for epoch in range(session.resumed_after, recipe.epochs):
            loop.epoch(epoch, report)
            if events is not None:
                add_scalars(events, session.curve[-1])
    if team.leads:
        _finish(session)
    return session


class _Loop:
    """The epochs of a session."""

    def __init__(self, session: Session, workers: int) -> None:
        job = session.job
        self.session, self.method, self.recipe = session, job.method, job.method.schedule
        reading, where = self.recipe.reading, (job.backbone.preprocess, session.device, workers)
        outliers = None if job.ood_train is None else ImageSet(job.ood_train, *where, reading)
        self.data = TrainingData(ImageSet(job.id_train, *where, reading), outliers)
        self.validation = ImageSet(job.id_val, *where)
        self.per_epoch = self.recipe.steps_per_epoch(len(self.data.train))
        self.parameters = [p for group in session.optimiser.param_groups for p in group["params"]]
        if session.team.size > 1:
            # The wrapper waits for a gradient of every parameter that requires one; an unused classifier gets none.
            learning = set(self.parameters)
            for parameter in session.prepared.parameters():
                parameter.requires_grad_(parameter in learning)
        self.objective = session.team.wrap(Objective(self.method, session.prepared))

    def step_at(self, epoch: int) -> int:
        """The number of steps before an epoch."""
        return epoch * self.per_epoch

    def epoch(self, epoch: int, report: Report) -> None:
        """Take the steps of an epoch, validate, save the weights if they are best, save the state."""
        session, start = self.session, time.perf_counter()
        if session.team.size > 1:
            # Only one process's state is saved: the others' dropout follows from step and rank.
            torch.manual_seed(stream_of_rank(session.job.seed, self.step_at(epoch), session.team.rank))
        self.method.on_epoch_start(session.prepared, self._info(epoch, 0), self.data)
        loss, images = self._steps(epoch, report)
        spent = time.perf_counter() - start
        with session.weights():
            accuracy = accuracy_of(session.prepared, self.validation, self._autocast, session.team)
        row = EpochRow(
            epoch=epoch + 1,
            step=self.step_at(epoch + 1),
            lr=self.recipe.learning_rate(self.step_at(epoch + 1) - 1, self.per_epoch),
            loss=loss,
            val_accuracy=accuracy,
            images_per_second=images / spent,
            seconds=time.perf_counter() - start,
        )
        session.curve.append(row)
        session.save_if_best(accuracy if self.method.selection == "val_accuracy" else -loss)
        session.save()
        if session.team.leads:
            write_whole(session.folder / "curve.csv", as_csv(session.curve))
        report.to(row.step, f"epoch {row.epoch}, {self._state(loss, row.images_per_second)}", seconds=1.0)

    def _state(self, loss: float, images_per_second: float) -> str:
        """What is said beside the steps: loss, the last epoch's accuracy, and speed."""
        accuracy = f", val accuracy {100 * self.session.curve[-1].val_accuracy:.2f} %" if self.session.curve else ""
        return f"loss {loss:.4f}{accuracy}, {images_per_second:,.0f} images/s"

    def _steps(self, epoch: int, report: Report) -> tuple[float, int]:
        """Take the steps of an epoch; return the mean loss over its images, and their number."""
        session, start, first = self.session, time.perf_counter(), self.step_at(epoch)
        session.prepared.train()
        losses = torch.zeros(self.per_epoch, device=session.device)
        counts = torch.zeros(self.per_epoch)
        checked = 0
        for i, (rows, pixels, outlier_rows, outliers) in enumerate(self._batches()):
            info = self._info(epoch, i)
            losses[i] = self._step(self._parts(rows, pixels, outlier_rows, outliers, info), info)
            counts[i] = len(rows) // self.method.views
            if session.average is not None:
                session.average.update()
            if (i + 1) % _CHECK_EVERY == 0 or i + 1 == self.per_epoch:
                losses[checked : i + 1] = session.team.sum(losses[checked : i + 1]) / session.team.size
                self._check_finite(losses[checked : i + 1], first + checked)
                checked, done = i + 1, int(counts.sum())
                mean = float((losses[:checked].cpu() * counts[:checked]).sum()) / done
                if first + checked < report.total:
                    state = self._state(mean, done / (time.perf_counter() - start))
                    report.to(first + checked, state, seconds=20.0)
        return mean, done

    def _batches(self) -> "Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]":
        """Return rows and stored images of each of an epoch's batches, and of its outliers; these may be empty."""
        team, generator, data = self.session.team, self.session.generator, self.data
        order = torch.randperm(len(data.train), generator=generator)
        batches = [rows.repeat(self.method.views) for rows in torch.split(order, self.recipe.batch_size)][
            : self.per_epoch
        ]
        # The image that is mixed with this one may belong to another process.
        share = None if team.size == 1 or self.recipe.mixing is not None else team.share
        none = torch.zeros(0, dtype=torch.int64)
        if data.outliers is None:
            pixels = data.train.epoch(batches, generator, share)
            return ((rows, images, none, none) for rows, images in zip(batches, pixels, strict=True))
        # A permutation, and further ones if there are too few outliers.
        size = self.method.outlier_batch_size
        rounds = -(-self.per_epoch * size // len(data.outliers))
        orders = [torch.randperm(len(data.outliers), generator=generator) for _ in range(rounds)]
        outliers = torch.split(torch.cat(orders), size)[: self.per_epoch]
        pixels = data.train.epoch(batches, generator, share)
        return zip(batches, pixels, outliers, data.outliers.epoch(outliers, generator, share), strict=True)

    def _parts(
        self, rows: Tensor, pixels: Tensor, outlier_rows: Tensor, outliers: Tensor, info: StepInfo
    ) -> list[Batch]:
        """Return the batches whose losses are summed, or this process's parts of them with a separate generator."""
        generator, data, consistency = self.session.generator, self.data, self.recipe.consistency
        pixels = self._augmented(pixels)
        others = [] if consistency is None else consistency.versions(pixels, generator)
        images, *versions = (self._in_layout(data.train.normalised(p)) for p in (pixels, *others))
        labels = data.train.labels[rows.to(self.session.device)]
        batch = Batch(images, labels, rows, info, versions=tuple(versions))
        if data.outliers is not None:
            normalised = self._in_layout(data.outliers.normalised(self._augmented(outliers)))
            batch = replace(batch, outliers=normalised, outlier_rows=outlier_rows)
        batches, team = mixed(batch, self.recipe.mixing), self.session.team
        if team.size == 1:
            return batches
        # The draws of a loss may depend on its number of images; the common generator must stay the same everywhere.
        seed = stream_of_rank(self.session.job.seed, info.step, team.rank)
        info = replace(info, generator=torch.Generator().manual_seed(seed))
        return [batch.part(team.share(len(rows)), team.size, info) for batch in batches]

    def _augmented(self, pixels: Tensor) -> Tensor:
        for augmentation in self.recipe.augmentations:
            pixels = augmentation(pixels, self.session.generator)
        return pixels

    def _step(self, batches: list[Batch], info: StepInfo) -> Tensor:
        """Take one step; return the loss, still on the device."""
        optimiser, scaler = self.session.optimiser, self.session.scaler
        rate = self.recipe.learning_rate(info.step, self.per_epoch)
        for group in optimiser.param_groups:
            group["lr"] = group["lr_scale"] * (self.recipe.lr if group["lr_constant"] else rate)
        with self._autocast():
            loss: Tensor = self.objective(batches)
        optimiser.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip is not None:
            scaler.unscale_(optimiser)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        scaler.step(optimiser)
        scaler.update()
        self.method.on_step_end(self.session.prepared, info)
        return loss.detach()

    def _check_finite(self, losses: Tensor, first: int) -> None:
        """Raise TrainingError unless the losses of the steps from `first` on are finite."""
        for step, loss in enumerate(losses.tolist(), start=first):
            if not math.isfinite(loss):
                epoch, i = divmod(step, self.per_epoch)
                rate = self.recipe.learning_rate(step, self.per_epoch)
                raise TrainingError(
                    f"training {self.session.job}: the loss is {loss} at step {step + 1} of "
                    f"{self.step_at(self.recipe.epochs)} (epoch {epoch + 1}, batch {i + 1}, learning rate {rate:.4g}) "
                    "— lower training.recipe.lr, set training.recipe.clip=1.0 or training.recipe.warmup_epochs=1"
                )

    def _info(self, epoch: int, index: int) -> StepInfo:
        step, epochs = self.step_at(epoch) + index, self.recipe.epochs
        return StepInfo(epoch, epochs, step, self.step_at(epochs), self.session.generator)

    def _in_layout(self, images: Tensor) -> Tensor:
        return images if self.recipe.channels_last else images.contiguous()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = HALVES.get(self.recipe.precision)
        return torch.autocast(self.session.device.type, dtype, enabled=dtype is not None)


def accuracy_of(
    model: nn.Module, images: ImageSet, autocast: Callable[[], AbstractContextManager[object]], team: Team = ALONE
) -> float:
    """Return the share of images whose largest logit is that of their label, in eval mode, without augmentation."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=images.labels.device)
    with torch.no_grad(), autocast():
        for number, (batch, labels, _) in enumerate(images.clean()):
            if number % team.size == team.rank:
                right += (model(batch).argmax(dim=1) == labels).sum()
    return int(team.sum(right)) / len(images)


def write_job(folder: Path, job: TrainingJob) -> None:
    """Write `job.json`: what is trained, for people, with the digest that names the folder."""
    content = {
        "digest": job.digest,
        "backbone": job.backbone.name,
        "benchmark": job.benchmark,
        "images": {"id_train": len(job.id_train), "id_val": len(job.id_val)},
        **job.identity(),
    }
    write_whole(folder / JOB, stated(readable(content)))


def _finish(session: Session) -> None:
    """Name the best weights, draw the curve, write the finished marker, and delete files that are no longer needed."""
    folder, best = session.folder, session.best
    if best is None:
        raise RuntimeError("a training ended without an epoch")
    files = session.files = session.write_weights("last")
    for name, sha256 in best["files"].items():
        final = name.replace(f"best-{best['epoch']}", "best", 1)
        write_whole(folder / final, (folder / name).read_bytes())
        files[final] = sha256
    # Written here too: a process killed after its last state, but before the curve of that epoch, runs no more epochs.
    curve, device = session.curve, session.device
    write_whole(folder / "curve.csv", as_csv(curve))
    write_whole(folder / "curve.png", as_png(curve, str(session.job), best["epoch"]))
    content = {
        "digest": session.job.digest,
        "files": files,
        "selection": session.job.method.selection,
        "best_epoch": best["epoch"],
        "best_val_accuracy": curve[best["epoch"] - 1].val_accuracy,
        "last_val_accuracy": curve[-1].val_accuracy,
        "epochs": len(curve),
        "seconds": sum(row.seconds for row in curve),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "openbench": __version__,
        "torch": torch.__version__,
        "made": made_now(),
    }
    write_whole(folder / FINISHED, stated(readable(content)))
    # Last: a process killed before the marker is written can still resume.
    for file in (file for name in (STATE, "best-*", f".{STATE}.*", ".best-*") for file in folder.glob(name)):
        file.unlink()


def mixed(batch: Batch, mixing: Mixing | None) -> list[Batch]:
    """Return the batches whose losses are summed: the batch, or its mixed images and, if they weigh, its clean ones."""
    if mixing is None:
        return [batch]
    result = mixing(batch.images, batch.info.generator)
    partners = batch.labels[result.partners.to(batch.labels.device)]
    one = replace(batch, images=result.images, partners=partners, share=result.share)
    return [one] if mixing.clean_weight == 0 else [one, replace(batch, weight=mixing.clean_weight)]


class Objective(nn.Module):
    """The loss of a method.

    Args:
        method: gives the loss of a batch.
        prepared: the module that its `prepare` returned.
    """

    def __init__(self, method: TrainingMethod, prepared: nn.Module) -> None:
        super().__init__()
        self.method, self.prepared = method, prepared
        self.consistency = method.schedule.consistency

    def forward(self, batches: Sequence[Batch]) -> Tensor:
        """Return Σ weight·loss, a scalar.

        Raises:
            MethodError: the method's loss is not a scalar.
        """
        losses = []
        for batch in batches:
            loss = self.method.loss(self.prepared, batch)
            if loss.ndim != 0:
                raise MethodError(
                    f"{type(self.method).__name__}.loss returned a tensor of shape {tuple(loss.shape)} — "
                    "return a scalar, the mean over the batch"
                )
            if self.consistency is not None:
                images = (batch.images, *batch.versions)
                loss = loss + self.consistency.loss(self.prepared(torch.cat(images)).chunk(len(images)))
            losses.append(batch.weight * loss)
        return torch.stack(losses).sum()


@contextmanager
def compiled(network: nn.Module) -> Iterator[None]:
    """Compile the network's stages with `torch.compile` while the body runs.

    Each child is compiled separately, except the one that holds the classifier: methods read features by hooks at the
    classifier, and a network compiled as a whole would skip them. Random numbers stay those of the uncompiled network;
    sums are fused, so they round differently. A part with a forward pass of its own, in place of its class's, keeps it.

    Args:
        network: the backbone's own module; afterwards it is as before, except for its weights.

    Raises:
        ConfigError: torch's compiler failed.
    """
    head = last_linear(network)
    parts = [part for name, part in network.named_children() if not f"{head}.".startswith(f"{name}.")]
    parts = [part for part in parts if any(True for _ in part.parameters()) and "forward" not in vars(part)]
    for part in parts:
        part.forward = torch.compile(_with_code_object(part), options={"fallback_random": True})
    try:
        yield
    except RuntimeError as error:
        if "dynamo" not in type(error).__module__:  # the network's own, such as lack of memory
            raise
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"torch.compile failed: {reason} — leave runtime.compile out") from error
    finally:
        for part in parts:
            del part.forward


def _with_code_object(part: nn.Module) -> MethodType:
    """A part's forward with its own code object, since torch keeps a limited number of compiled versions for each.

    Parts that share a code object, as all Sequentials do, would exceed the limit, and the last would not be compiled.
    """

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        return type(self).forward(self, *arguments, **named)

    forward.__code__ = forward.__code__.replace()
    return MethodType(forward, part)
