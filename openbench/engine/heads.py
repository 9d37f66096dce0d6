"""Heads fitted on the cached features of a network that has no classifier: once for each cache, then read back."""

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openbench.backbones.base import Backbone, HeadKind, PromptKind
from openbench.backbones.heads.fit import FittedHead, linear_probe, nearest_mean
from openbench.backbones.heads.headed import Headed, NearestNeighbours
from openbench.backbones.heads.prompts import learnt_prompts
from openbench.backbones.libraries.zero_shot import ZeroShotBackbone
from openbench.backbones.network import NetworkBackbone
from openbench.checkout import uncommitted
from openbench.core.benchmark import Benchmark, Image, Items, Split
from openbench.core.features import Head
from openbench.core.request import Field, Request
from openbench.core.runtime import Runtime
from openbench.digest import digest
from openbench.engine.evaluate import feature_store
from openbench.errors import NotApplicableError
from openbench.features.store import FeatureStore
from openbench.source import foreign_sources
from openbench.storage.checksum import DAMAGED, DamagedError, read_sealed, write_sealed

logger = logging.getLogger(__name__)

_LABELLED = Request(fields=frozenset({Field.FEATURES, Field.LABELS}))
_PROMPTS = ("coop", "locoop")
_KINDS = ("linear_probe", "nearest_mean", "knn", *_PROMPTS)


def head_reader(node: Mapping[str, Any]) -> str:
    """Return how messages name a backbone whose head is fitted on ID training images; empty if it has none to fit.

    Args:
        node: of the backbone.
    """
    fits = node.get("head") in _KINDS
    return f"backbone '{node.get('name')}', whose head is fitted on it" if fits else ""


def with_fitted_head(backbone: Backbone, benchmark: Benchmark, runtime: Runtime) -> Backbone:
    """Return a backbone with the head that its config asks for, fitted now or read back; others as they are.

    Args:
        backbone: with weights, on its device.
        benchmark: on whose ID training features the head is fitted, and on whose ID validation it is chosen.
        runtime: where features and heads are kept.

    Raises:
        NotApplicableError: the benchmark has a single class.
    """
    kind = backbone.head_to_fit
    if kind is None or not isinstance(backbone, NetworkBackbone):
        return backbone
    c = len(benchmark.classes)
    if c < 2 or benchmark.id_train.unread or benchmark.id_val.unread:
        raise NotApplicableError(
            f"backbone '{backbone.name}': head={kind} is fitted on labelled ID training images and chosen on ID "
            f"validation — benchmark '{benchmark.name}' has {'one class' if c < 2 else 'none of them here'} — set "
            "backbone.head=null and choose a method that reads features only, e.g. method=knn"
        )
    store = feature_store(runtime)
    fitted_on: list[Any] = [benchmark.id_train.digest, benchmark.id_val.digest]
    if kind == "knn":
        train = store.get(backbone, benchmark.id_train, _LABELLED).on(backbone.device)
        return Headed(backbone, kind, NearestNeighbours(train, c), classes=c, fitted_on=fitted_on)
    learnt = backbone if isinstance(backbone, ZeroShotBackbone) and kind in _PROMPTS else None
    if learnt is not None:
        if backbone.num_classes != c:
            raise NotApplicableError(
                f"backbone '{backbone.name}': head={kind} for {backbone.num_classes} class names — benchmark "
                f"'{benchmark.name}' has {c} — set backbone.classes=null for the benchmark's names"
            )
        tower = learnt.text_towers["text"]
        fitted_on += [{**asdict(learnt.prompt_learning), "classes": tower.classes, "tower": tower.digest}]
    # The head itself is not known yet: what identifies it is what it is fitted on.
    unfitted = Headed(backbone, kind, torch.nn.Identity(), classes=c, fitted_on=fitted_on)
    place = runtime.heads / f"{_name(unfitted)}.npz"
    found = _kept(place)
    if found is None:
        images = f"{len(benchmark.id_train):,} images of {benchmark.id_train.name}"
        logger.info(f"head: {kind} of {backbone.name} is fitted on {images}")
        found = (
            _linear(backbone, kind, benchmark, store)
            if learnt is None
            else _learnt_prompts(learnt, kind, benchmark, store)
        )
        write_sealed(place, _packed(found))
    return Headed(backbone, kind, found.head, classes=c, fitted_on=fitted_on, about=found.about)


def _linear(backbone: Backbone, kind: HeadKind | PromptKind, benchmark: Benchmark, store: FeatureStore) -> FittedHead:
    """A linear classifier on the features of all ID training images."""
    train, val = (store.get(backbone, s, _LABELLED).on(backbone.device) for s in (benchmark.id_train, benchmark.id_val))
    c = len(benchmark.classes)
    return nearest_mean(train, val, c) if kind == "nearest_mean" else linear_probe(train, val, c)


def _learnt_prompts(
    backbone: ZeroShotBackbone, kind: HeadKind | PromptKind, benchmark: Benchmark, store: FeatureStore
) -> FittedHead:
    """The classifier of prompts learnt on a few images of each class."""
    how = backbone.prompt_learning
    shots = _rows_of(benchmark.id_train, how.drawn(torch.from_numpy(benchmark.id_train.labels)))
    local = {Field.PATCHES} if kind == "locoop" else set()
    train = store.get(backbone, shots, Request(fields=_LABELLED.fields | local))
    val = store.get(backbone, benchmark.id_val, _LABELLED)
    return learnt_prompts(backbone.text_towers["text"], train, val, how)


def _rows_of(split: Split, rows: torch.Tensor) -> Split:
    """Some rows of a split; their features are cached apart from the others'."""
    chosen = rows.tolist()
    return replace(
        split,
        items=_Some(split.items, chosen),
        labels=split.labels[chosen],
        keys=[split.keys[row] for row in chosen],
        digest=digest({"of": split.digest, "rows": chosen}),
    )


@dataclass(frozen=True)
class _Some:
    """Items by their places in others."""

    items: Items
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Image:
        return self.items[self.rows[index]]


def _name(unfitted: Headed) -> str:
    """What identifies a head before it is fitted; code that is foreign or not committed enters it."""
    sources, changed = foreign_sources(unfitted), uncommitted(__name__, parts=(unfitted,))
    made_from = {key: files for key, files in (("sources", sources), ("uncommitted", changed)) if files}
    return digest({"head": unfitted.digest, **made_from})


def _packed(found: FittedHead) -> bytes:
    stream = io.BytesIO()
    np.savez(
        stream,
        weight=found.head.weight.numpy(),
        bias=found.head.bias.numpy(),
        about=np.array(json.dumps(dict(found.about))),
    )
    return stream.getvalue()


def _kept(place: Path) -> FittedHead | None:
    """The head as it was kept; None where there is none, or a damaged one, which is reported and fitted again."""
    try:
        with np.load(io.BytesIO(read_sealed(place)), allow_pickle=False) as pack:
            head = Head(*(torch.from_numpy(pack[part]) for part in ("weight", "bias")))
            return FittedHead(head, json.loads(str(pack["about"])))
    except FileNotFoundError:
        return None
    except (DamagedError, *DAMAGED) as error:
        logger.info(f"head: {error} — fitted again")
        return None
