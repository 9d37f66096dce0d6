"""A model of which only the outputs are known: a function, an ONNX file, a network without a linear head."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.preprocess import PreparedTransform, code_of
from openbench.backbones.base import Backbone, Outputs, arithmetic
from openbench.backbones.network import OUTPUTS_VERSION, evaluating, perturbed, state_sha256
from openbench.core.features import Head
from openbench.core.request import Request
from openbench.digest import digest, file_sha256
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, did_you_mean, pip_install

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
        "a model that shows it: return (features, logits), or name the module or ONNX output that makes features, "
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


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def onnx_reader(
    path: Path, name: str, features: str | None, classes: int, device: torch.device
) -> tuple[Read, str, str]:
    """Return what runs an ONNX file, the model in one line, and the hash of its weights.

    Args:
        path: of the file.
        name: of the model.
        features: name of the output (n, d) that holds the features; None = there is none.
        classes: number of the benchmark's classes.
        device: where it runs.

    Raises:
        CheckpointError: no such file, or not a model that onnxruntime can load.
        ConfigError: onnxruntime is not installed, or inputs or outputs that do not fit.
    """
    if not path.is_file():
        raise CheckpointError(f"model '{path}': no such file — give the path of an ONNX file")
    session = onnx_session(path, device)
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _DTYPES:
        signature = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise ConfigError(f"model '{name}' takes {signature}, not images (n, channels, h, w) alone — export it again")
    outputs = _onnx_outputs(session, name, features, classes)
    dtype, n = _DTYPES[inputs[0].type], inputs[0].shape[0]
    fixed = n if isinstance(n, int) else None  # the batch size that the file was exported for

    def read(images: Tensor) -> tuple[Tensor, Tensor | None]:
        pixels = images.detach().cpu().numpy().astype(dtype)
        size = fixed or len(pixels)
        padded = np.concatenate([pixels, np.zeros((-len(pixels) % size, *pixels.shape[1:]), dtype)])
        parts = [session.run(outputs, {inputs[0].name: rows}) for rows in np.split(padded, len(padded) // size)]
        logits, *rest = (
            torch.from_numpy(np.concatenate(part)[: len(pixels)]).float() for part in zip(*parts, strict=True)
        )
        return logits, rest[0] if rest else None

    return read, f"onnx, outputs {', '.join(outputs)}", _onnx_sha256(path)


def onnx_session(model: Path | bytes, device: torch.device) -> Any:
    """Return a session of onnxruntime for a file or its content.

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
    available = onnxruntime.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider",) if device.type == "cuda" and p in available]
    content = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(content, options, providers=[*providers, "CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        where, reason = "" if isinstance(model, bytes) else f" '{model}'", str(error).splitlines()[0][:200]
        raise CheckpointError(f"model{where} cannot be read by onnxruntime ({reason}) — export it again") from error


def _onnx_outputs(session: Any, name: str, features: str | None, classes: int) -> list[str]:
    """The name of the logits and, if there are some, of the features."""
    shapes = {output.name: output.shape for output in session.get_outputs()}
    listed = ", ".join(f"{n} {s}" for n, s in shapes.items())
    if features is not None and features not in shapes:
        raise ConfigError(f"model '{name}' has no output '{features}'{did_you_mean(features, shapes)} ({listed})")
    rows = [n for n, shape in shapes.items() if len(shape) == 2 and n != features]
    fitting = [n for n in rows if n == "logits"] or [n for n in rows if shapes[n][1] == classes] or rows
    if len(fitting) != 1:
        raise ConfigError(f"model '{name}' has the outputs {listed} — call one 'logits', or name features='OUTPUT'")
    return fitting if features is None else [fitting[0], features]


def _onnx_sha256(path: Path) -> str:
    """The hash of a file and of the files beside it that it names: large weights are stored outside."""
    content = path.read_bytes()
    others = [f for f in sorted(path.parent.iterdir()) if f != path and f.is_file() and f.name.encode() in content]
    return digest({f.name if f != path else "": file_sha256(f) for f in (path, *others)}, 64)
