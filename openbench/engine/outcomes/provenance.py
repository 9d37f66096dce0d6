"""What made a number, without host or user names."""

import platform
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import openbench
from openbench.checkout import commit, dirty
from openbench.engine.outcomes.clock import Clock

_LIBRARIES = (
    *("torch", "torchvision", "numpy", "scipy", "scikit-learn", "faiss-cpu", "timm", "open_clip_torch"),
    "pillow",  # decodes and resizes images
)
_OPTIONAL = ("transformers", "onnxruntime", "pyod")  # named only where they were loaded


def provenance(clock: Clock, device: torch.device, passes: int) -> dict[str, Any]:
    """Return package version, git state, library versions, device, processor, UTC time, seconds and memory per stage.

    Args:
        clock: the run's stages.
        device: where the network ran.
        passes: images pushed through the network by this run; 0 if everything was cached.
    """
    return {
        "openbench": openbench.__version__,
        "git_sha": commit(),
        # Only what can move a number: code, configs and manifests.
        "git_dirty": dirty(),
        "python": platform.python_version(),
        "libraries": {name: found for name in _libraries() if (found := _version(name))},
        "device": _device(device),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "seconds": {stage: round(seconds, 4) for stage, seconds in sorted(clock.seconds.items())},
        "peak_mib": dict(sorted(clock.peak_mib.items())),
        "passes": passes,
    }


def _libraries() -> tuple[str, ...]:
    return (*_LIBRARIES, *(name for name in _OPTIONAL if name in sys.modules))


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"


@cache
def _processor() -> str:
    """The model of the processor: different models sum in different orders, and so round differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
