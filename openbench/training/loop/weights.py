"""Checkpoints of trainings, in `<root>/<digest of the job>/`: loaded if they are there, trained if not."""

import copy
import logging
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights, read_weights
from openbench.backbones.network import Ensemble, NetworkBackbone
from openbench.config.build import build
from openbench.core.benchmark import Benchmark
from openbench.core.runtime import Runtime, under_torchrun
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError
from openbench.storage.checksum import DamagedError, read_stated
from openbench.storage.files import only_one
from openbench.training.augment.reading import picture_folders
from openbench.training.base import TrainingJob, TrainingMethod
from openbench.training.loop._loop import EXTRAS, FINISHED, SUFFIX, train
from openbench.training.loop.distributed import ALONE, Team, team

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A finished training.

    Args:
        weights: the network's weights at the best epoch, which are evaluated.
        sha256: of that file, 64 hex digits.
        extras: weights of the parts that the method added to the network (e.g. a head of its score), or None.
        info: best epoch, validation accuracies, seconds, device, versions; see finished.json.
    """

    weights: Path
    sha256: str
    extras: Path | None
    info: dict[str, Any]


def folder_of(job: TrainingJob, root: Path) -> Path:
    """Return the folder of a job's checkpoint; it may not exist."""
    return root / job.digest


def find_checkpoint(job: TrainingJob, root: Path) -> Checkpoint | None:
    """Return the finished checkpoint of a job, or None; who passes one on may leave out the weights of the last epoch.

    Raises:
        CheckpointError: it is there, and a file is missing or not the one that was written.
    """
    folder = folder_of(job, root)
    try:
        info = read_stated(folder / FINISHED)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise CheckpointError(
            f"{error} — delete the folder '{folder}', or train again with runtime.train=force"
        ) from error
    for name, sha256 in info["files"].items():
        there = (folder / name).is_file()
        if (file_sha256(folder / name) != sha256) if there else name.startswith("best"):
            raise CheckpointError(
                f"checkpoint '{folder / name}' is missing or was altered (its SHA-256 should be {sha256}) — delete its "
                "folder, or train again with runtime.train=force"
            )
    extras = folder / f"best{EXTRAS}"
    name = f"best{SUFFIX}"
    return Checkpoint(folder / name, info["files"][name], extras if extras.name in info["files"] else None, info)


def obtain(job: TrainingJob, runtime: Runtime, *, force: bool = False, team: Team = ALONE) -> Checkpoint:
    """Return a job's checkpoint, after training it if it is missing; of several processes one trains, the others wait.

    Args:
        job: the training; what it starts from is obtained first.
        runtime: the folder of all checkpoints, device, workers, progress.
        force: whether to delete a finished or unfinished training first.
        team: the processes that train together; the first one looks, locks and writes for all.

    Raises:
        CheckpointError: a finished checkpoint was altered, or the training left none.
        ConfigError: the loss cannot be computed from a share of the batch in each of several processes.
        OSError: the folder cannot be written.
    """
    if team.size > 1 and not job.method.separable:
        raise ConfigError(
            f"training '{type(job.method).__name__}' needs the whole batch for its loss, or changes buffers in it, and "
            f"torchrun started {team.size} processes — start without torchrun"
        )
    root, folder = runtime.checkpoints, folder_of(job, runtime.checkpoints)
    root.mkdir(parents=True, exist_ok=True)
    # Not in the folder, which `force` deletes while the lock is held.
    lock = only_one(root / f"{job.digest}.lock", f"checkpoint of {job}: another process trains it")
    with lock if team.leads else nullcontext():
        if force and team.leads:
            shutil.rmtree(folder, ignore_errors=True)
        checkpoint = team.broadcast(find_checkpoint(job, root) if team.leads else None)
        if checkpoint is None:
            initial = None if job.initial is None else obtain(job.initial, runtime, team=team).weights
            if team.leads:
                size = f"{job.method.schedule.epochs} epochs of {len(job.id_train):,} images"
                device = team.device(runtime.device)
                logger.info(f"{job}: training{' again' * force} for {size} on {device} — {folder}")
            train(job, folder, runtime, initial, team)
            checkpoint = team.broadcast(find_checkpoint(job, root) if team.leads else None)
    if checkpoint is None:
        raise CheckpointError(f"training {job} left no finished checkpoint in '{folder}'")
    return checkpoint


@dataclass(frozen=True)
class Trained:
    """A backbone with weights.

    Args:
        backbone: with weights.
        checkpoint: of its training; None if it brought its weights, or has members.
        members: the networks of an ensemble.
        cached: whether the checkpoint was there before.
    """

    backbone: Backbone
    checkpoint: Checkpoint | None
    members: tuple["Trained", ...] = ()
    cached: bool = False

    @property
    def reused(self) -> str:
        """Version, commit and time of the training of reused weights (of an ensemble: of one network); else empty."""
        if self.checkpoint is None or not self.cached:
            return next((member.reused for member in self.members if member.reused), "")
        return str(self.checkpoint.info.get("made", "an earlier version"))

    @property
    def source(self) -> str:
        """The files of the weights, one a line, or that the backbone brought them."""
        if self.members:
            return "".join(f"\n  {member.source}" for member in self.members)
        return "comes with weights" if self.checkpoint is None else str(self.checkpoint.weights)


def get_or_train(backbone: Backbone, benchmark: Benchmark, config: Mapping[str, Any], runtime: Runtime) -> Trained:
    """Return the backbone with the weights that a training gives it on a benchmark; one with weights as it is.

    The weights are those of the epoch with the highest accuracy on the ID validation split (or of the method's
    `selection`), as in OpenOOD. Member i of an ensemble of m networks is the network that `seed = m·seed + i` gives: it
    is shared with runs of that network, and ensembles of different seeds share no member.

    Args:
        backbone: a network, which gets the weights, or an ensemble, which is not changed.
        benchmark: only its ID training, ID validation and, if the method uses them, outlier splits are read.
        config: the scientific nodes, of which `training`, `seed` and an ensemble's `backbone.member` are read.
        runtime: device, folder, and whether a missing checkpoint may be trained.

    Raises:
        CheckpointError: it is missing and the policy is `never`, or it was altered.
        ConfigError: the training node is wrong, or the backbone's classes are not the benchmark's.
        TrainingError: the training diverged.
    """
    if backbone.trained:
        return Trained(backbone, None)
    if isinstance(backbone, Ensemble):
        return _members(backbone, benchmark, config, runtime)
    job = TrainingJob.of(backbone, benchmark, build_training(config["training"]), config["seed"])
    # Under torchrun the first process looks for all that train, in `obtain`; those that only read look themselves.
    look = runtime.train == "never" or (runtime.train == "auto" and not under_torchrun())
    cached = find_checkpoint(job, runtime.checkpoints) if look else None
    if cached is None and runtime.train == "never":
        raise CheckpointError(
            f"no checkpoint of {job} in '{folder_of(job, runtime.checkpoints)}', and runtime.train=never forbids "
            "training — train it first, by the same overrides after `python -m openbench train`, or leave it out"
        )
    for folder in picture_folders(job.method):
        if cached is None or folder.find():
            folder.files()  # refuses other pictures than those that the training names
    checkpoint = cached or obtain(job, runtime, force=runtime.train == "force", team=team(runtime.device))
    # Under torchrun the files lie where the first process runs, and only that one continues.
    ready = evaluated(job, checkpoint) if cached or team(runtime.device).leads else backbone
    return Trained(ready, checkpoint, cached=cached is not None)


def _members(ensemble: Ensemble, benchmark: Benchmark, config: Mapping[str, Any], runtime: Runtime) -> Trained:
    m = len(ensemble.members)
    node = {**config, "backbone": (config.get("backbone") or {}).get("member") or {}}
    trained = tuple(
        get_or_train(copy.deepcopy(member), benchmark, {**node, "seed": m * config["seed"] + i}, runtime)
        for i, member in enumerate(ensemble.members)
    )
    members = [one.backbone for one in trained if isinstance(one.backbone, NetworkBackbone) and one.backbone.trained]
    # Under torchrun only the first process has the weights, and only that one continues.
    ready = Ensemble(ensemble.name, members).to(members[0].device) if len(members) == m else ensemble
    return Trained(ready, None, trained)


def build_training(node: Mapping[str, Any]) -> TrainingMethod:
    """Return the training method of a config node.

    Raises:
        ConfigError: unknown or missing keys, values out of range, or a target that is not a training method.
    """
    return build(node, "training", TrainingMethod)


def evaluated(job: TrainingJob, checkpoint: Checkpoint) -> Backbone:
    """Return the job's backbone with a checkpoint's weights, or the module that its method evaluates instead.

    Raises:
        CheckpointError: weights that do not fit.
        ConfigError: the method has its own module, and the backbone is not a NetworkBackbone.
    """
    backbone, method = job.backbone.load(checkpoint.weights, checkpoint.sha256), job.method
    if type(method).eval_model is TrainingMethod.eval_model:
        return backbone
    if not isinstance(backbone, NetworkBackbone):
        raise ConfigError(
            f"training '{type(method).__name__}' evaluates more than the network, and backbone '{backbone.name}' is a "
            f"{type(backbone).__name__} — choose one made of a torch module"
        )
    with torch.random.fork_rng(devices=[]):
        prepared = method.prepare(backbone.module(), backbone.feature_dim, backbone.num_classes)
    if checkpoint.extras is not None:
        # The extras lack only the network, which is loaded already.
        apply_weights(prepared, prepared.state_dict() | read_weights(checkpoint.extras), f"'{checkpoint.extras}'")
    with torch.no_grad():
        model = method.eval_model(prepared.eval())
    if model is None:
        return backbone.load(checkpoint.weights, checkpoint.sha256)
    names = {part: name for name, part in model.module.named_modules()}
    # Stages keep their neutral names; further outputs come after them.
    stages = {layer: f"{names[model.network]}.{name}".strip(".") for layer, name in backbone.anatomy.stages.items()}
    stages |= {layer: names[part] for layer, part in model.outputs.items()}
    architecture = f"{backbone.architecture}, evaluated as {type(method).__qualname__} {type(method).version}"
    return backbone.replaced(
        model.module, replace(backbone.anatomy, head=names[model.head], stages=stages), architecture
    )
