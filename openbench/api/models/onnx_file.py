"""An ONNX file as the source of outputs, run by onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openbench.api.models.outputs import Read, Source
from openbench.digest import digest, file_sha256
from openbench.errors import CheckpointError, ConfigError, did_you_mean

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def onnx_source(path: Path, name: str, features: str | None, of: tuple[int, torch.device]) -> Source:
    """Return the outputs of an ONNX file: logits, and features where one of its outputs is named as such.

    Args:
        path: of the file.
        name: of the model.
        features: name of the output (n, d) that holds the features; None = there is none.
        of: the number of the benchmark's classes, and the device to run on.

    Raises:
        CheckpointError: no such file, or not a model that onnxruntime can read.
        ConfigError: onnxruntime is not installed, or inputs or outputs that do not fit.
    """
    if not path.is_file():
        raise CheckpointError(f"model '{path}': no such file — give the path of an ONNX file")
    session = _session(path, of[1])
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _DTYPES:
        found = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise ConfigError(
            f"model '{name}' takes {found} — one input of images (n, channels, h, w) of floating point expected — "
            "export the classifier alone"
        )
    wanted = _outputs(session, name, features, of[0])
    fixed = inputs[0].shape[0] if isinstance(inputs[0].shape[0], int) else None
    dtype = _DTYPES[inputs[0].type]

    def read(images: Tensor) -> Read:
        pixels = images.detach().cpu().numpy().astype(dtype)
        parts = [session.run(wanted, {inputs[0].name: rows})[: len(wanted)] for rows in _rows(pixels, fixed)]
        made = [torch.from_numpy(np.concatenate(rows)[: len(pixels)]).float() for rows in zip(*parts, strict=True)]
        return Read(made[0], made[1] if len(made) == 2 else None)

    return Source(name, f"onnx, outputs {', '.join(wanted)}", read, _content(path))


def _session(path: Path, device: torch.device) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"package 'onnxruntime' is not installed, '{path}' needs it — pip install 'openbench-ood[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    there = onnxruntime.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider",) if device.type == "cuda" and p in there]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[*providers, "CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        raise CheckpointError(
            f"model '{path}' cannot be read by onnxruntime — {str(error).splitlines()[0][:200]} — export it again"
        ) from error


def _outputs(session: Any, name: str, features: str | None, classes: int) -> list[str]:
    """The names of the logits and, where they are asked for, of the features."""
    shapes = {output.name: output.shape for output in session.get_outputs()}
    told = ", ".join(f"{n} {s}" for n, s in shapes.items())
    if features is not None and features not in shapes:
        raise ConfigError(
            f"model '{name}' has no output '{features}'{did_you_mean(features, shapes)} — its outputs: {told}"
        )
    rows = [n for n, shape in shapes.items() if len(shape) == 2 and n != features]
    fitting = [n for n in rows if n == "logits"] or [n for n in rows if shapes[n][1] == classes] or rows
    if len(fitting) != 1:
        raise ConfigError(
            f"model '{name}' has the outputs {told} — one of logits (n, {classes}) expected — call it 'logits', or "
            "name the output that holds the features: features='NAME'"
        )
    return fitting if features is None else [fitting[0], features]


def _rows(pixels: np.ndarray, fixed: int | None) -> Sequence[np.ndarray]:
    """Images in batches of the size that the file was exported for, the last one filled up with zeros."""
    if fixed is None:
        return [pixels]
    padded = np.concatenate([pixels, np.zeros((-len(pixels) % fixed, *pixels.shape[1:]), pixels.dtype)])
    return [padded[start : start + fixed] for start in range(0, len(padded), fixed)]


def _content(path: Path) -> str:
    """The hash of a file and of those beside it that it names: large weights are kept outside."""
    content = path.read_bytes()
    beside = [f for f in sorted(path.parent.iterdir()) if f != path and f.is_file() and f.name.encode() in content]
    return digest({f.name if f != path else "": file_sha256(f) for f in (path, *beside)}, 64)
