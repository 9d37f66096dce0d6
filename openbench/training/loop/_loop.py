"""The training loop of every method and network, from the seed to the weights of the best epoch."""

import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from openbench import __version__
from openbench.backbones.base import HALVES, Precision, arithmetic, check_precision
from openbench.core.runtime import Runtime
from openbench.digest import file_sha256
from openbench.errors import ConfigError, MethodError, TrainingError, pip_install
from openbench.progress import Report
from openbench.source import made_now
from openbench.storage.checksum import DamagedError, read_sealed, stated, write_sealed
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training._images import ImageSet
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
    """Return a picture of loss, learning rate and validation accuracy, with a line at the best epoch."""
    # Imported here, since it takes half a second and only a finished training needs it.
    from matplotlib.figure import Figure

    figure, curve = Figure(figsize=(7, 6), layout="constrained"), pd.DataFrame(rows)
    labels = {"loss": "training loss", "lr": "learning rate", "val_accuracy": "ID validation accuracy"}
    for axes, (name, label) in zip(figure.subplots(3, 1, sharex=True), labels.items(), strict=True):
        axes.plot(curve.epoch, curve[name], marker="o" if len(rows) < 20 else None)
        axes.axvline(best_epoch, color="C3", linewidth=1)
        axes.set(ylabel=label, xlabel="epoch" if name == "val_accuracy" else "")
    figure.suptitle(f"{title}\nkept: epoch {best_epoch}, {100 * rows[best_epoch - 1].val_accuracy:.2f} %")
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


def train(job: TrainingJob, folder: Path, runtime: Runtime, start: Path | None = None, team: Team = ALONE) -> "Session":
    """Train a job to its end in `folder`, continuing where an interrupted process stopped; return the session.

    On one machine's CPU with one number of threads the weights are the same bit for bit, interrupted or not. The
    global random state is left as it was. The backbone's own weights are those of the last step afterwards.

    Several processes divide every batch: order, augmentation and mixing are drawn alike in each, batch norm sees the
    whole batch, gradients are averaged. The result differs from one process's only by the rounding of sums, unless the
    network or the method draws in its forward pass (dropout): each process draws for its own images.

    Args:
        job: what is trained.
        folder: receives state after every epoch, then weights, `curve.csv`, `curve.png`; no other process may use it.
        runtime: device, workers and progress; another device rounds differently.
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
        content = {"digest": job.digest, "backbone": job.backbone.name, "benchmark": job.benchmark}
        images = {"images": {"id_train": len(job.id_train), "id_val": len(job.id_val)}}
        write_whole(folder / JOB, stated(readable(content | images | job.identity())))
    precision: Precision = "tf32" if recipe.precision == "tf32" else "fp32"
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(arithmetic(precision, device))
        session = Session(job, folder, runtime, start, team)
        stack.enter_context(sync_batch_norm(session.prepared, team))
        done, total = (epochs * session.per_epoch for epochs in (session.resumed_after, recipe.epochs))
        show = runtime.progress and team.leads
        report = stack.enter_context(Report(f"train {job}", total, done=done, unit="steps", show=show))
        events = stack.enter_context(events_in(folder, session.curve)) if runtime.tensorboard and team.leads else None
        for _ in range(session.resumed_after, recipe.epochs):
            session.epoch(report)
            if events is not None:
                add_scalars(events, session.curve[-1])
    if team.leads:
        session.finish()
    return session


class Session:
    """A training in progress: resumed where an interrupted process stopped, else at epoch 0 with weights of the seed.

    Global generators are seeded for dropout and heads.

    Args:
        job: what is trained.
        folder: where state and weights go.
        runtime: device and workers.
        start: the weights to begin with for a method with `initial`; None: fresh ones from the seed.
        team: the processes that train together; the first one writes.

    Attributes:
        device: where the network is.
        network: the backbone's own module.
        prepared: the module that the method's `prepare` returned.
        generator: order, augmentation, the method's draws; on the CPU.
        average: of the weights, if the recipe has one; it is validated and saved in place of the weights.
        curve: the epochs that are over.
        best: the best epoch so far: `epoch` (from 1), `value` (larger is better), `files` (name → SHA-256).
        resumed_after: epochs that an earlier, interrupted process had finished.
        files: file name in the folder → SHA-256, once the training has ended: weights of the best and the last epoch.
    """

    def __init__(self, job: TrainingJob, folder: Path, runtime: Runtime, start: Path | None, team: Team) -> None:
        self.job, self.folder, self.team = job, folder, team
        self.device = device = team.device(runtime.device)
        self.method, self.recipe = method, recipe = job.method, job.method.schedule
        check_precision(recipe.precision, device, "training.recipe.precision")
        torch.manual_seed(stream(job.seed, _GLOBAL))
        backbone = job.backbone.initialise(job.seed)
        self.network = (backbone if start is None else backbone.load(start)).to(device).module()
        prepared = method.prepare(self.network, backbone.feature_dim, backbone.num_classes).to(device)
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.prepared: nn.Module = prepared.to(memory_format=layout)  # type: ignore[call-overload]
        if not any(part is self.network for part in self.prepared.modules()):
            raise MethodError(f"{type(method).__name__}.prepare returned a module without the network")
        groups = [{"lr_scale": 1.0, "lr_constant": False, **group} for group in method.parameter_groups(self.prepared)]
        self.optimiser = torch.optim.SGD(
            groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
        )
        self.parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.generator = torch.Generator().manual_seed(stream(job.seed, _ORDER))
        self.average = None if recipe.ema is None else EMA(self.prepared, recipe.ema)
        self.curve: list[EpochRow] = []
        self.best: dict[str, Any] | None = None
        self.files: dict[str, str] = {}
        self._resume()
        self.resumed_after = len(self.curve)
        where = (backbone.preprocess, device, runtime.workers)
        outliers = None if job.ood_train is None else ImageSet(job.ood_train, *where, recipe.reading)
        self.data = TrainingData(ImageSet(job.id_train, *where, recipe.reading), outliers)
        self.validation = ImageSet(job.id_val, *where)
        self.per_epoch = recipe.steps_per_epoch(len(self.data.train))
        if team.size > 1:
            # The wrapper waits for a gradient of every parameter that requires one; an unused classifier gets none.
            learning = set(self.parameters)
            for parameter in self.prepared.parameters():
                parameter.requires_grad_(parameter in learning)
        self.objective = team.wrap(Objective(method, self.prepared))

    def epoch(self, report: Report) -> None:
        """Take the steps of the next epoch, validate, save the weights if they are best, save the state."""
        epoch, start = len(self.curve), time.perf_counter()
        if self.team.size > 1:
            # Only one process's state is saved: the others' dropout follows from step and rank.
            torch.manual_seed(self._own_seed(epoch * self.per_epoch))
        self.method.on_epoch_start(self.prepared, self._info(epoch, 0), self.data)
        loss, images = self._steps(epoch, report)
        speed = images / (time.perf_counter() - start)
        with self.weights():
            accuracy = accuracy_of(self.prepared, self.validation, self._autocast, self.team)
        step = (epoch + 1) * self.per_epoch
        rate = self.recipe.learning_rate(step - 1, self.per_epoch)
        row = EpochRow(epoch + 1, step, rate, loss, accuracy, speed, time.perf_counter() - start)
        self.curve.append(row)
        if self.team.leads:
            value = accuracy if self.method.selection == "val_accuracy" else -loss
            if self.best is None or value >= self.best["value"]:
                # Under a new name: until `_save` has recorded it, an interrupted training resumes with the former best.
                self.best = {"epoch": epoch + 1, "value": value, "files": self._write_weights(f"best-{epoch + 1}")}
            self._save()
            write_whole(self.folder / "curve.csv", as_csv(self.curve))
        report.to(step, f"epoch {epoch + 1}, {self._told(loss, speed)}", seconds=1.0)

    def _told(self, loss: float, images_per_second: float) -> str:
        """What is said beside the steps: loss, the last epoch's accuracy, and speed."""
        accuracy = f", val accuracy {100 * self.curve[-1].val_accuracy:.2f} %" if self.curve else ""
        return f"loss {loss:.4f}{accuracy}, {images_per_second:,.0f} images/s"

    def _own_seed(self, step: int) -> int:
        """The seed of the separate draws of one of several processes, from a step on."""
        return stream(self.job.seed, _GLOBAL, step, self.team.rank)

    def _info(self, epoch: int, index: int) -> StepInfo:
        step, epochs = epoch * self.per_epoch + index, self.recipe.epochs
        return StepInfo(epoch, epochs, step, epochs * self.per_epoch, self.generator)

    def _steps(self, epoch: int, report: Report) -> tuple[float, int]:
        """Take the steps of an epoch; return the mean loss over its images, and their number."""
        start, first = time.perf_counter(), epoch * self.per_epoch
        self.prepared.train()
        losses = torch.zeros(self.per_epoch, device=self.device)
        counts = torch.zeros(self.per_epoch)
        checked = 0
        for i, (count, batches) in enumerate(self._batches(epoch)):
            losses[i], counts[i] = self._step(batches, self._info(epoch, i)), count
            if self.average is not None:
                self.average.update()
            if (i + 1) % _CHECK_EVERY == 0 or i + 1 == self.per_epoch:
                losses[checked : i + 1] = self.team.sum(losses[checked : i + 1]) / self.team.size
                self._check_finite(losses[checked : i + 1], first + checked)
                checked, done = i + 1, int(counts.sum())
                mean = float((losses[:checked].cpu() * counts[:checked]).sum()) / done
                if first + checked < report.total:
                    told = self._told(mean, done / (time.perf_counter() - start))
                    report.to(first + checked, told, seconds=20.0)
        return mean, done

    def _batches(self, epoch: int) -> Iterator[tuple[int, list[Batch]]]:
        """Yield for each step the number of different images, and the batches whose losses are summed."""
        team, generator, data, recipe = self.team, self.generator, self.data, self.recipe
        order = torch.randperm(len(data.train), generator=generator)
        rows = [part.repeat(self.method.views) for part in torch.split(order, recipe.batch_size)][: self.per_epoch]
        # The image that is mixed with this one may belong to another process.
        share = None if team.size == 1 or recipe.mixing is not None else team.share
        outlier_rows: Sequence[Tensor] = ()
        if data.outliers is not None:
            # A permutation, and further ones if there are too few outliers.
            size = self.method.outlier_batch_size
            rounds = -(-self.per_epoch * size // len(data.outliers))
            orders = [torch.randperm(len(data.outliers), generator=generator) for _ in range(rounds)]
            outlier_rows = torch.split(torch.cat(orders), size)[: self.per_epoch]
        stored = data.train.epoch(rows, generator, share)
        outliers = None if data.outliers is None else data.outliers.epoch(outlier_rows, generator, share)
        for i, (own, pixels) in enumerate(zip(rows, stored, strict=True)):
            info, pixels = self._info(epoch, i), self._augmented(pixels)
            others = [] if recipe.consistency is None else recipe.consistency.versions(pixels, generator)
            images, *versions = (self._normalised(data.train, part) for part in (pixels, *others))
            labels = data.train.labels[own.to(self.device)]
            batch = Batch(images, labels, own, info, versions=tuple(versions))
            if data.outliers is not None and outliers is not None:
                outlying = self._normalised(data.outliers, self._augmented(next(outliers)))
                batch = replace(batch, outliers=outlying, outlier_rows=outlier_rows[i])
            batches = batch.mixed(recipe.mixing)
            if team.size > 1:
                # A loss may draw as many numbers as it has images; the common generator must stay the same everywhere.
                info = replace(info, generator=torch.Generator().manual_seed(self._own_seed(info.step)))
                batches = [part.part(team.share(len(own)), team.size, info) for part in batches]
            yield len(own) // self.method.views, batches

    def _augmented(self, pixels: Tensor) -> Tensor:
        for augmentation in self.recipe.augmentations:
            pixels = augmentation(pixels, self.generator)
        return pixels

    def _normalised(self, images: ImageSet, pixels: Tensor) -> Tensor:
        normalised = images.normalised(pixels)
        return normalised if self.recipe.channels_last else normalised.contiguous()

    def _step(self, batches: list[Batch], info: StepInfo) -> Tensor:
        """Take one step; return the loss, still on the device."""
        rate = self.recipe.learning_rate(info.step, self.per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = group["lr_scale"] * (self.recipe.lr if group["lr_constant"] else rate)
        with self._autocast():
            loss: Tensor = self.objective(batches)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimiser)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.method.on_step_end(self.prepared, info)
        return loss.detach()

    def _check_finite(self, losses: Tensor, first: int) -> None:
        """Raise TrainingError unless the losses of the steps from `first` on are finite."""
        for step, loss in enumerate(losses.tolist(), start=first):
            if not math.isfinite(loss):
                epoch, i = divmod(step, self.per_epoch)
                rate = self.recipe.learning_rate(step, self.per_epoch)
                raise TrainingError(
                    f"training {self.job}: the loss is {loss} at step {step + 1} of "
                    f"{self.recipe.epochs * self.per_epoch} (epoch {epoch + 1}, batch {i + 1}, learning rate "
                    f"{rate:.4g}) — lower training.recipe.lr, set training.recipe.clip=1.0 or "
                    "training.recipe.warmup_epochs=1"
                )

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = HALVES.get(self.recipe.precision)
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def weights(self) -> AbstractContextManager[None]:
        """Return a context in which the network has the weights to save: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    def _write_weights(self, stem: str) -> dict[str, str]:
        """Write the network's weights, and what the method added to it if anything; return file name → SHA-256."""
        prefix = next(name for name, part in self.prepared.named_modules() if part is self.network)
        within = f"{prefix}." if prefix else ""
        files = {}
        with self.weights():  # state_dict holds the tensors themselves, not copies
            extras = {k: v for k, v in self.prepared.state_dict().items() if not k.startswith(within)}
            for suffix, state in ((SUFFIX, self.network.state_dict()), (EXTRAS, extras)):
                if state:
                    path = self.folder / f"{stem}{suffix}"
                    # safetensors accepts neither shared storage nor other strides; weights are laid out channels last.
                    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
                    write_whole(path, save(plain))
                    files[path.name] = file_sha256(path)
        return files

    def _save(self) -> None:
        """Write the state that a resumed training needs into one file, then delete weights that are no longer best."""
        generators = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "digest": self.job.digest,
            "prepared": self.prepared.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "generator": self.generator.get_state(),
            "global": generators,
            "curve": [asdict(row) for row in self.curve],
            "best": self.best,
        }
        content = io.BytesIO()
        torch.save(state, content)
        write_sealed(self.folder / STATE, content.getvalue())
        best = self.best["files"] if self.best else {}
        for file in self.folder.glob(f"best-*{SUFFIX}"):
            if file.name not in best:
                file.unlink()

    def _resume(self) -> None:
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
        self.curve, self.best = [EpochRow(**row) for row in state["curve"]], state["best"]

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

    def finish(self) -> None:
        """Name the best weights, draw the curve, write the finished marker, and delete files no longer needed."""
        folder, best, curve = self.folder, self.best, self.curve
        if best is None:
            raise RuntimeError("a training ended without an epoch")
        self.files = self._write_weights("last")
        for name, sha256 in best["files"].items():
            final = name.replace(f"best-{best['epoch']}", "best", 1)
            write_whole(folder / final, (folder / name).read_bytes())
            self.files[final] = sha256
        # Written here too: a process killed between its last state and that epoch's curve runs no more epochs.
        write_whole(folder / "curve.csv", as_csv(curve))
        write_whole(folder / "curve.png", as_png(curve, str(self.job), best["epoch"]))
        content = {
            "digest": self.job.digest,
            "files": self.files,
            "selection": self.method.selection,
            "best_epoch": best["epoch"],
            "best_val_accuracy": curve[best["epoch"] - 1].val_accuracy,
            "last_val_accuracy": curve[-1].val_accuracy,
            "epochs": len(curve),
            "seconds": sum(row.seconds for row in curve),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
            "openbench": __version__,
            "torch": torch.__version__,
            "made": made_now(),
        }
        write_whole(folder / FINISHED, stated(readable(content)))
        # Last: a process killed before the marker is written can still resume.
        for file in (file for name in (STATE, "best-*", f".{STATE}.*", ".best-*") for file in folder.glob(name)):
            file.unlink()


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
                where, shape = f"{type(self.method).__name__}.loss", tuple(loss.shape)
                raise MethodError(f"{where} returned a tensor of shape {shape} — return a scalar, the mean")
            if self.consistency is not None:
                images = (batch.images, *batch.versions)
                loss = loss + self.consistency.loss(self.prepared(torch.cat(images)).chunk(len(images)))
            losses.append(batch.weight * loss)
        return torch.stack(losses).sum()
