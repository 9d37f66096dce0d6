"""The interface of every network: images in, logits, features and reduced maps out; devices and precisions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from openbench.core.features import Head
from openbench.core.method import Outputs as Outputs
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request, Tower
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, did_you_mean

HeadKind = Literal["linear_probe", "nearest_mean", "knn"]
PromptKind = Literal["coop", "locoop"]  # heads made of learnt prompts
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_KINDS = ("auto", "cpu", "cuda", "mps")


class Backbone(ABC):
    """A frozen classifier in eval mode.

    Attributes:
        name: what users type after `backbone=`.
        architecture: the network and everything that shapes it except its weights, as one line; enters the digest.
        num_classes: c; 0 where the network has no classifier.
        feature_dim: d.
        device: where the network is.
        layers: the neutral stage names that `Request.layers` may name, shallow to deep.
        preprocess: how images reach the network.
        digest: covers architecture, weights, preprocessing and precision: equal digests, equal outputs. Reading it
            before there are weights raises CheckpointError.
        weights_sha256: hash of the weights' content, the same whatever file they came from; for records.
        passes: images pushed through the network so far (a perturbed pass counts twice).
        trained: False until weights are loaded, for architectures that wait for training.
        starts_trained: whether `initialise` gives the weights of a trained classifier, which fine-tunings go on from.
        classifies: whether its logits are class scores; False where there is no classifier.
        has_head: whether its logits are known to be a linear function of its features, and `head` says which.
        has_features: whether it shows features; False where its logits stand in for them.
        has_network: whether there is a network to run; False where features come from a file or an array.
        missing: what to choose where a method reads what the backbone does not have.
        features_from: the backbone whose features and maps these are, so that they are cached once; None = its own.
        head_to_fit: the kind of head to be fitted on its features before it is evaluated; None = it is used as it is.
        fitted_head: the entry of a record on a head that was fitted on its features; None = there is none.
        has_patches: whether it gives features of image patches in the space of its features.
        probe: its outputs of a few images, from `engine.probe`; None before.
        text_towers: towers that embed text in the space of its features, as `OpenClipText` does, by name; none in most.
    """

    name: str
    architecture: str
    num_classes: int
    feature_dim: int
    device: torch.device
    layers: tuple[str, ...]
    preprocess: Preprocess
    digest: str
    weights_sha256: str
    passes: int = 0
    trained: bool = True
    starts_trained: bool = False
    classifies: bool = True
    has_head: bool = True
    has_features: bool = True
    has_network: bool = True
    missing: str = "a backbone that has what is missing"
    features_from: "Backbone | None" = None
    head_to_fit: HeadKind | PromptKind | None = None
    fitted_head: Mapping[str, Any] | None = None
    has_patches: bool = False
    probe: Any = None
    text_towers: Mapping[Tower, Any] = MappingProxyType({})

    @property
    @abstractmethod
    def head(self) -> Head:
        """The classifier as a linear head on CPU."""

    @property
    def differentiable(self) -> bool:
        """Whether its logits have a gradient by the images."""
        return self.has_network and self.has_head

    @property
    def runs_live(self) -> bool:
        """Whether a method may run the network itself."""
        return self.has_network and self.has_head

    @abstractmethod
    def to(self, device: torch.device) -> "Backbone":
        """Move the network; return self."""

    @abstractmethod
    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), after its input-gradient step if any."""

    def traced(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), with gradients by the images.

        Raises:
            NotApplicableError: there is no network that could be differentiated.
        """
        raise NotApplicableError(f"backbone '{self.name}' has no gradient by its images — choose a network of torch")

    def classify(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d), on their device."""
        return self.head(features)

    def frozen(self) -> AbstractContextManager[torch.nn.Module]:
        """The network in eval mode without parameter gradients, for methods that run it themselves; passes are counted.

        Raises:
            NotApplicableError: there is no network.
        """
        raise NotApplicableError(f"backbone '{self.name}' has no network to run — choose a method that reads features")

    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it.

        Raises:
            NotApplicableError: there is no such layer.
        """
        raise NotApplicableError(f"backbone '{self.name}' has no maps — choose a method that reads features")

    def module(self) -> torch.nn.Module:
        """The network itself, for training: images (n, 3, h, w) to logits (n, c).

        Raises:
            NotApplicableError: there is none.
        """
        raise NotApplicableError(f"backbone '{self.name}' has no network to train — choose one that has")

    def initialise(self, seed: int) -> Self:
        """Draw fresh random weights from `seed`, the same in every process; `trained` is then False. Return self."""
        return self

    def load(self, path: Path, sha256: str | None = None) -> Self:
        """Load weights (`.pt`, `.pth`, `.safetensors`), after which `trained` is True and `digest` is defined.

        Raises:
            CheckpointError: missing file, another hash, not a plain state dict, or shapes that do not fit; or there is
                no network to load them into.
        """
        raise CheckpointError(f"backbone '{self.name}' takes no weights — leave out '{path}'")


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device that `name` stands for: `auto` is CUDA if present, else MPS, else the CPU.

    Args:
        name: `auto`, `cpu`, `mps`, `cuda` or `cuda:<index>`.

    Raises:
        ConfigError: an unknown name, or a device that this machine or this build of torch lacks.
    """
    mps = int(torch.backends.mps.is_available())
    # NVML counts GPUs that torch cannot use, with a driver that is too old.
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = {"cuda": cuda, "mps": mps, "cpu": 1}
    try:
        device = torch.device(next(kind for kind in count if count[kind]) if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or (device.index or 0) >= count.get(device.type, 0):
        found = f"torch {torch.__version__} finds {cuda} CUDA devices and {mps} of Metal"
        hint = f"{did_you_mean(str(name).partition(':')[0], _KINDS)} — allowed: auto, cpu, cuda, cuda:<index>, mps"
        raise ConfigError(f"device {name!r} is not on this machine ({found}){hint}")
    return device


def check_precision(precision: str, device: torch.device, key: str = "backbone.precision") -> None:
    """Check that a device has products of a precision, which the config says at `key`.

    Raises:
        ConfigError: `fp16` on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(f"{key}=fp16 needs a GPU — choose fp32, tf32 or bf16 on a CPU, or runtime.device=cuda")


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Run the body with float32 products rounded as `precision` says, whatever the process had set before.

    cuDNN rounds convolution inputs to TF32 by default; a score must not depend on that. With `bf16` and `fp16` products
    and convolutions are made in 16 bits (autocast) while weights, normalisation and softmax stay float32.

    Raises:
        ConfigError: `fp16` on a CPU, which has no products of that kind.
    """
    check_precision(precision, device)
    with ExitStack() as stack:
        if precision in HALVES:
            stack.enter_context(torch.autocast(device.type, HALVES[precision]))
        if device.type == "cuda":
            matmul, tf32 = torch.backends.cuda.matmul, precision == "tf32"
            stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
            matmul.allow_tf32 = tf32
            stack.enter_context(torch.backends.cudnn.flags(True, benchmark=False, deterministic=True, allow_tf32=tf32))
        yield


def as_input(images: Tensor, device: torch.device) -> Tensor:
    """Return images as a network's input: float32, channels last, on `device`.

    On their way to a GPU they pass through page-locked memory, so that copying and computing overlap.
    """
    if device.type == "cuda" and images.device.type == "cpu":
        images = images.pin_memory()
    return images.to(device, torch.float32, non_blocking=True, memory_format=torch.channels_last)
