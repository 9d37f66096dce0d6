"""Objects of a run from its config: the benchmark, the network with weights, the method.

Besides, the jobs that need no more than these: training a network, filling the feature cache, checking a benchmark.
"""

import io
import json
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from openbench import paths
from openbench.backbones.base import Backbone, HeadKind, PromptKind, check_precision, resolve_device
from openbench.backbones.heads import (
    FittedHead,
    Headed,
    NearestNeighbours,
    learnt_prompts,
    linear_probe,
    nearest_mean,
)
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.open_clip import ZeroShotBackbone
from openbench.backbones.rows import FeatureFile
from openbench.config.build import build, from_node
from openbench.config.constraints import check_value, hints_of
from openbench.config.overrides import ATTACK, NAME, STREAM
from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import Head
from openbench.core.method import LiveMethod, Method, StreamingMethod, StreamPlan, leaves
from openbench.core.record import ResultRecord
from openbench.core.request import Field, Mixing, Request, Role
from openbench.core.runtime import Runtime, under_torchrun
from openbench.core.search import ChosenMethod, grid, settings_of, with_params
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import WHERE as OUTLIERS, build_benchmark, open_benchmark, with_outliers
from openbench.data.checking.verify import CheckReport, refuse_listed_images, refuse_same_images, verify_node
from openbench.data.download import are_missing
from openbench.digest import digest
from openbench.engine.compatibility import check_classes, check_training_counts
from openbench.engine.evaluate import feature_store, for_layers, mixed_with
from openbench.engine.probe import probed
from openbench.engine.provenance import TrainingInfo
from openbench.engine.run import RunSpec, check_material
from openbench.engine.tune import Tuning, check_strategy
from openbench.errors import ConfigError, NotApplicableError
from openbench.features.attacks import Attack
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.features.extract import select
from openbench.features.store import FeatureStore
from openbench.metrics.suite import MetricOptions
from openbench.public import TARGET, public_name
from openbench.results.records.store import RecordStore
from openbench.source import code_digests
from openbench.storage.checksum import DAMAGED, DamagedError, read_sealed, write_sealed
from openbench.training.loop.distributed import require_one_process
from openbench.training.loop.weights import Trained, build_training, get_or_train

logger = logging.getLogger(__name__)
T = TypeVar("T")
Config = Mapping[str, Any]
Adopt = Callable[[Benchmark], tuple[Backbone, Config]]
_MOST = 2  # of each kind: a benchmark with its training images, and without for methods that do not read them
_GROUPS = ("near", "far", "csid")
_LABELLED = Request(fields=frozenset({Field.FEATURES, Field.LABELS}))
_PROMPTS = ("coop", "locoop")
_KINDS = ("linear_probe", "nearest_mean", "knn", *_PROMPTS)
_PER_RUN = ("method", "tune", "metrics", ATTACK)  # nodes that neither a benchmark nor a network depends on


def prepare(
    config: Config,
    setting: Runtime,
    *,
    method: ChosenMethod | None = None,
    adopt: Adopt | None = None,
    record: ResultRecord | None = None,
    shared: "SharedObjects | None" = None,
    overrides: Sequence[str] = (),
) -> RunSpec:
    """Return the run of a config, with objects that are ready; input is checked before a training begins.

    Args:
        config: the scientific nodes: benchmark, backbone, training, method, tune, metrics, seed.
        setting: the runtime.
        method: in place of the config's.
        adopt: makes a backbone and its node of the caller's own network, in place of the config's backbone.
        record: that the run is to repeat.
        shared: benchmarks and networks of earlier runs of the same process.
        overrides: that compose to the config, for the record.

    Raises:
        OpenbenchError: bad input, before anything is computed where that is possible.
    """
    chosen, shared = method or build_method(config["method"]), shared or SharedObjects()
    config = {**config, "method": chosen.node}
    tuning, metrics = _options(Tuning, config["tune"], "tune"), _options(MetricOptions, config["metrics"], "metrics")
    reads_train = bool(train_reader(chosen, config["backbone"]))
    attack = _options(Attack, config[ATTACK], ATTACK) if ATTACK in config else None
    roots = paths.data_roots()
    key = digest(config["benchmark"]), reads_train, roots
    benchmark = shared.get("benchmark", key, lambda: load_benchmark(config, chosen))
    check_strategy(tuning, chosen, benchmark)
    if record is not None:
        check_material(record, benchmark, chosen.method)
    require_one_process("run")
    adopted = None
    if adopt is not None:
        adopted, node = adopt(benchmark)
        config = {**config, "backbone": node}

    def ready() -> tuple[Backbone, TrainingInfo]:
        return ready_backbone(config, benchmark, setting, adopted)

    # A method that runs the network itself might change it.
    live = any(isinstance(leaf, LiveMethod) for setting in chosen.settings for leaf in leaves(setting))
    if adopted is not None or live or setting.train == "force":
        backbone, training = ready()
    else:
        nodes = {name: node for name, node in config.items() if name not in _PER_RUN}
        # Weights that were trained now are read back by the next run: its record says that they were reused.
        backbone, training = shared.get(
            "backbone", (digest(nodes), roots, setting), ready, lambda pair: not pair[1].name or pair[1].reused
        )
    check_classes(benchmark, backbone, chosen.method, chosen.name)
    return RunSpec(
        benchmark=with_feature_file(backbone, benchmark),
        backbone=backbone,
        method=for_layers(chosen.method, backbone.layers),
        method_name=chosen.name,
        space=chosen.space,
        tuning=tuning,
        metrics=metrics,
        attack=attack,
        config={name: node for name, node in config.items() if name != OUTLIERS or training.outliers is not None},
        training_info=training,
        overrides=overrides,
    )


def build_method(node: Config) -> ChosenMethod:
    """Return the unfitted method of a node with its search space, both checked before anything is loaded."""
    name = name_of(node)
    where = f"method '{name}'"
    method: Method = build(node, where, Method)
    space = node.get("_space_") or method.own_space
    check_value(space, Mapping[str, Sequence[Any]], f"{where}._space_")
    if isinstance(method, StreamingMethod):
        from_node(StreamPlan, node.get(STREAM) or {}, StreamPlan.named)
        if space:
            raise ConfigError(f"{where}: a streaming method is not tuned — leave `_space_` out")
    settings = grid(space, list(method.params()), where)
    kinds = hints_of(type(method))
    for parameter, values in space.items():
        for value in values:
            check_value(value, kinds.get(parameter, Any), f"{where}._space_.{parameter}")
    chosen = ChosenMethod(name, method, node, dict(space))
    if len(chosen.settings) == 1:  # besides the defaults there is none that the method allows: the error says why
        with_params(method, settings[0])
    return chosen


def train_reader(chosen: ChosenMethod, backbone: Config) -> str:
    """Return a phrase for messages about what reads the ID training images: a method, or a head; empty if neither does.

    Args:
        chosen: read at all its settings.
        backbone: its node.
    """
    roles = (leaf.request.fit_on for setting in chosen.settings for leaf in leaves(setting))
    if Role.ID_TRAIN in roles:
        return f"method '{chosen.name}', which is fitted on it"
    return f"backbone '{backbone.get('name')}', whose head is fitted on it" if backbone.get("head") in _KINDS else ""


def ready_backbone(
    config: Config, benchmark: Benchmark, runtime: Runtime, adopted: Backbone | None = None
) -> tuple[Backbone, TrainingInfo]:
    """Return the backbone of a config with weights, on its device, and their training.

    A backbone without weights is trained now if the policy allows.

    Args:
        config: the scientific nodes.
        benchmark: on which the network is evaluated.
        runtime: of the run.
        adopted: the caller's own backbone, which the config's node describes.

    Raises:
        NotApplicableError: a training was chosen for released weights.
        ConfigError: a precision that the device does not have.
    """
    device = resolve_device(runtime.own_device)
    backbone, training = adopted or build_backbone(config, benchmark), TrainingInfo()
    if isinstance(backbone, NetworkBackbone):
        check_precision(backbone.precision, device)
        backbone.width()  # it takes the images
    check_images(backbone, benchmark)
    if backbone.trained:
        check_training_counts(backbone, benchmark, config, name_of(config["training"]))
    else:
        policy = "never" if under_torchrun() else runtime.train  # `train` is what torchrun divides
        trained, training = train_backbone(config, benchmark, backbone, replace(runtime, train=policy))
        backbone = trained.backbone
    backbone = backbone.to(device)
    probed(backbone, benchmark, runtime.features, RecordStore(runtime.records))
    return with_fitted_head(backbone, benchmark, runtime), training


def name_of(node: Config) -> str:
    """The name that users type for a node: its config file's, else its class's, or the module's of a foreign class."""
    if node.get(NAME):
        return str(node[NAME])
    target = public_name(str(node.get(TARGET, "?")))
    return target.split(".")[-2] if "." in target else target.lower()


def load_benchmark(config: Config, chosen: ChosenMethod) -> Benchmark:
    """Return the benchmark of a config, with the training images if the method reads them.

    Raises:
        DataError: sets are missing.
        LeakageError: an image is on two sides.
    """
    parsed, network = BenchmarkConfig.parse(config["benchmark"]), config["backbone"]
    missing = str(network.get("name")) if are_missing(network) else ""
    benchmark = open_benchmark(parsed, train_reader(chosen, network), backbone=missing)
    refuse_listed_images(benchmark, parsed)
    refuse_same_images(benchmark)
    return benchmark


def build_backbone(config: Config, benchmark: Benchmark) -> Backbone:
    """Return the backbone of a config for a benchmark, with its released weights if it has any."""
    node = config["backbone"]
    return build(
        node,
        f"backbone '{name_of(node)}'",
        Backbone,
        num_classes=len(benchmark.classes),
        preprocess=benchmark.preprocess,
        classes=benchmark.classes,
        benchmark_classes=benchmark.classes,
        columns=benchmark.columns,
    )


def check_images(backbone: Backbone, benchmark: Benchmark) -> None:
    """Refuse a network that classifies images for a table, or one to train for a single class."""
    table = benchmark.columns is not None
    unfit = table or (len(benchmark.classes) == 1 and not backbone.trained)
    if unfit and backbone.has_network and backbone.classifies:
        raise ConfigError(
            f"backbone '{backbone.name}' classifies images, but benchmark '{benchmark.name}' has "
            f"{'rows of a table' if table else 'a single class'} — choose backbone=identity for a table, or a network "
            "with weights for images of a single class"
        )


def train_backbone(
    config: Config, benchmark: Benchmark, backbone: Backbone, runtime: Runtime
) -> tuple[Trained, TrainingInfo]:
    """Return a network that is trained now, or has the weights of an earlier training, and that training."""
    if benchmark.id_train.unread:
        reader = f"backbone '{backbone.name}', which has no weights and is trained on it"
        benchmark = build_benchmark(config["benchmark"], reader)
        refuse_same_images(benchmark)
    method, outliers = build_training(config["training"]), config.get(OUTLIERS)
    if not method.uses_outliers:
        benchmark = replace(benchmark, ood_train=None)
    elif outliers:
        benchmark = with_outliers(benchmark, outliers)
        refuse_same_images(benchmark)
    trained = get_or_train(backbone, benchmark, config, runtime)
    return trained, TrainingInfo(name_of(config["training"]), benchmark.ood_train, method, trained.reused)


def _options(kind: type[Any], node: Config, where: str) -> Any:
    return build({**node, TARGET: f"{kind.__module__}.{kind.__qualname__}"}, where, kind)


def with_feature_file(backbone: Backbone, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the rows of a backbone's feature file in place of images, else as it is.

    Labels, names and digests stay, so records name the same images.

    Raises:
        DataError: the file lacks a set or an image.
    """
    if not isinstance(backbone, FeatureFile):
        return benchmark

    def rows(split: Split) -> Split:
        return split if split.unread else replace(split, items=backbone.items_of(split))

    changes: dict[str, Any] = {group: {k: rows(v) for k, v in getattr(benchmark, group).items()} for group in _GROUPS}
    singles = ((role, getattr(benchmark, role)) for role in ("id_train", "id_val", "id_test", "ood_val"))
    return replace(benchmark, **changes | {role: rows(split) for role, split in singles if split is not None})


class SharedObjects:
    """A cache of the latest benchmarks and networks, shared by the runs of one process. No record depends on it."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T], keep: Callable[[T], Any] = lambda _: True) -> T:
        """Return the cached object of a key, or make it and cache it.

        Args:
            kind: `benchmark` or `backbone`.
            key: of everything that the object depends on.
            make: makes it.
            keep: whether to cache what was made.
        """
        objects = self._objects.setdefault(kind, {})
        found: T | None = objects.pop(key, None)
        # Before the new one is made: two networks may not fit into memory where one does.
        while len(objects) >= _MOST:
            del objects[next(iter(objects))]
        new = make() if found is None else found
        if found is not None or keep(new):
            objects[key] = new
        return new


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
    rows = how.drawn(torch.from_numpy(benchmark.id_train.labels)).tolist()
    # Under a digest of their own, so that their features are cached separately.
    key = digest({"of": benchmark.id_train.digest, "rows": rows})
    shots = replace(select(benchmark.id_train, rows), digest=key)
    local = {Field.PATCHES} if kind == "locoop" else set()
    train = store.get(backbone, shots, Request(fields=_LABELLED.fields | local))
    val = store.get(backbone, benchmark.id_val, _LABELLED)
    return learnt_prompts(backbone.text_towers["text"], train, val, how)


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
    chosen = build_method(config["method"])
    benchmark = load_benchmark(config, chosen)
    backbone, _ = ready_backbone(config, benchmark, setting)
    check_classes(benchmark, backbone, chosen.method, chosen.name)
    method, space = for_layers(chosen.method, backbone.layers), chosen.space
    store = feature_store(setting)
    benchmark, passes = with_feature_file(backbone, benchmark), {}
    base = Request(fields=frozenset({Field.FEATURES}))
    for split in benchmark.splits():
        if split.unread:
            continue
        before = backbone.passes
        # A pass for maps leaves the base columns behind, one for these no maps: so the method's come first.
        for request in (*requests_of(method, space, split.role), base):
            if setting.sharding.count == 1:
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
