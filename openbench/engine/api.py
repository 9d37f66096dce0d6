"""The four jobs as functions of plain configs: what the command line calls, and what a notebook can call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openbench.backbones.base import Backbone
from openbench.backbones.device import check_compiler, check_precision, resolve_device
from openbench.backbones.ensemble import Ensemble
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.constraints import check_value, hints_of
from openbench.config.overrides import NAME
from openbench.core.benchmark import Benchmark
from openbench.core.composite import leaves
from openbench.core.method import Method
from openbench.core.record import ResultRecord
from openbench.core.request import Field, Request, Role
from openbench.core.search import grid, with_params
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import build_benchmark, open_benchmark
from openbench.data.checking.same_images import refuse_listed_images, refuse_same_images
from openbench.data.checking.verify import CheckReport, verify_node
from openbench.data.outliers import WHERE as OUTLIERS
from openbench.data.outliers import with_outliers
from openbench.engine.applicable import check_classes
from openbench.engine.evaluate import for_layers, mixed_with
from openbench.engine.from_file import as_read_by
from openbench.engine.heads import head_reader, with_fitted_head
from openbench.engine.kept import Kept, runs_network
from openbench.engine.outcomes.learnt import Learnt
from openbench.engine.outcomes.outcome import RunOutcome
from openbench.engine.probe import probed
from openbench.engine.reads import mixings_of, requests_of, settings_of
from openbench.engine.released import check_training_counts
from openbench.engine.run import feature_store
from openbench.engine.run import run as run_spec
from openbench.engine.run import verify as verify_spec
from openbench.engine.runtime import Runtime
from openbench.engine.spec import RunSpec
from openbench.engine.tune import Tuning
from openbench.engine.verify import check_material
from openbench.errors import ConfigError, DataError, MethodError
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.metrics.suite import MetricOptions
from openbench.public import TARGET, public_name
from openbench.results.records.store import RecordStore
from openbench.say import Say, silent
from openbench.training.loop.distributed import require_one_process, under_torchrun
from openbench.training.weights.ensure import Trained, build_training, ensure_members, ensure_trained

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """Objects of the caller's own, in place of what a config would build; its nodes then only describe them.

    Args:
        benchmark: its sets; None: the config's.
        backbone: with weights, on any device; None: the config's.
        method: unfitted; None: the config's.
        kept: what jobs of the same sweep have made of the same nodes; None: everything is made now.
    """

    benchmark: Benchmark | None = None
    backbone: Backbone | None = None
    method: Method | None = None
    kept: Kept | None = None


NOTHING = Given()


def run(config: Config, runtime: Config, say: Say = silent, given: Given = NOTHING) -> RunOutcome:
    """Run one method on one benchmark with one backbone; train the backbone first if it has no weights.

    Args:
        config: the scientific nodes: benchmark, backbone, training, method, tune, metrics, seed.
        runtime: the runtime node.
        say: receives a line for everything that takes long.
        given: objects in place of nodes.

    Raises:
        OpenbenchError: any bad input, before anything is computed wherever it can be known by then.
    """
    setting = Runtime.from_config(runtime)
    if setting.on_existing != "verify":
        RecordStore(setting.records).check_writable()
    return run_spec(spec_of(config, setting, say, given), setting, say)


def verify(existing: tuple[ResultRecord, Path], config: Config, runtime: Config, say: Say = silent) -> RunOutcome:
    """Repeat the run of a record and compare the numbers; train the backbone first if its weights are not here.

    No record is written. If a training here ends in other weights, the numbers are compared as those of one more seed.

    Args:
        existing: the record and its file.
        config: the record's config, its keys in the order of the config files: sets are read in that order.
        runtime: the runtime node.
        say: receives a line for everything that takes long.

    Raises:
        NotReproducedError: the numbers differ.
        OpenbenchError: the run cannot be repeated as it was.
    """
    setting = Runtime.from_config(runtime)
    return verify_spec(spec_of(config, setting, say, record=existing[0]), setting, existing, say)


def spec_of(
    config: Config, setting: Runtime, say: Say, given: Given = NOTHING, record: ResultRecord | None = None
) -> RunSpec:
    """Return the run of a config, or of a record, with objects that are ready; errors come before a training begins."""
    method, space = build_method(config["method"], given.method)
    tuning, metrics = _options(Tuning, config["tune"], "tune"), _options(MetricOptions, config["metrics"], "metrics")
    kept, reads_train = given.kept or Kept(), bool(train_reader(method, space, "") or head_reader(config["backbone"]))
    if given.benchmark:
        benchmark = _apart(given.benchmark)
    else:
        benchmark = kept.benchmark(config, reads_train, lambda: opened(config, method, space))
    if space and tuning.strategy == "validation":
        benchmark.validation()
    if record is not None:
        check_material(record, benchmark, method)
    require_one_process("run")

    def made() -> tuple[Backbone, Learnt | None]:
        return ready_backbone(config, benchmark, setting, say, given.backbone)

    own = given.benchmark or given.backbone or runs_network(method, space)
    backbone, learnt = made() if own else kept.backbone(config, reads_train, setting, made)
    shown = learnt is not None and learnt.outliers is not None
    check_classes(benchmark, backbone, method, name_of(config["method"]))
    return RunSpec(
        benchmark=as_read_by(backbone, benchmark),
        backbone=backbone,
        method=for_layers(method, backbone.layers),
        method_name=name_of(config["method"]),
        space=space,
        tuning=tuning,
        metrics=metrics,
        config=config if shown else {name: node for name, node in config.items() if name != OUTLIERS},
        learnt=learnt,
    )


def train(config: Config, runtime: Config, say: Say = silent) -> Trained:
    """Train the backbone of a config, or return the weights that this training made earlier.

    Raises:
        ConfigError: the backbone comes with weights.
    """
    setting = Runtime.from_config(runtime)
    benchmark = _apart(build_benchmark(config["benchmark"]))
    backbone = build_backbone(config, benchmark)
    _check_images(backbone, benchmark)
    if backbone.trained:
        raise ConfigError(
            f"backbone '{backbone.name}' comes with weights — there is nothing to train; "
            "choose one whose yaml says `weights: null` (python -m openbench list backbone)"
        )
    policy = "auto" if setting.train == "never" else setting.train
    return _trained(config, _as_shown(config, benchmark, backbone), backbone, replace(setting, train=policy), say)


def extract(config: Config, runtime: Config, say: Say = silent) -> dict[str, int]:
    """Fill the feature cache for every split, with all that the chosen method reads; return images passed per split.

    Where images were passed, the last line said is the network's share of the time.
    With several shards a job makes what no other job makes, says how much others are still making, and ends.
    """
    setting = Runtime.from_config(runtime)
    sharding = setting.sharding
    method, space = build_method(config["method"])
    benchmark = opened(config, method, space)
    backbone, _ = ready_backbone(config, benchmark, setting, say)
    check_classes(benchmark, backbone, method, name_of(config["method"]))
    method = for_layers(method, backbone.layers)
    store = feature_store(setting, say, sharding)
    benchmark, passes = as_read_by(backbone, benchmark), {}
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
                say(f"features of {split.role}/{split.name}: portions that other jobs are still making: {left}")
        for mixing in mixings_of(method, space, split.role):
            store.get(backbone, mixed(split, mixed_with(benchmark.ood_val), mixing, backbone.preprocess), MIXED_READ)
        passes[f"{split.role}/{split.name}"] = backbone.passes - before
    if any(passes.values()):
        say(f"extract: {store.spent.told(setting.workers)}")
    return passes


def check(config: Config, runtime: Config, say: Say = silent) -> CheckReport:
    """Verify what a benchmark promises: counts, readable files, disjoint classes, no image on two sides.

    If the training learns from outliers, they are verified too.
    """
    Runtime.from_config(runtime)
    learns = "training" in config and build_training(config["training"]).uses_outliers
    return verify_node(BenchmarkConfig.parse(config["benchmark"]), say, config.get(OUTLIERS) if learns else None)


def build_method(node: Config, given: Method | None = None) -> tuple[Method, dict[str, list[Any]]]:
    """Return the unfitted method of a node and its search space, both checked before anything is loaded.

    Args:
        node: of the method.
        given: the method that the node describes, if there is one already.
    """
    name = name_of(node)
    method: Method = given or build(node, f"method '{name}'", Method)
    space = node.get("_space_") or {}
    check_value(space, Mapping[str, Sequence[Any]], f"method '{name}'._space_")
    settings = grid(space, list(method.params()), f"method '{name}'")
    kinds = hints_of(type(method))
    for parameter, values in space.items():
        for value in values:
            check_value(value, kinds.get(parameter, Any), f"method '{name}'._space_.{parameter}")
    reasons = [reason for params in settings if (reason := _refused(method, params))]
    if len(reasons) == len(settings):
        raise MethodError(
            f"method '{name}': each of the {len(settings)} settings in `_space_` is refused — {reasons[0]}"
        )
    return method, dict(space)


def _refused(method: Method, params: Config) -> str:
    """Why a method refuses these hyper-parameters; empty if it takes them."""
    try:
        with_params(method, params)
    except MethodError as error:
        return str(error)
    return ""


def train_reader(method: Method, space: Config, name: str) -> str:
    """Return how messages name a method that reads the ID training images; empty if no setting reads them."""
    found = (leaf.request.fit_on for setting in (method, *settings_of(method, space)) for leaf in leaves(setting))
    return f"method '{name}', which is fitted on it" if Role.ID_TRAIN in found else ""


def ready_backbone(
    config: Config, benchmark: Benchmark, runtime: Runtime, say: Say = silent, given: Backbone | None = None
) -> tuple[Backbone, Learnt | None]:
    """Return the backbone of a config with weights, on its device, and how they were learnt (None: released).

    A backbone without weights is trained now if the policy allows.

    Args:
        config: the scientific nodes.
        benchmark: what the network is evaluated on.
        runtime: how the run is carried out.
        say: receives a line for everything that takes long.
        given: the backbone that the config's node describes, if there is one already.

    Raises:
        NotApplicableError: a training was chosen for released weights.
        ConfigError: a precision that the device does not have, or no compiler for it where one is wanted.
    """
    device = resolve_device(runtime.own_device)
    backbone, learnt = given or build_backbone(config, benchmark), None
    if isinstance(backbone, NetworkBackbone):
        check_precision(backbone.precision, device)
        if backbone.compile:
            check_compiler(device)
    _check_images(backbone, benchmark)
    if backbone.trained:
        check_training_counts(backbone, benchmark, config, name_of(config["training"]))
    else:
        shown = _as_shown(config, benchmark, backbone)
        policy = "never" if under_torchrun() else runtime.train  # `train` is what torchrun divides
        trained = _trained(config, shown, backbone, replace(runtime, train=policy), say)
        backbone = trained.backbone
        method = build_training(config["training"])
        learnt = Learnt(name_of(config["training"]), shown.ood_train, method, trained.reused)
    backbone = backbone.to(device)
    probed(backbone, benchmark, feature_store(runtime, say), RecordStore(runtime.records))
    return with_fitted_head(backbone, benchmark, runtime, say), learnt


def name_of(node: Config) -> str:
    """The name that users type for a node: its config file's, else its class's, or the module's of a foreign class."""
    if node.get(NAME):
        return str(node[NAME])
    target = public_name(str(node.get(TARGET, "?")))
    return target.split(".")[-2] if "." in target else target.lower()


def opened(config: Config, method: Method, space: Config) -> Benchmark:
    """Return the benchmark of a config, with the training images if the method reads them.

    Whether the network reads them is not known yet.

    Raises:
        DataError: sets are missing; training images are listed too if the network's yaml has no weights.
        LeakageError: an image is on two sides.
    """
    parsed, network = BenchmarkConfig.parse(config["benchmark"]), config["backbone"]
    reader = train_reader(method, space, name_of(config["method"])) or head_reader(network)
    try:
        benchmark = open_benchmark(parsed, reader)
    except DataError:
        sources = [network[key] for key in ("weights", "checkpoint", "pretrained") if key in network]
        if not reader and ("start" in network or (sources and not any(sources))):
            open_benchmark(parsed, _trained_on(str(network.get("name"))))
        raise
    refuse_listed_images(benchmark, parsed)
    return _apart(benchmark)


def _apart(benchmark: Benchmark) -> Benchmark:
    """The benchmark, after checking that no image is on two sides."""
    refuse_same_images(benchmark)
    return benchmark


def _trained_on(backbone: str) -> str:
    """How messages name a network without weights, which is trained on the ID training images."""
    return f"backbone '{backbone}', which has no weights and is trained on it"


def build_backbone(config: Config, benchmark: Benchmark) -> Backbone:
    """Return the backbone of a config for a benchmark, with its released weights if it has any."""
    node = config["backbone"]
    backbone: Backbone = build(
        node,
        f"backbone '{name_of(node)}'",
        Backbone,
        num_classes=len(benchmark.classes),
        preprocess=benchmark.preprocess,
        classes=benchmark.classes,
        benchmark_classes=benchmark.classes,
        columns=benchmark.columns,
    )
    return backbone


def _check_images(backbone: Backbone, benchmark: Benchmark) -> None:
    """Refuse a network that classifies images for a table, or one to train for a single class."""
    single = len(benchmark.classes) == 1
    if backbone.classifies and (benchmark.columns is not None or (single and not backbone.trained)):
        has = "rows of a table" if benchmark.columns is not None else "a single class"
        raise ConfigError(
            f"backbone '{backbone.name}' classifies images — benchmark '{benchmark.name}' has {has} — "
            "choose backbone=identity for a table, or a network with weights for images of a single class"
        )


def _as_shown(config: Config, benchmark: Benchmark, backbone: Backbone) -> Benchmark:
    """The benchmark as a training sees it: with images to learn from, and with outliers if it uses them."""
    if benchmark.id_train.unread:
        benchmark = _apart(build_benchmark(config["benchmark"], _trained_on(backbone.name)))
    if not build_training(config["training"]).uses_outliers:
        return replace(benchmark, ood_train=None)
    node = config.get(OUTLIERS)
    return _apart(with_outliers(benchmark, node)) if node else benchmark


def _trained(config: Config, benchmark: Benchmark, backbone: Backbone, runtime: Runtime, say: Say) -> Trained:
    ensure = ensure_members if isinstance(backbone, Ensemble) else ensure_trained
    return ensure(backbone, benchmark, config, runtime, say)  # type: ignore[arg-type]


def _options(kind: type[Any], node: Config, where: str) -> Any:
    return build({**node, TARGET: f"{kind.__module__}.{kind.__qualname__}"}, where, kind)
