"""What is drawn of data sets, and what a network's outputs are read from: results that enter digests by themselves.

A draw needs no version: the images that it picks are part of the digest of the benchmark. It has golden values all the
same, as a benchmark that is drawn otherwise is another one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_cases import Case, Entry, file_of
from golden_inputs import bell, single, whole
from golden_trainings import MEAN, SIDE, STD, Tiny, set_weights

from openbench.backbones import network
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Perturb, Request, Role
from openbench.data import tabular as table_parts
from openbench.data.benchmark_config import class_split
from openbench.data.dataset import BenchmarkSet, SetConfig, locate
from openbench.data.manifests import FolderRule, load_classes, load_manifest
from openbench.data.own.benchmark import SHARES, OwnSet, split
from openbench.data.sources.embedded import Noise

STEPS = {
    "sign": Perturb(1.0, 0.05),
    "peak": Perturb(10.0, 0.05, "peak"),
    "logit": Perturb(epsilon=0.05, kind="logit"),
    "flat": Perturb(epsilon=0.5, kind="flat", share=0.1),
}
POOLS = ("none", "mean", "max", "gram", "gram10")


def entries() -> Iterator[Entry]:
    """One entry per thing that is drawn, and one for the outputs of a network."""
    yield _entry("class_split", class_split, {f"seed {seed}": lambda s=seed: _known(s) for seed in (0, 1)})
    rules: dict[str, dict[str, Any]] = {"per class": {"per_class": 5}, "span": {"count": 60, "span": (20, 50)}}
    yield _entry("FolderRule", FolderRule, {name: lambda r=rule: _ruled(r) for name, rule in rules.items()})
    yield _entry("limit", SetConfig, {f"seed {seed}": lambda s=seed: _limited(s) for seed in (0, 1)})
    yield _entry("own_benchmark", split, {f"seed {seed}": lambda s=seed: _own(s) for seed in (0, 1)})
    parts = {
        f"{name} {draw}": lambda n=name, d=draw: _parted(n, d) for name in table_parts.PROTOCOLS for draw in (1, 2)
    }
    yield _entry("table_parts", table_parts, parts)
    version = network.OUTPUTS_VERSION
    read = {f"pool {pool}": Case(version, lambda p=pool: _pooled(p)) for pool in POOLS}
    read |= {f"step {name}": Case(version, lambda s=step: _stepped(s)) for name, step in STEPS.items()}
    yield Entry("backbones/outputs", file_of(network), read)


def _entry(name: str, thing: Any, computed: Mapping[str, Callable[[], Sequence[float]]]) -> Entry:
    return Entry(f"draws/{name}", file_of(thing), {case: Case(None, compute) for case, compute in computed.items()})


def _known(seed: int) -> list[float]:
    names = load_classes("cifar10/classes")
    drawn = class_split({"of": "cifar10/classes", "known": 6, "seed": seed})
    return [float(names.index(name)) for name in drawn["known"]]


def _ruled(rule: Mapping[str, Any]) -> list[float]:
    made = FolderRule("golden", "g/{folder}/{name}", ("a", "b", "c"), ("x", "y", "z"), ".png", **rule)
    manifest, wanted = made.expand(lambda _: [f"{i}.png" for i in range(20)] + ["other.txt"])
    return [float(wanted), *(float(key.rpartition("/")[2].removesuffix(".png")) for key in manifest.keys)]


def _limited(seed: int) -> list[float]:
    config = SetConfig("noise", "noise/all", {"drawn": Noise()}, limit=12, seed=seed)
    keys = load_manifest("noise/all").keys
    return [float(keys.index(key)) for key in locate(BenchmarkSet("far", Role.FAR, config)).manifest.keys]


def _own(seed: int) -> list[float]:
    rows = tuple((f"{i}.png", "abc"[i % 3]) for i in range(45))
    return [
        float(key.removesuffix(".png"))
        for part in split(OwnSet(Path("golden"), rows), SHARES, seed)
        for key, _ in part.rows
    ]


def _parted(name: str, draw: int) -> list[float]:
    part, scaled = table_parts.PROTOCOLS[name]
    anomalous = np.arange(60) % 6 == 0
    parts = part(anomalous, draw)
    scale = scaled(bell(800, (60, 2)))
    shown = [float(x) for part in parts.values() for x in (len(part), *part[:12])]
    return [*shown, *(float(x) for values in scale for x in values)]


def _read(request: Request) -> Any:
    module = Tiny()
    set_weights(module)
    layers = {"stage1": "bn", "stage2": "last"}
    backbone = NetworkBackbone(
        "golden",
        "golden",
        lambda: module,
        lambda _: Anatomy("fc", layers),
        preprocess=Preprocess(SIDE, SIDE, MEAN, STD),
    )
    backbone.load_state(module.state_dict(), "golden")
    return backbone.outputs(single(bell(810, (3, 3, SIDE, SIDE))), request)


def _pooled(pool: Any) -> list[float]:
    found = _read(Request(fields=frozenset({Field.MAPS}), layers=("stage1", "stage2"), pool=pool))
    return [x for name in ("stage1", "stage2") for x in _sums(found.maps[name])]


def _stepped(step: Perturb) -> torch.Tensor:
    return _read(Request(perturb=step)).logits


def _sums(maps: torch.Tensor) -> list[float]:
    """Two sums per image and channel."""
    flat = maps.double().reshape(len(maps), -1).numpy()
    return [float(x) for x in (flat @ (whole(820, (2, flat.shape[1]), 5) - 1).T).reshape(-1)]
