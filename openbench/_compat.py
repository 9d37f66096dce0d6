"""Imports of torchvision, timm and open_clip beside a CPU-only torch.

The registry's torchvision wheel then cannot load its C++ operators, and its import fails at `torchvision::nms`. It is
enough to declare the two schemas that the import looks up: no classifier calls these operators.
"""

import importlib
import importlib.util
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from openbench.errors import ConfigError

_SCHEMAS = ("nms", "qnms")
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def prepare_torchvision() -> None:
    """Declare the operators that torchvision's import needs and that have no schema yet. Works once per process."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    # If its C++ library can be loaded, that declares the schemas, and declaring them twice fails.
    for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
        with suppress(OSError):
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    for name in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, name):
            _declared.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
            _declared[-1].define(name + _ARGUMENTS)  # type: ignore[no-untyped-call]


def library(name: str) -> ModuleType:
    """Import torchvision, timm or open_clip (or one of their modules) once torchvision can be imported.

    Raises:
        ConfigError: the package is not installed.
    """
    prepare_torchvision()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = {"open_clip": "open_clip_torch"}.get(name.split(".")[0], name.split(".")[0])
        raise ConfigError(
            f"'{name}' needs the package '{error.name}', which is not installed — pip install {package}"
        ) from error


_declared: list[torch.library.Library] = []  # the schemas live as long as their Library

prepare_torchvision()
