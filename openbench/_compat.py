"""What must happen before torchvision is imported. Import this module first wherever torchvision, timm or open_clip is.

Next to a CPU-only torch the registry's torchvision wheel cannot load its C++ operators, and then its import stops at
`torchvision::nms`, taking timm and open_clip with it. Declaring the two schemas that its import looks up is enough:
no classifier calls the operators themselves.
"""

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from openbench.errors import ConfigError

_SCHEMAS = ("nms", "qnms")
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def missing_operators() -> tuple[str, ...]:
    """Return the names of torchvision's operators that its import needs and that have no schema yet.

    Its C++ library is loaded first: where that works it brings the schemas, and declaring them twice would fail.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return ()
    for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError:
            continue
    return tuple(name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name))


@cache
def prepare_torchvision() -> tuple[str, ...]:
    """Declare the operators that are missing; return their names. Works once per process."""
    missing = missing_operators()
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in missing:
            library.define(name + _ARGUMENTS)  # type: ignore[no-untyped-call]
        _declared.append(library)
    return missing


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
            f"package '{error.name}' is not installed, '{name}' needs it — pip install {package}"
        ) from error


_declared: list[torch.library.Library] = []  # a Library that is collected takes its schemas with it

prepare_torchvision()
