"""The training loop of every method and network, from the seed to the weights of the best epoch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from openbench import __version__
from openbench.backbones.anatomy import last_linear
from openbench.backbones.device import HALVES, Precision, arithmetic, resolve_device
from openbench.checkout import made_now
from openbench.core.runtime import Runtime
from openbench.errors import ConfigError, MethodError, TrainingError
from openbench.progress import reported
from openbench.storage.checksum import stated
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training._images import ImageSet, open_images
from openbench.training._job import TrainingJob
from openbench.training.augment.mixing import Mixing
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingMethod
from openbench.training.loop._progress import EpochRow, Reporter, as_csv, as_png, events_in
from openbench.training.loop._session import STATE, Session, TrainingResult, stream_of_rank
from openbench.training.loop.distributed import ALONE, Team, sync_batch_norm

JOB, FINISHED = "job.json", "finished.json"
# Reading a loss waits for the device; reading it now and then is enough to stop a training that has diverged.
_CHECK_EVERY = 32


def train(
    job: TrainingJob, folder: Path, runtime: Runtime, start: Path | None = None, team: Team = ALONE
) -> TrainingResult:
    """Train a job to its end in `folder`, continuing where an interrupted process stopped.

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
    recipe, device = job.method.schedule, team.device(resolve_device(runtime.device))
    if team.leads:
        write_job(folder, job)
    devices = [device] if device.type == "cuda" else []
    precision: Precision = "tf32" if recipe.precision == "tf32" else "fp32"
    with torch.random.fork_rng(devices=devices), arithmetic(precision, device), ExitStack() as stack:
        session = Session.begin(job, folder, device, start, team)
        session.resume()
        resumed_after = len(session.curve)
        loop = _Loop(session, runtime.workers)
        stack.enter_context(sync_batch_norm(session.prepared, team))
        if runtime.compile:
            stack.enter_context(compiled(session.network))
        done, total = loop.step_at(resumed_after), loop.step_at(recipe.epochs)
        show = runtime.progress and team.leads
        progress = stack.enter_context(reported(f"train {job}", total, done=done, unit="steps", show=show))
        events = stack.enter_context(events_in(folder, session.curve)) if runtime.tensorboard and team.leads else None
        report = Reporter(progress, events)
        for epoch in range(resumed_after, recipe.epochs):
            loop.epoch(epoch, report)
    return team.broadcast(_finish(session, resumed_after) if team.leads else None)  # type: ignore[return-value]


class _Loop:
    """The epochs of a session."""

    def __init__(self, session: Session, workers: int) -> None:
        job = session.job
        self.session, self.method, self.recipe = session, job.method, job.method.schedule
        reading, where = self.recipe.reading, (job.backbone.preprocess, session.device, workers)
        outliers = None if job.ood_train is None else open_images(job.ood_train, *where, reading)
        self.data = TrainingData(open_images(job.id_train, *where, reading), outliers)
        self.validation = open_images(job.id_val, *where)
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

    def epoch(self, epoch: int, report: Reporter) -> None:
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
        report.epoch(row)

    def _steps(self, epoch: int, report: Reporter) -> tuple[float, int]:
        """Take the steps of an epoch; return the mean loss over its images, and their number."""
        session, start = self.session, time.perf_counter()
        session.prepared.train()
        size = self.recipe.batch_size
        order = torch.randperm(len(self.data.train), generator=session.generator)
        outlier_order = self._outlier_order()
        self._announce(order, outlier_order)
        losses = torch.zeros(self.per_epoch, device=session.device)
        counts = torch.tensor([len(order[i * size : (i + 1) * size]) for i in range(self.per_epoch)])
        checked = 0
        for i in range(self.per_epoch):
            info = self._info(epoch, i)
            parts = self._parts(order[i * size : (i + 1) * size], outlier_order, info, i)
            losses[i] = self._step(parts, info)
            if session.average is not None:
                session.average.update()
            if (i + 1) % _CHECK_EVERY == 0 or i + 1 == self.per_epoch:
                losses[checked : i + 1] = session.team.sum(losses[checked : i + 1]) / session.team.size
                self._check_finite(losses[: i + 1], checked, info)
                checked, done = i + 1, int(counts[: i + 1].sum())
                mean = float((losses[:checked].cpu() * counts[:checked]).sum()) / done
                report.steps(info.step + 1, mean, done / (time.perf_counter() - start))
        return mean, done

    def _announce(self, order: Tensor, outlier_order: Tensor | None) -> None:
        """Announce an epoch's rows to images that are read as needed."""
        team, generator = self.session.team, self.session.generator
        # The image that is mixed with this one may belong to another process.
        share = None if team.size == 1 or self.recipe.mixing is not None else team.share
        for images, rows, size, views in (
            (self.data.train, order, self.recipe.batch_size, self.method.views),
            (self.data.outliers, outlier_order, self.method.outlier_batch_size, 1),
        ):
            if images is not None and images.streams and rows is not None:
                seed = int(torch.randint(0, 2**62, (), generator=generator))
                batches = [part.repeat(views) for part in torch.split(rows, size)][: self.per_epoch]
                images.plan(batches, seed, share)

    def _parts(self, rows: Tensor, outlier_order: Tensor | None, info: StepInfo, index: int) -> "list[Part]":
        """Return the batch, or this process's share of it with a separate generator."""
        augment, generator, data = self.recipe.augmentations, self.session.generator, self.data
        rows = rows.repeat(self.method.views)
        pixels = data.train.augmented(rows, augment, generator)
        consistency = self.recipe.consistency
        others = [] if consistency is None else consistency.versions(pixels, generator)
        images, *versions = (self._in_layout(data.train.normalised(p)) for p in (pixels, *others))
        batch = Batch(images, data.train.labels[rows.to(self.session.device)], rows, info)
        if data.outliers is not None and outlier_order is not None:
            size = self.method.outlier_batch_size
            outlier_rows = outlier_order[index * size : (index + 1) * size]
            outliers = data.outliers.normalised(data.outliers.augmented(outlier_rows, augment, generator))
            batch = replace(batch, outliers=self._in_layout(outliers), outlier_rows=outlier_rows)
        parts, team = parts_of(batch, self.recipe.mixing, tuple(versions)), self.session.team
        if team.size == 1:
            return parts
        # The draws of a loss may depend on its number of images; the common generator must stay the same everywhere.
        seed = stream_of_rank(self.session.job.seed, info.step, team.rank)
        info = replace(info, generator=torch.Generator().manual_seed(seed))
        shares = [part.share(team.share(len(rows)), team.size) for part in parts]
        return [replace(part, batch=replace(part.batch, info=info)) for part in shares]

    def _step(self, parts: "list[Part]", info: StepInfo) -> Tensor:
        """Take one step; return the loss, still on the device."""
        optimiser, scaler = self.session.optimiser, self.session.scaler
        rate = self.recipe.learning_rate(info.step, self.per_epoch)
        for group in optimiser.param_groups:
            group["lr"] = group["lr_scale"] * (self.recipe.lr if group["lr_constant"] else rate)
        with self._autocast():
            loss: Tensor = self.objective(parts)
        optimiser.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip is not None:
            scaler.unscale_(optimiser)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        scaler.step(optimiser)
        scaler.update()
        self.method.on_step_end(self.session.prepared, info)
        return loss.detach()

    def _check_finite(self, losses: Tensor, checked: int, last: StepInfo) -> None:
        bad = ~torch.isfinite(losses)
        bad[:checked] = False
        if bool(bad.any()):
            i = int(bad.int().argmax())
            step = last.epoch * self.per_epoch + i
            rate = self.recipe.learning_rate(step, self.per_epoch)
            raise TrainingError(
                f"training {self.session.job}: the loss is {float(losses[i])} at step {step + 1} of {last.steps} "
                f"(epoch {last.epoch + 1}, batch {i + 1}, learning rate {rate:.4g}) — lower training.recipe.lr, set "
                "training.recipe.clip=1.0 or training.recipe.warmup_epochs=1"
            )

    def _outlier_order(self) -> Tensor | None:
        """Return rows of outliers for an epoch: a permutation, and further ones if there are too few outliers."""
        if self.data.outliers is None:
            return None
        n, needed = len(self.data.outliers), self.per_epoch * self.method.outlier_batch_size
        parts = [torch.randperm(n, generator=self.session.generator) for _ in range(-(-needed // n))]
        return torch.cat(parts)[:needed]

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


def check_shareable(job: TrainingJob, team: Team) -> None:
    """Raise ConfigError unless each of a team's processes can take a share of every batch."""
    if team.size > 1 and not job.method.separable:
        raise ConfigError(
            f"training '{type(job.method).__name__}' needs the whole batch for its loss, or changes buffers in it, and "
            f"torchrun started {team.size} processes — start without torchrun"
        )


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


def _finish(session: Session, resumed_after: int) -> TrainingResult:
    """Name the best weights, draw the curve, write the finished marker, and delete files that are no longer needed."""
    folder, best = session.folder, session.best
    if best is None:
        raise RuntimeError("a training ended without an epoch")
    files = session.write_weights("last")
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
    return TrainingResult(tuple(curve), best["epoch"], files, resumed_after)


@dataclass(frozen=True)
class Part:
    """A batch whose loss is one summand of a step's loss.

    Args:
        batch: the input of the loss.
        weight: its factor.
        versions: further versions (n, channels, h, w) of the batch's images, which a consistency compares.
    """

    batch: Batch
    weight: float = 1.0
    versions: tuple[Tensor, ...] = ()

    def share(self, rows: slice, processes: int) -> "Part":
        """Return the part for one of several processes.

        The weight turns the mean over processes of means over shares into the mean over the batch, though shares may
        differ by one image.
        """
        batch = self.batch
        tensors = {name: getattr(batch, name)[rows] for name in ("images", "labels", "rows")}
        partners = None if batch.partners is None else batch.partners[rows]
        weight = self.weight * len(tensors["rows"]) * processes / len(batch.rows)
        return Part(replace(batch, **tensors, partners=partners), weight, tuple(v[rows] for v in self.versions))


def parts_of(batch: Batch, mixing: Mixing | None, versions: tuple[Tensor, ...] = ()) -> "list[Part]":
    """Return the parts whose losses are summed: the batch, or its mixed images and, if they weigh, its clean ones."""
    if mixing is None:
        return [Part(batch, versions=versions)]
    mixed = mixing(batch.images, batch.info.generator)
    partners = batch.labels[mixed.partners.to(batch.labels.device)]
    parts = [Part(replace(batch, images=mixed.images, partners=partners, share=mixed.share))]
    return parts if mixing.clean_weight == 0 else [*parts, Part(batch, mixing.clean_weight)]


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

    def forward(self, parts: Sequence[Part]) -> Tensor:
        """Return Σ weight·loss, a scalar.

        Raises:
            MethodError: the method's loss is not a scalar.
        """
        losses = [part.weight * self._loss(part) for part in parts]
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])

    def _loss(self, part: Part) -> Tensor:
        loss = self.method.loss(self.prepared, part.batch)
        if loss.ndim != 0:
            raise MethodError(
                f"{type(self.method).__name__}.loss returned a tensor of shape {tuple(loss.shape)} — "
                "return a scalar, the mean over the batch"
            )
        if self.consistency is None or not part.versions:
            return loss
        images = (part.batch.images, *part.versions)
        return loss + self.consistency.loss(self.prepared(torch.cat(images)).chunk(len(images)))


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
