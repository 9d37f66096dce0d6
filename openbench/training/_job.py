"""The job of a training: network, images, method and seed, whose digest names the checkpoint."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from openbench.backbones.base import Backbone
from openbench.checkout import code_digests
from openbench.core.benchmark import Benchmark, Split
from openbench.digest import digest
from openbench.errors import ConfigError, DataError
from openbench.training.base import TrainingMethod

# Raised when a change to the loop alters the weights that come out of an unchanged job.
LOOP_VERSION = 1


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A network to train, the splits that training may see, how, and from which seed.

    Args:
        backbone: the network; its present weights do not matter: they are drawn again from the seed.
        benchmark: name of the benchmark, for messages.
        id_train: training images with labels.
        id_val: held-out ID images that choose the epoch.
        ood_train: outliers, None unless the method uses them.
        method: what is minimised, and the recipe.
        seed: fixes initial weights, order, augmentation and the method's own draws.
    """

    backbone: Backbone
    benchmark: str
    id_train: Split
    id_val: Split
    ood_train: Split | None
    method: TrainingMethod
    seed: int

    def __post_init__(self) -> None:
        """Check that there are images to learn from, and that the method can mix their labels if the recipe does."""
        if self.method.uses_outliers and self.ood_train is None:
            raise DataError(
                f"training '{type(self.method).__name__}' learns from outliers, and benchmark '{self.benchmark}' names "
                "none — choose some: dataset@outliers=NAME (python -m openbench list dataset)"
            )
        if self.method.schedule.steps_per_epoch(len(self.id_train)) == 0:
            raise DataError(f"split '{self.id_train.name}' has {len(self.id_train)} image — two or more are needed")
        if self.method.schedule.mixing is not None and not self.method.mixes:
            raise ConfigError(
                f"training '{type(self.method).__name__}' has no loss for mixed labels — leave "
                f"{type(self.method.schedule.mixing).__name__} out of training.recipe.augment"
            )

    @property
    def initial(self) -> "TrainingJob | None":
        """The job whose weights this one starts from; None: those that the network is initialised with."""
        first = self.method.initial
        if first is None or (self.backbone.starts_trained and self.method.fine_tunes):
            return None
        return replace(self, method=first, ood_train=self.ood_train if first.uses_outliers else None)

    @classmethod
    def of(cls, backbone: Backbone, benchmark: Benchmark, method: TrainingMethod, seed: int) -> "TrainingJob":
        """Return the job of training a backbone on a benchmark; validation and training splits are all it sees.

        Raises:
            ConfigError: the backbone has another number of classes than the benchmark.
            DataError: outliers are needed and there are none.
        """
        if backbone.num_classes != len(benchmark.classes):
            raise ConfigError(
                f"backbone '{backbone.name}' has {backbone.num_classes} classes, benchmark '{benchmark.name}' "
                f"{len(benchmark.classes)} — leave backbone.num_classes null, or set it to {len(benchmark.classes)}"
            )
        outliers = benchmark.ood_train if method.uses_outliers else None
        return cls(backbone, benchmark.name, benchmark.id_train, benchmark.id_val, outliers, method, seed)

    def identity(self) -> dict[str, Any]:
        """Return what determines the weights."""
        splits = (self.id_train, self.id_val, self.ood_train)
        data = tuple(split.source for split in splits if split is not None)
        return {
            "loop": LOOP_VERSION,
            "id_train": self.id_train.digest,
            "id_val": self.id_val.digest,
            "ood_train": None if self.ood_train is None else self.ood_train.digest,
            "architecture": self.backbone.architecture,
            "preprocess": asdict(self.backbone.preprocess),
            "method": self.method.identity(),
            "seed": self.seed,
            **code_digests("openbench.training.loop._loop", self.method, self.backbone, data=data),
        }

    @property
    def digest(self) -> str:
        """Names the checkpoint: equal digests, equal weights up to rounding."""
        return digest(self.identity())

    def __str__(self) -> str:
        return f"{self.backbone.name} on {self.benchmark} with {type(self.method).__name__}, seed {self.seed}"
