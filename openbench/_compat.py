"""What must happen before torchvision is imported. Import this module first wherever torchvision, timm or open_clip is.

Next to a CPU-only torch the registry's torchvision wheel cannot load its C++ operators, and then its import stops at
`torchvision::nms`, taking timm and open_clip with it. Declaring the two schemas that its import looks up is enough:
no classifier calls the operators themselves.
"""

import importlib
import importlib.util
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import torch

from openbench.errors import ConfigError

_SCHEMAS = ("nms", "qnms")
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# torchvision 0.(k + 15) is built against torch 2.k.
_MINOR_OFFSET = 15


def matching_torchvision(torch_version: str) -> str:
    """Return the `major.minor` of the torchvision release built against a torch release.

    Raises:
        ConfigError: not a 2.x version.
    """
    major, minor = torch_version.split(".")[:2]
    if major != "2":
        raise ConfigError(f"torch {torch_version} is installed — allowed: >=2.6,<2.14 — pip install 'torch>=2.6,<2.14'")
    return f"0.{int(minor) + _MINOR_OFFSET}"


def check_versions(torch_version: str, torchvision_version: str) -> None:
    """Raise ConfigError unless the two releases belong together."""
    wanted = matching_torchvision(torch_version)
    if ".".join(torchvision_version.split(".")[:2]) != wanted:
        raise ConfigError(
            f"torch and torchvision do not belong together — found torch {torch_version} with torchvision "
            f"{torchvision_version} — torchvision {wanted}.* is built for it — pip install 'torchvision=={wanted}.*'"
        )


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
    """Check the versions and declare the operators that are missing; return their names. Works once per process.

    Raises:
        ConfigError: torch and torchvision releases that do not belong together.
    """
    try:
        check_versions(torch.__version__, version("torchvision"))
    except PackageNotFoundError:
        return ()
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
