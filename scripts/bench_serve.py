"""What a server costs beside the bare detector: requests per second and latency for 1, 8 and 64 clients at a time.

    python scripts/bench_serve.py detector/ photo.jpg --seconds 10

Clients keep their connections and ask without a pause. They run in this process, the server in another; on two
processors both share them. The bare ways decode the same file in a loop, with one image and with 32 at a time: the
network alone normalises the pixels and runs without gradients, the detector is `detector.predict`.
"""

import argparse
import asyncio
import io
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import openbench as ob
from openbench.backbones.network import NetworkBackbone
from openbench.data.loading import normalise, prepared, stack

BATCH = 32


def pixels(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def network_of(detector: ob.Detector) -> Callable[[list[np.ndarray]], object]:
    """The pass of the detector's network alone."""
    backbone = detector.learnt[0]
    if not isinstance(backbone, NetworkBackbone):
        raise SystemExit(f"{detector!r} has no torch network to compare with — give one that was saved as weights")

    def forward(images: list[np.ndarray]) -> object:
        with torch.no_grad():
            crops = stack([prepared(image, backbone.preprocess) for image in images])
            return backbone.network(normalise(crops, backbone.preprocess))

    return forward


def bare(way: Callable[[list[np.ndarray]], object], content: bytes, images: int, seconds: float) -> list[float]:
    """Seconds of each call."""
    found, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        way([pixels(content) for _ in range(images)])
        found.append(time.perf_counter() - began)
    return found


async def client(port: int, request: bytes, end: float, found: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(length.group(1)))
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"the server answered {head!r} {body!r}")
        found.append(time.perf_counter() - began)
    writer.close()


async def loaded(port: int, content: bytes, clients: int, seconds: float) -> list[float]:
    """Seconds of each request."""
    head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: {len(content)}\r\n\r\n"
    found: list[float] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, head.encode() + content, end, found) for _ in range(clients)))
    return found


def line(name: str, took: list[float], images: int, seconds: float) -> None:
    p50, p95, p99 = (1000 * q for q in np.quantile(took, (0.5, 0.95, 0.99)))
    print(f"{name:22} {images * len(took) / seconds:9,.0f} {p50:9.2f} {p95:9.2f} {p99:9.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments = parser.parse_args()
    content = arguments.image.read_bytes()
    detector = ob.load_detector(arguments.detector)
    ways = {"network": network_of(detector), "detector": detector.predict}
    bare(detector.predict, content, 1, 0.5)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':22} {'images/s':>9} {'p50 ms':>9} {'p95 ms':>9} {'p99 ms':>9}")
    for name, way in ways.items():
        line(f"{name}, 1 image", bare(way, content, 1, arguments.seconds), 1, arguments.seconds)
        line(f"{name}, {BATCH} images", bare(way, content, BATCH, arguments.seconds), BATCH, arguments.seconds)
    command = [sys.executable, "-m", "openbench", "serve", str(arguments.detector), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            port = next(int(found.group(1)) for text in server.stderr if (found := re.search(r":(\d+)$", text.strip())))
            for clients in (1, 8, 64):
                took = asyncio.run(loaded(port, content, clients, arguments.seconds))
                line(f"server, {clients} clients", took, 1, arguments.seconds)
        finally:
            server.terminate()
    print(f"the server ended with exit code {server.returncode}")


if __name__ == "__main__":
    main()
