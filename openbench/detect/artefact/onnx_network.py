"""The network of a detector as an ONNX graph: what is written of it, and how onnxruntime makes a backbone of that."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from openbench.api.models.outputs import OutputsBackbone, Read, Source
from openbench.api.models.preprocess import prepared
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.detect.artefact.network_part import preprocess_of
from openbench.detect.artefact.schema import NetworkPart
from openbench.detect.export.network import OUTPUTS
from openbench.detect.export.onnx import require, session_of
from openbench.digest import bytes_sha256
from openbench.errors import CheckpointError

_LOCATION = b"location"  # of a tensor that is kept in another file, whose path is in the graph
# Field 1 of 8 bytes, in protobuf's shortest form or in longer ones, which are read alike.
_KEY = re.compile(rb"(\x0a|\x8a\x80*\x00)(\x08|\x88\x80*\x00)\Z")
_FIRST = 2  # images on which a graph is tried
_KEY_MOST = 20  # bytes: two numbers of ten


def onnx_backbone(content: bytes, part: NetworkPart, given: object, head: Mapping[str, Tensor]) -> OutputsBackbone:
    """Return the network that an ONNX graph is, run by onnxruntime on the CPU.

    Args:
        content: of the file.
        part: what the manifest says of it.
        given: the transform, where it is a function of the user's own.
        head: `weight` (c, d) and `bias` (c,) of the linear classifier; empty where there is none.

    Raises:
        CheckpointError: no graph that onnxruntime can read, one of other inputs or outputs, or one that reads other
            files.
        ConfigError: onnxruntime is not installed.
    """
    require("onnxruntime")
    if _names_files(content):
        raise CheckpointError(f"the network '{part.name}' names other files — one graph with its weights expected")
    side = prepared(preprocess_of(part, given), Preprocess(resize=part.preprocess.crop, crop=part.preprocess.crop))
    p = side.preprocess
    try:
        session = session_of(content)
        first = _read(session, torch.zeros(_FIRST, p.channels, p.crop, p.crop))
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        told = str(error).splitlines()[0][:200]
        raise CheckpointError(f"the network '{part.name}' cannot be read by onnxruntime — {told}") from error
    found = [tuple(rows.shape) for rows in (first.logits, first.features) if rows is not None]
    if [(len(shape), shape[:1]) for shape in found] != 2 * [(2, (_FIRST,))]:
        raise CheckpointError(
            f"the network '{part.name}' makes outputs of the shapes {found} of {_FIRST} images — logits and features, "
            "a row for each image, expected"
        )
    source = Source(part.name, f"onnx of {part.architecture}", partial(_read, session), bytes_sha256(content))
    return OutputsBackbone(source, side, first, Head(head["weight"], head["bias"]) if head else None)


def _read(session: Any, images: Tensor) -> Read:
    logits, features = session.run(list(OUTPUTS), {"images": images.contiguous().numpy()})
    return Read(torch.from_numpy(logits), torch.from_numpy(features))


def _names_files(content: bytes) -> bool:
    """Whether the numbers of a graph lie in other files in part."""
    at = content.find(_LOCATION)
    while at >= 0:
        if _KEY.search(content, max(0, at - _KEY_MOST), at):
            return True
        at = content.find(_LOCATION, at + 1)
    return False
