"""What made a number, without host or user names."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import openbench
from openbench.engine.clock import Clock

_LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn", "faiss-cpu", "timm", "open_clip_torch")


def provenance(clock: Clock, device: torch.device, passes: int) -> dict[str, Any]:
    """Return package version, git state, library versions, device, processor, UTC time, seconds and memory per stage.

    Args:
        clock: the run's stages.
        device: where the network ran.
        passes: images pushed through the network by this run; 0 if everything was cached.
    """
    return {
        "openbench": openbench.__version__,
        **_git(),
        "python": platform.python_version(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
        "device": _device(device),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": {stage: round(seconds, 4) for stage, seconds in sorted(clock.seconds.items())},
        "peak_mib": dict(sorted(clock.peak_mib.items())),
        "passes": passes,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"


def _processor() -> str:
    """The model of the processor: two of them sum in other orders, and round otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _git() -> dict[str, Any]:
    """The commit of the checkout that the package runs from; nothing for an installed wheel."""
    root = Path(openbench.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {"git_sha": None, "git_dirty": None}
    sha = _run_git(root, "rev-parse", "HEAD")
    # Only what can move a number: code, configs and manifests.
    status = _run_git(root, "status", "--porcelain", "--", "openbench", "configs", "data_manifests")
    return {"git_sha": sha or None, "git_dirty": None if status is None else bool(status)}


def _run_git(root: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
