"""Files of weights: search, safe loading, checks before they enter a network."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from openbench import paths
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, OpenbenchError, did_you_mean, listed

_PICKLED = (".pt", ".pth", ".th", ".ckpt", ".bin")
SUFFIXES = (".safetensors", *_PICKLED)
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")


def find_weights(name: str) -> Path:
    """Return the file of weights called `name`: an absolute path, or one below the working folder or a data root.

    Raises:
        CheckpointError: it is in none of these places; the message lists them.
    """
    return find_file(name, "weights", CheckpointError)


def find_file(name: str, what: str, error: type[OpenbenchError]) -> Path:
    """Return the file or folder called `name`: an absolute path, or one below the working folder or a data root.

    Args:
        name: as in a config.
        what: what the file holds, for the message.
        error: what to raise where it is in none of these places.
    """
    path, places = Path(name), paths.places(name)
    for place in places:
        if place.exists():
            return place
    neighbours = sorted({f.name for p in places if p.parent.is_dir() for f in p.parent.iterdir()})
    searched = ", ".join(f"'{place}'" for place in places)
    hint = f"{did_you_mean(path.name, neighbours)} (searched: {searched})"
    raise error(f"{what} '{name}' not found{hint} — put it into one of these places, or set OPENBENCH_DATA")


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the state dict in a file, on the CPU, wrappers (`state_dict`, `module.`) taken off.

    Pickled files are opened with `weights_only=True`: nothing in them can run.

    Args:
        path: `.safetensors`, or one of `.pt .pth .th .ckpt .bin` written by torch.save.
        sha256: the hash that the file must have, 64 hex digits; None = any.

    Raises:
        CheckpointError: missing, another suffix or hash, unreadable, or not a plain state dict.
    """
    if not path.is_file():
        raise CheckpointError(f"weights '{path}': no such file — give the path of a .safetensors, .pt or .pth file")
    if sha256 is not None and (actual := file_sha256(path)) != sha256.lower():
        raise CheckpointError(f"weights '{path}' have SHA-256 {actual}, expected {sha256} — fetch the file again")
    content = _open(path)
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    odd = [str(k) for k, v in content.items() if not _is_plain(k, v)] if isinstance(content, Mapping) else ["all of it"]
    if odd or not content:
        found = f"({listed(odd) or 'nothing'} other than names with dense tensors of real numbers)"
        raise CheckpointError(f"weights '{path}' do not hold a plain state dict {found} — save model.state_dict()")
    # nn.DataParallel puts every key under `module.`; a network that has such a child keeps its other keys.
    prefix = "module." if all(key.startswith("module.") for key in content) else ""
    return {key.removeprefix(prefix): value for key, value in content.items()}


def _open(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in _PICKLED:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises a dozen kinds as it follows the content of a damaged file
        if "allocate memory" in str(error):  # nothing is wrong with the file
            raise MemoryError(f"weights '{path}': {error}") from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        way = "save them again with torch.save(model.state_dict(), path) or as .safetensors"
        raise CheckpointError(f"weights '{path}' cannot be read as tensors alone ({reason[:200]}) — {way}") from error
    raise CheckpointError(f"weights '{path}': suffix '{path.suffix}' is unknown — allowed: {', '.join(SUFFIXES)}")


def _is_plain(key: Any, value: Any) -> bool:
    if not isinstance(key, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not (value.is_nested or value.is_meta or value.is_quantized or value.is_complex())


def apply_weights(
    module: nn.Module, state: Mapping[str, Tensor], where: str, rename: Callable[[str], str] = str
) -> None:
    """Copy a state dict into a network; every key must fit, counters of batch norm excepted.

    Args:
        module: receives the values, in its own dtype.
        state: parameter name → tensor.
        where: the source's name in messages.
        rename: maps the file's keys to the network's.

    Raises:
        CheckpointError: keys missing or unknown, shapes that differ, or values that the network cannot hold.
    """
    current = module.state_dict()
    new = {rename(key): value for key, value in state.items()}
    # Releases may hold a linear classifier as a 1×1 convolution.
    new |= {k: new[k].flatten(1) for k, v in current.items() if k in new and new[k].shape == (*v.shape, 1, 1)}
    both = [(k, new[k], v) for k, v in current.items() if k in new]
    problems = {
        "missing": [k for k in current if k not in new and not _is_counter(k)],
        "unknown": [k for k in new if k not in current and not _is_counter(k)],
        "of another shape": [
            f"{k} {tuple(a.shape)} in the file, {tuple(b.shape)} in the network"
            for k, a, b in both
            if a.shape != b.shape
        ],
        "not of floating point": [k for k, a, b in both if b.is_floating_point() > a.is_floating_point()],
        # As the network will hold them: 1e300 is infinite in float32.
        "not finite": [k for k, a, b in both if not bool(torch.isfinite(a.to(b.dtype)).all())],
    }
    if any(problems.values()):
        found = "; ".join(f"{len(keys)} {problem}: {listed(keys)}" for problem, keys in problems.items() if keys)
        raise CheckpointError(
            f"weights {where} do not fit {type(module).__name__} ({found}) — choose the backbone config that these "
            "weights were made with; backbone.num_classes is their number of classes, where it is not the benchmark's"
        )
    module.load_state_dict({k: new.get(k, v) for k, v in current.items()})


def _is_counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")
