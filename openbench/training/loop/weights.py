"""Weights for a backbone that has none: found by what they were trained on, trained first, or an error that says how.

A checkpoint lies in `<root>/<digest of the job>/`; no path is ever given.
"""

import copy
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights, read_weights
from openbench.backbones.device import resolve_device
from openbench.backbones.ensemble import Ensemble
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.overrides import AUGMENT, NAME, OUTLIER_SET, OUTLIERS, changes, command_line, words_of
from openbench.config.shipped import named_for, shipped
from openbench.core.benchmark import Benchmark
from openbench.core.runtime import Runtime, under_torchrun
from openbench.data.benchmark_config import typed
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError
from openbench.public import name_of
from openbench.storage.locks import only_one
from openbench.training.augment.reading import picture_folders
from openbench.training.base import EvalModel, TrainingMethod
from openbench.training.job import TrainingJob
from openbench.training.loop.distributed import ALONE, Team, team
from openbench.training.loop.loop import TrainingSettings, check_shared_out, train
from openbench.training.loop.session import EXTRAS, SUFFIX, read_finished

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A finished training.

    Args:
        weights: the network's weights at the epoch kept, which is the one that is evaluated.
        sha256: of that file, 64 hex digits.
        extras: weights of what the method added to the network (a head that its score needs), or None.
        info: best epoch, validation accuracies, seconds, device, versions; see finished.json.
    """

    weights: Path
    sha256: str
    extras: Path | None
    info: dict[str, Any]


def folder_of(job: TrainingJob, root: Path) -> Path:
    """Return the folder of a job's checkpoint, whether or not it exists."""
    return root / job.digest


def find_checkpoint(job: TrainingJob, root: Path) -> Checkpoint | None:
    """Return the finished checkpoint of a job, or None.

    Raises:
        CheckpointError: it is there, and a file is missing or not the one that was written.
    """
    folder = folder_of(job, root)
    info = read_finished(folder)
    if info is None:
        return None
    for name, sha256 in info["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise CheckpointError(
                f"checkpoint '{folder / name}' is missing or not the file that training wrote — SHA-256 {sha256} "
                "expected — delete its folder, or train again with runtime.train=force"
            )
    extras = folder / f"best{EXTRAS}"
    name = f"best{SUFFIX}"
    return Checkpoint(folder / name, info["files"][name], extras if extras.name in info["files"] else None, info)


def obtain(
    job: TrainingJob,
    root: Path,
    train: Callable[[Path], object],
    *,
    anew: bool = False,
    team: Team = ALONE,
) -> Checkpoint:
    """Return a job's checkpoint, after training it if it is missing; of several processes one trains, the others wait.

    Args:
        job: what is wanted.
        root: the folder of all checkpoints.
        train: trains the job in the folder given.
        anew: whether a finished or unfinished training is thrown away first.
        team: the processes that train together; the first one looks, locks and writes for all.

    Raises:
        CheckpointError: the folder cannot be written, or a finished checkpoint was altered.
    """
    folder = folder_of(job, root)
    with _only_trainer(job, root) if team.leads else nullcontext():
        if anew and team.leads:
            shutil.rmtree(folder, ignore_errors=True)
        found = team.broadcast(find_checkpoint(job, root) if team.leads else None)
        if found is None:
            train(folder)
            found = team.broadcast(find_checkpoint(job, root) if team.leads else None)
    if found is None:
        raise CheckpointError(f"training {job} left no finished checkpoint in '{folder}'")
    return found


@contextmanager
def _only_trainer(job: TrainingJob, root: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            root.mkdir(parents=True, exist_ok=True)
            # Beside the folder, not in it: `anew` removes the folder while the lock is held.
            lock = root / f"{job.digest}.lock"
            held.enter_context(only_one(lock, f"checkpoint of {job}: another process trains it"))
        except OSError as error:
            raise CheckpointError(
                f"checkpoints: cannot write in '{root}' — {error.strerror or error} — choose a folder that can be "
                "written: set OPENBENCH_CACHE or runtime.cache"
            ) from error
        yield


@dataclass(frozen=True)
class Trained:
    """A backbone that is ready.

    Args:
        backbone: with weights.
        checkpoint: where they came from; None if the backbone brought its own, or has members.
        members: the networks of an ensemble, each with where its weights came from.
        found: whether the checkpoint was there before.
    """

    backbone: Backbone
    checkpoint: Checkpoint | None
    members: tuple["Trained", ...] = ()
    found: bool = False

    @property
    def reused(self) -> str:
        """When, and by which version and commit, reused weights were trained; empty if they are new or released.

        For an ensemble, one network stands for all.
        """
        if self.checkpoint is None or not self.found:
            return next((member.reused for member in self.members if member.reused), "")
        return str(self.checkpoint.info.get("made", "an earlier version"))

    @property
    def source(self) -> str:
        """The files of the weights, one a line, or that the backbone brought them."""
        if self.members:
            return "".join(f"\n  {member.source}" for member in self.members)
        return "comes with weights" if self.checkpoint is None else str(self.checkpoint.weights)

    def __str__(self) -> str:
        if self.members:
            return "\n".join([f"{self.backbone.name}:", *(f"  {member}" for member in self.members)])
        if self.checkpoint is None:
            return f"{self.backbone.name}: comes with weights"
        info = self.checkpoint.info
        return (
            f"{self.backbone.name}: epoch {info['best_epoch']} of {info['epochs']}, ID validation accuracy "
            f"{100 * info['best_val_accuracy']:.2f} %, trained in {info['seconds']:.1f} s on {info['device']} — "
            f"{self.checkpoint.weights}"
        )


def ensure_trained(
    backbone: Backbone,
    benchmark: Benchmark,
    config: Mapping[str, Any],
    runtime: Runtime,
) -> Trained:
    """Return the backbone with the weights that a training gives it on a benchmark; one with weights as it is.

    The weights are those of the epoch with the highest accuracy on the ID validation split (or what the method's
    `selection` says), as in OpenOOD; the last epoch's lie beside them.

    Args:
        backbone: changed in place.
        benchmark: only its ID training, ID validation and, if the method wants them, outlier splits are read.
        config: the scientific nodes, of which `training` and `seed` are read.
        runtime: device, folder, and whether a missing checkpoint may be trained.

    Raises:
        CheckpointError: it is missing and the policy is `never`, it was altered, or its folder cannot be written.
        ConfigError: the training node is wrong, or the backbone's classes are not the benchmark's.
        TrainingError: the training diverged.
    """
    if backbone.trained:
        return Trained(backbone, None)
    job = TrainingJob.of(backbone, benchmark, build_training(config["training"]), config["seed"])
    # Under torchrun the first process looks for all that train, in `obtain`; those that only read look themselves.
    look = runtime.train == "never" or (runtime.train == "auto" and not under_torchrun())
    found = find_checkpoint(job, runtime.checkpoints) if look else None
    if found is None and runtime.train == "never":
        raise CheckpointError(
            f"no checkpoint of {job} — searched: '{folder_of(job, runtime.checkpoints)}' — runtime.train=never forbids "
            f"training it now — train it with: {train_command(job, config)}"
        )
    for folder in picture_folders(job.method):
        if found is None or folder.find():
            folder.files()  # refuses other pictures than those that the training names
    checkpoint = found or _train(job, runtime, anew=runtime.train == "force")
    # Under torchrun the files lie where the first process runs, and only that one goes on.
    ready = evaluated(job, checkpoint) if found or team(runtime.device).leads else backbone
    return Trained(ready, checkpoint, found=found is not None)


def build_training(node: Mapping[str, Any]) -> TrainingMethod:
    """Return the training method of a config node.

    Raises:
        ConfigError: unknown or missing keys, values out of range, or a target that is not a training method.
    """
    method: TrainingMethod = build(node, "training", TrainingMethod)
    return method


def _train(job: TrainingJob, runtime: Runtime, *, anew: bool) -> Checkpoint:
    together = team(runtime.device)
    check_shared_out(job, together)
    settings = TrainingSettings(
        resolve_device(runtime.device),
        runtime.workers,
        runtime.progress,
        runtime.compile,
        runtime.tensorboard,
        together,
    )

    def start(folder: Path) -> None:
        first = None if job.initial is None else _train(job.initial, runtime, anew=False).weights
        why = "training again" if anew else "no finished checkpoint, training it first"
        what = f"{job.method.schedule.epochs} epochs of {len(job.id_train):,} images on {settings.device}"
        if together.leads:
            logger.info(f"{job}: {why} — {what} — {folder}")
        train(job, folder, settings, first)

    return obtain(job, runtime.checkpoints, start, anew=anew, team=together)


def ensure_members(
    ensemble: Ensemble,
    benchmark: Benchmark,
    config: Mapping[str, Any],
    runtime: Runtime,
) -> Trained:
    """Return the ensemble of members with the weights that a training gives them; one with weights as it is.

    Member i of m is the network that `seed = m·seed + i` gives alone: it is shared with runs of that network, and
    ensembles of different seeds share no member.

    Args:
        ensemble: left as it is.
        benchmark: as for a single network.
        config: the scientific nodes, of which `training`, `seed` and the backbone's `member` are read.
        runtime: as for a single network.

    Raises:
        CheckpointError, ConfigError, TrainingError: as for a single network.
    """
    if ensemble.trained:
        return Trained(ensemble, None)
    m = len(ensemble.members)
    single = {**config, "backbone": (config.get("backbone") or {}).get("member") or {}}
    found = [
        ensure_trained(copy.deepcopy(member), benchmark, {**single, "seed": m * config["seed"] + i}, runtime)
        for i, member in enumerate(ensemble.members)
    ]
    members = [one.backbone for one in found if isinstance(one.backbone, NetworkBackbone) and one.backbone.trained]
    # Under torchrun only the first process has the weights, and only that one goes on.
    return Trained(ensemble.of(members) if len(members) == m else ensemble, None, tuple(found))


def train_command(job: TrainingJob, config: Mapping[str, Any]) -> str:
    """Return the command that trains a job.

    Args:
        job: names benchmark, backbone and seed.
        config: the scientific nodes; where `training` and `backbone` differ from their yaml files, the command says so.
    """
    training = config["training"]
    name = training.get(NAME) or named_for(name_of(type(job.method)), "training")
    benchmark = f"+benchmark={typed(config['benchmark']) if 'benchmark' in config else job.benchmark}"
    outliers = config.get(OUTLIERS) or {}
    chosen = {"backbone": job.backbone.name, "training": name}
    chosen |= {OUTLIER_SET: outliers[NAME]} if job.ood_train is not None and outliers.get(NAME) else {}
    arguments = [*benchmark.split(), *words_of(chosen), f"seed={job.seed}"]
    for group, file, node in (
        ("backbone", job.backbone.name, config.get("backbone")),
        ("training", name, {key: value for key, value in training.items() if key != AUGMENT}),
    ):
        plain = shipped(group, file)
        arguments += changes(group, plain, node) if plain and node else []
    if OUTLIER_SET in chosen:
        arguments += changes(OUTLIERS, shipped("dataset", outliers[NAME]) or outliers, outliers)
    return command_line("train", arguments)


def evaluated(job: TrainingJob, checkpoint: Checkpoint) -> Backbone:
    """Return the job's backbone with a checkpoint's weights, or the surface that its method evaluates instead.

    Raises:
        CheckpointError: weights that do not fit.
        ConfigError: the method has its own surface, and the backbone is not a NetworkBackbone.
    """
    backbone, method = job.backbone.load(checkpoint.weights, checkpoint.sha256), job.method
    if type(method).eval_model is TrainingMethod.eval_model:
        return backbone
    if not isinstance(backbone, NetworkBackbone):
        raise ConfigError(
            f"training '{type(method).__name__}' evaluates more than the network — backbone '{backbone.name}' is a "
            f"{type(backbone).__name__} — choose one made of a torch module"
        )
    with torch.random.fork_rng(devices=[]):
        prepared = method.prepare(backbone.module(), backbone.feature_dim, backbone.num_classes)
    if checkpoint.extras is not None:
        # The extras lack only the network, which is loaded already.
        apply_weights(prepared, prepared.state_dict() | read_weights(checkpoint.extras), f"'{checkpoint.extras}'")
    with torch.no_grad():
        surface = method.eval_model(prepared.eval())
    if surface is None:
        return backbone.load(checkpoint.weights, checkpoint.sha256)
    architecture = f"{backbone.architecture}, evaluated as {type(method).__qualname__} {type(method).version}"
    return backbone.replaced(surface.module, anatomy_of(surface, backbone.anatomy), architecture)


def anatomy_of(surface: EvalModel, network: Anatomy) -> Anatomy:
    """Return where head, stages and further outputs are in a surface; stages keep their neutral names."""
    names = {part: name for name, part in surface.module.named_modules()}
    within = names[surface.network]
    prefix = f"{within}." if within else ""
    stages = {layer: prefix + name for layer, name in network.stages.items()}
    stages |= {layer: names[part] for layer, part in surface.outputs.items()}
    return Anatomy(names[surface.head], stages, network.layout, network.prefix_tokens)
