"""A model of which only the outputs are known: a function, an ONNX graph, a network without a linear head."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from openbench.api.models.preprocess import PreparedTransform, code_of
from openbench.backbones.base import Backbone, Outputs, arithmetic
from openbench.backbones.network import OUTPUTS_VERSION, evaluating, perturbed, state_sha256
from openbench.core.features import Head
from openbench.core.request import Request
from openbench.digest import digest
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, pip_install

# Normalised images (n, channels, h, w) float32 to logits (n, c) and features (n, d); None where the model shows none.
Read = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class OutputsBackbone(Backbone):
    """Logits, and features where the model gives them; without maps, and without a head unless one is given.

    Where there are no features, the logits stand in their place, and methods that read features are refused.

    Args:
        name: of the model.
        architecture: the model in one line; with the hash of its weights it identifies the outputs.
        read: runs the model, on the device of `images`.
        transform: how images reach the model.
        images: a few, on which the model is tried.
        head: the linear classifier, if it is known.
        model: what `read` runs: a network of torch in eval mode, or a function; None = neither.
        weights_sha256: hash of the weights; empty = those of the network, if it is one.

    Raises:
        ConfigError: the model fails on these images, or a head does not give its logits.
    """

    layers = ()
    runs_live = False
    differentiable = False
    missing = (
        "a model that shows it: return (features, logits), or name the module that makes features, "
        "features='NAME'; give the classifier, head=(W, b); or pass a torch.nn.Module with layer1 … layer4"
    )

    def __init__(
        self,
        name: str,
        architecture: str,
        read: Read,
        transform: PreparedTransform,
        images: Tensor,
        *,
        head: Head | None = None,
        model: object = None,
        weights_sha256: str = "",
    ) -> None:
        self.name, self.architecture, self.preprocess = name, architecture, transform.preprocess
        self.network = model if isinstance(model, nn.Module) else None
        self.weights_sha256 = weights_sha256 or (
            "" if self.network is None else state_sha256(self.network.state_dict())
        )
        self.made_of = (*code_of(model), *transform.code)
        self._read, self.device, self._head = read, images.device, head
        images = images.float()
        with failing_on(images, name), torch.no_grad():
            logits, features = read(images)
        self.num_classes = logits.shape[1]
        self.classifies = self.num_classes > 0
        self.has_features, self.has_head = features is not None, head is not None
        features = logits if features is None else features
        self.feature_dim = features.shape[1]
        if head is not None:
            _check_head(head, features, logits, name)
        with self._evaluating(), torch.enable_grad():
            x = images.clone().requires_grad_(True)
            logits, _ = read(x)
            if logits.requires_grad:
                self.differentiable = torch.autograd.grad(logits.sum(), x, allow_unused=True)[0] is not None

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Covers architecture, weights, preprocessing, and the head if one is known."""
        head = {} if self._head is None else {"head": [self._head.weight.numpy(), self._head.bias.numpy()]}
        model = {"outputs": OUTPUTS_VERSION, "architecture": self.architecture, "weights": self.weights_sha256}
        return digest({**model, "preprocess": self.preprocess, **head})

    @property
    def head(self) -> Head:
        """The classifier; the identity where the logits stand in for features, zeros where it is not known."""
        if self._head is not None:
            return self._head
        weight = torch.zeros(self.num_classes, self.feature_dim) if self.has_features else torch.eye(self.num_classes)
        return Head(weight, torch.zeros(self.num_classes))

    def to(self, device: torch.device) -> Self:
        """Move the model if it is a torch module; return self."""
        if self.network is not None:
            self.network.to(device)
            self.device = torch.device(device)
        return self

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return logits and features of normalised images (n, 3, h, w), after an input-gradient step if any.

        Raises:
            NotApplicableError: maps are requested, or a step where the model has no gradients.
        """
        if request.layers or (request.perturb is not None and not self.differentiable):
            what = "maps" if request.layers else "gradients"
            raise NotApplicableError(f"model '{self.name}' has no {what} — choose another method")
        images = images.to(self.device, torch.float32)
        with self._evaluating():
            if request.perturb is not None:
                images = perturbed(lambda x: self._read(x)[0], images, self.preprocess.std, request.perturb)
                self.passes += len(images)
            with torch.no_grad():
                logits, features = self._read(images)
        self.passes += len(images)
        return Outputs(logits.detach().float(), (logits if features is None else features).detach().float(), {})

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        with nullcontext() if self.network is None else evaluating(self.network), arithmetic("fp32", self.device):
            yield


@contextmanager
def failing_on(images: Tensor, name: str) -> Iterator[None]:
    """Turn whatever the user's code raises into an error that says what a model is given.

    Raises:
        ConfigError: it fails.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        found = f"model '{name}' fails on images {tuple(images.shape)} ({type(error).__name__}: {str(error)[:300]})"
        way = "check the size that preprocess makes, and its channels: one number each in mean and std"
        raise ConfigError(f"{found} — {way}") from error


def _check_head(head: Head, features: Tensor, logits: Tensor, name: str) -> None:
    c, d = logits.shape[1], features.shape[1]
    if tuple(head.weight.shape) != (c, d):
        raise ConfigError(f"model '{name}': head has W {tuple(head.weight.shape)} — {(c, d)} expected, of {c} logits")
    difference = features.float().cpu() @ head.weight.T + head.bias - logits.float().cpu()
    off, scale = float(difference.abs().max()), float(logits.abs().max()) + 1.0
    if not off <= 1e-3 * scale:
        raise ConfigError(f"model '{name}': W·features + b is up to {off:.3g} off the logits — give their own head")


def onnx_session(model: bytes) -> Any:
    """Return a session of onnxruntime on the CPU for the content of a file.

    Raises:
        CheckpointError: onnxruntime cannot load it.
        ConfigError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConfigError(f"package 'onnxruntime' is not installed — {pip_install('onnx')}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"model cannot be read by onnxruntime ({reason}) — export it again") from error
