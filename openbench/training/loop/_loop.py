"""The training loop of every method and network, from the seed to the weights of the best epoch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from openbench import __version__
from openbench.backbones.anatomy import last_linear
from openbench.backbones.device import HALVES, Precision, arithmetic
from openbench.checkout import made_now
from openbench.core.runtime import Runtime
from openbench.errors import ConfigError, MethodError, TrainingError
from openbench.progress import Report, reported
from openbench.storage.checksum import stated
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training._images import ImageSet
from openbench.training._job import TrainingJob
from openbench.training.augment.mixing import Mixing
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingMethod
from openbench.training.loop._progress import EpochRow, add_scalars, as_csv, as_png, events_in
from openbench.training.loop._session import STATE, Session, stream_of_rank
from openbench.training.loop.distributed import ALONE, Team, sync_batch_norm

JOB, FINISHED = "job.json", "finished.json"
# Reading a loss waits for the device; reading it now and then is enough to stop a training that has diverged.
_CHECK_EVERY = 32


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
        report = stack.enter_context(reported(f"train {job}", total, done=done, unit="steps", show=show))
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
    model: nn.Module,
    images: ImageSet,
    autocast: Callable[[], AbstractContextManager[object]],
    team: Team = ALONE,
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
