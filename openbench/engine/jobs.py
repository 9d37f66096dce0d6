"""Jobs other than a run: training a network, filling the feature cache, checking a benchmark."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openbench.core.composite import leaves
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field, Mixing, Request, Role
from openbench.core.runtime import Runtime
from openbench.core.search import settings_of
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import WHERE as OUTLIERS, build_benchmark
from openbench.data.checking.verify import CheckReport, refuse_same_images, verify_node
from openbench.engine.compatibility import check_classes
from openbench.engine.evaluate import feature_store, for_layers, mixed_with
from openbench.engine.prepare import (
    Config,
    build_backbone,
    build_method,
    check_images,
    load_benchmark,
    ready_backbone,
    train_backbone,
    with_feature_file,
)
from openbench.errors import ConfigError
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.training.loop.weights import Trained, build_training

logger = logging.getLogger(__name__)


def train(config: Config, runtime: Config) -> Trained:
    """Return the trained backbone of a config; an earlier training is loaded.

    Raises:
        ConfigError: the backbone comes with weights.
    """
    setting = Runtime.from_config(runtime)
    benchmark = build_benchmark(config["benchmark"])
    refuse_same_images(benchmark)
    backbone = build_backbone(config, benchmark)
    check_images(backbone, benchmark)
    if backbone.trained:
        raise ConfigError(
            f"backbone '{backbone.name}' comes with weights, so there is nothing to train — choose one whose yaml says "
            "`weights: null` (python -m openbench list backbone)"
        )
    policy = "auto" if setting.train == "never" else setting.train
    return train_backbone(config, benchmark, backbone, replace(setting, train=policy))[0]


def extract(config: Config, runtime: Config) -> dict[str, int]:
    """Fill the feature cache with what the method reads of every split; return images passed per split.

    With several shards a job makes the portions that no other job makes, logs how many are left to others, and ends.
    """
    setting = Runtime.from_config(runtime)
    sharding = setting.sharding
    chosen = build_method(config["method"])
    benchmark = load_benchmark(config, chosen)
    backbone, _ = ready_backbone(config, benchmark, setting)
    check_classes(benchmark, backbone, chosen.method, chosen.name)
    method, space = for_layers(chosen.method, backbone.layers), chosen.space
    store = feature_store(setting, sharding)
    benchmark, passes = with_feature_file(backbone, benchmark), {}
    base = Request(fields=frozenset({Field.FEATURES}))
    for split in benchmark.splits():
        if split.unread:
            continue
        before = backbone.passes
        # A pass for maps leaves the base columns behind, one for these no maps: so the method's come first.
        for request in (*requests_of(method, space, split.role), base):
            if sharding.count == 1:
                store.get(backbone, split, request)
            elif left := store.share(backbone, split, request):
                logger.info(f"features of {split.role}/{split.name}: portions that other jobs are still making: {left}")
        for mixing in mixings_of(method, space, split.role):
            store.get(backbone, mixed(split, mixed_with(benchmark.ood_val), mixing, backbone.preprocess), MIXED_READ)
        passes[f"{split.role}/{split.name}"] = backbone.passes - before
    return passes


def check(config: Config, runtime: Config) -> CheckReport:
    """Verify a benchmark: counts, readable files, disjoint classes, no image on two sides.

    If the training uses outliers, they are verified too.
    """
    Runtime.from_config(runtime)
    learns = "training" in config and build_training(config["training"]).uses_outliers
    return verify_node(BenchmarkConfig.parse(config["benchmark"]), config.get(OUTLIERS) if learns else None)


def mixings_of(method: Method, space: Mapping[str, Any], role: Role) -> list[Mixing]:
    """Return the mixings of the images of a split for fitting, at all settings."""
    requests = (leaf.request for setting in (method, *settings_of(method, space)) for leaf in leaves(setting))
    return list(dict.fromkeys(r.mixing for r in requests if r.mixing is not None and r.fit_on == role))


def requests_of(method: Method, space: Mapping[str, Any], role: Role) -> list[Request]:
    """Return the requests of a split: clean columns for fitting, every searched perturbation on validation splits."""
    if role == Role.ID_TRAIN:
        return [leaf.request.clean for leaf in leaves(method) if leaf.request.fit_on == role]
    if role == Role.OOD_TRAIN:
        return []
    settings = settings_of(method, space if role in (Role.ID_VAL, Role.OOD_VAL) else {})
    every = (leaf for setting in settings for leaf in leaves(setting))
    return list(dict.fromkeys(leaf.request.unmixed for leaf in every if not isinstance(leaf, LiveMethod)))
