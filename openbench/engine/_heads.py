"""Classifiers (heads) fitted on the cached features of a network without one, and their cache."""

import io
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openbench.backbones.base import Backbone, HeadKind, PromptKind
from openbench.backbones.heads.fit import FittedHead, linear_probe, nearest_mean
from openbench.backbones.heads.headed import Headed, NearestNeighbours
from openbench.backbones.heads.prompts import learnt_prompts
from openbench.backbones.libraries.zero_shot import ZeroShotBackbone
from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import Head
from openbench.core.request import Field, Request
from openbench.core.runtime import Runtime
from openbench.digest import digest
from openbench.engine.evaluate import feature_store
from openbench.errors import NotApplicableError
from openbench.features.extract import select
from openbench.features.store import FeatureStore
from openbench.source import code_digests
from openbench.storage.checksum import DAMAGED, DamagedError, read_sealed, write_sealed

logger = logging.getLogger(__name__)

_LABELLED = Request(fields=frozenset({Field.FEATURES, Field.LABELS}))
_PROMPTS = ("coop", "locoop")
_KINDS = ("linear_probe", "nearest_mean", "knn", *_PROMPTS)


def head_reader(node: Mapping[str, Any]) -> str:
    """Return a phrase for messages about a backbone whose head is fitted on ID training images, else empty.

    Args:
        node: of the backbone.
    """
    fits = node.get("head") in _KINDS
    return f"backbone '{node.get('name')}', whose head is fitted on it" if fits else ""


def with_fitted_head(backbone: Backbone, benchmark: Benchmark, runtime: Runtime) -> Backbone:
    """Return a backbone with the head that its config names, fitted now or loaded; other backbones as they are.

    Args:
        backbone: with weights, on its device.
        benchmark: its ID training features fit the head, its ID validation features choose hyper-parameters.
        runtime: names the folders of features and heads.

    Raises:
        NotApplicableError: the benchmark has a single class.
    """
    kind = backbone.head_to_fit
    if kind is None:
        return backbone
    c = len(benchmark.classes)
    if c < 2 or benchmark.id_train.unread or benchmark.id_val.unread:
        raise NotApplicableError(
            f"backbone '{backbone.name}': head={kind} is fitted on labelled ID training and validation images, and "
            f"benchmark '{benchmark.name}' has {'one class' if c < 2 else 'none of them here'} — set "
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
                f"backbone '{backbone.name}': head={kind} has {backbone.num_classes} class names, benchmark "
                f"'{benchmark.name}' has {c} — set backbone.classes=null for the benchmark's names"
            )
        tower = learnt.text_towers["text"]
        fitted_on += [{**asdict(learnt.prompt_learning), "classes": tower.classes, "tower": tower.digest}]
    # The head is not known yet; its data identify it.
    unfitted = Headed(backbone, kind, torch.nn.Identity(), classes=c, fitted_on=fitted_on)
    # Code that is foreign or not committed enters its name.
    file = runtime.heads / f"{digest({'head': unfitted.digest, **code_digests(__name__, unfitted)})}.npz"
    head = _load(file)
    if head is None:
        images = f"{len(benchmark.id_train):,} images of {benchmark.id_train.name}"
        logger.info(f"head: {kind} of {backbone.name} is fitted on {images}")
        head = (
            _linear(backbone, kind, benchmark, store)
            if learnt is None
            else _learnt_prompts(learnt, kind, benchmark, store)
        )
        stream, about = io.BytesIO(), np.array(json.dumps(dict(head.about)))
        np.savez(stream, weight=head.head.weight.numpy(), bias=head.head.bias.numpy(), about=about)
        write_sealed(file, stream.getvalue())
    return Headed(backbone, kind, head.head, classes=c, fitted_on=fitted_on, about=head.about)


def _linear(backbone: Backbone, kind: HeadKind | PromptKind, benchmark: Benchmark, store: FeatureStore) -> FittedHead:
    """Return a linear classifier on the features of all ID training images."""
    train, val = (store.get(backbone, s, _LABELLED).on(backbone.device) for s in (benchmark.id_train, benchmark.id_val))
    c = len(benchmark.classes)
    return nearest_mean(train, val, c) if kind == "nearest_mean" else linear_probe(train, val, c)


def _learnt_prompts(
    backbone: ZeroShotBackbone, kind: HeadKind | PromptKind, benchmark: Benchmark, store: FeatureStore
) -> FittedHead:
    """Return the classifier of prompts learnt on a few images of each class."""
    how = backbone.prompt_learning
    shots = _rows_of(benchmark.id_train, how.drawn(torch.from_numpy(benchmark.id_train.labels)))
    local = {Field.PATCHES} if kind == "locoop" else set()
    train = store.get(backbone, shots, Request(fields=_LABELLED.fields | local))
    val = store.get(backbone, benchmark.id_val, _LABELLED)
    return learnt_prompts(backbone.text_towers["text"], train, val, how)


def _rows_of(split: Split, rows: torch.Tensor) -> Split:
    """Return some rows of a split; its digest is another one, so their features are cached separately."""
    return replace(select(split, rows.tolist()), digest=digest({"of": split.digest, "rows": rows.tolist()}))


def _load(file: Path) -> FittedHead | None:
    """Return a cached head; None if there is none, or a damaged one, which is reported."""
    try:
        with np.load(io.BytesIO(read_sealed(file)), allow_pickle=False) as pack:
            head = Head(*(torch.from_numpy(pack[part]) for part in ("weight", "bias")))
            return FittedHead(head, json.loads(str(pack["about"])))
    except FileNotFoundError:
        return None
    except (DamagedError, *DAMAGED) as error:
        logger.info(f"head: {error} — fitted again")
        return None
