"""Evaluating models from Python: the numbers and records of `python -m openbench run`."""

import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench.api.arguments import check_model_name, check_reaches, head_of, path_of, plain, words_of
from openbench.api.methods import chosen_method, named_methods
from openbench.api.models.wrap import ImageTask, ModelOptions, WrappedModel, config_words, is_name, name_of, wrap
from openbench.api.result import ModelResults, Results, result_of_run
from openbench.backbones.base import Backbone, resolve_device
from openbench.compose.config import Composed, composed
from openbench.config.constraints import check_value
from openbench.config.overrides import word
from openbench.core.benchmark import Benchmark
from openbench.core.names import is_part
from openbench.core.runtime import Runtime
from openbench.core.search import ChosenMethod
from openbench.engine.prepare import Config, SharedObjects, build_method, prepare, train_reader
from openbench.engine.run import run
from openbench.errors import ConfigError, DataError, MissingSetsError
from openbench.progress import messages, shown
from openbench.results.records.store import RecordStore


def evaluate(
    model: Any,
    *,
    benchmark: str,
    methods: Any = "msp",
    preprocess: Any = None,
    features: str | None = None,
    head: Any = None,
    name: str | None = None,
    tune: str = "validation",
    seed: int = 0,
    incomplete: str | None = None,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    cache: str | Path | None = None,
    results: str | Path | None = None,
    device: str = "auto",
    batch_size: int = 256,
    progress: bool = True,
) -> Results | ModelResults:
    """Evaluate OOD detection methods with a model on a benchmark.

    Results are cached and recorded as by `python -m openbench run`; nothing is computed twice.

    Example:
        results = ob.evaluate(model, benchmark="cifar10", methods=["msp", "knn"], preprocess=transform)
        print(results)  # the table; also results.table(), results.plot(), results["knn"].metrics

    Args:
        model: a torch.nn.Module; a function of images (n, channels, h, w) that returns logits (n, c) or (features
            (n, d), logits); an ONNX file; a name: of a backbone of openbench, `timm:NAME`, `torchvision:NAME`,
            `open_clip:NAME`; or a list or mapping of these.
        benchmark: its name (python -m openbench list benchmark).
        methods: a name, a method object (which is not tuned), a list of these, or a mapping from your names to them.
        preprocess: the transform of the model's images: of torchvision, timm, open_clip or Hugging Face, ob.Preprocess,
            a function of a PIL image, or `"benchmark"`. None = the one that the model was published with.
        features: name of the module or ONNX output that makes features (n, d). None = the classifier's input.
        head: name of the linear classifier, or (W, b) with W (c, d). None = found.
        name: of the model in tables. None = from its class.
        tune: `validation` or `none`; `held_out_classes` and `synthetic` read no OOD image; `oracle` and
            `oracle_per_set` choose on the test sets.
        seed: of methods that draw random numbers.
        incomplete: `allow` = go on with the images that are here; records and tables say so.
        overrides: as on the command line, e.g. `["~benchmark.far.places365"]`.
        config_dir: folder of your own benchmarks, methods and backbones.
        cache: folder of features and scores. None = OPENBENCH_CACHE, else the user's cache folder.
        results: folder of records. None = OPENBENCH_RESULTS, else ./results.
        device: `auto`, or a torch device.
        batch_size: images per forward pass.
        progress: whether to show progress in a terminal or notebook.

    Returns:
        Results by method; for several models ModelResults, which are Results by model.

    Raises:
        OpenbenchError: bad arguments or missing data, before anything is computed where possible.
    """
    if not is_part(benchmark):
        raise ConfigError(f"benchmark is {benchmark!r} — pass a name, with config_dir='FOLDER' for one of your own")
    chosen, typed = named_methods(methods), words_of(overrides)
    check_value(progress, bool, "progress")
    if name is not None:
        check_model_name(name)
    words = [f"+benchmark={benchmark}", f"tune={word(tune)}", f"seed={word(plain(seed))}", *typed]
    if incomplete is not None:
        words.append(f"benchmark.incomplete={word(incomplete)}")
    settings = {"device": device, "batch_size": batch_size, "cache": cache, "results": results}
    runtime = {key: plain(value) for key, value in settings.items() if value is not None}
    runtime["progress"] = shown(progress)
    folder = None if config_dir is None else path_of(config_dir, "config_dir")
    call = _Call(chosen, words, runtime, lru_cache(lambda words: composed("run", words, folder)))
    options = ModelOptions(preprocess, features, head_of(head), name, resolve_device(plain(device)))
    models = _models(model)
    if models is not None and name is not None:
        raise ConfigError(f"name '{name}' is one name for {len(models)} models — give a mapping from names to models")
    with messages(runtime["progress"]):
        if models is None:
            return call.results(model, options)
        found = ModelResults()
        for key, one in models.items():
            found[key] = call.results(one, replace(options, name=None if is_name(one) else key))
        return found


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments that all models and methods of one call share.

    Args:
        methods: names and objects by their names in the results.
        words: overrides besides those of model and method.
        runtime: values of the runtime node.
        composed: overrides → the config of a job.
        shared: benchmarks and networks, each opened once.
    """

    methods: tuple[tuple[str, Any], ...]
    words: list[str]
    runtime: Mapping[str, Any]
    composed: Callable[[tuple[str, ...]], Composed]
    shared: SharedObjects = field(default_factory=SharedObjects)

    def results(self, model: object, options: ModelOptions) -> Results:
        """Return the results of one model; every method is checked before the first one runs."""
        words, wrapped = list[str](), list[WrappedModel]()
        if is_name(model):
            options.refuse(f"'{model}', whose config has it", "name")
            words = config_words(model)
        else:
            check_reaches(self.words, "backbone", "the model is an object")

        def adopt(benchmark: Benchmark) -> tuple[Backbone, Config]:
            if benchmark.columns is not None:
                raise ConfigError(f"benchmark '{benchmark.name}' has rows, not images — use evaluate_features")
            if not wrapped:  # once, for the first method that is prepared
                task = ImageTask(benchmark.id_test, benchmark.classes, benchmark.preprocess)
                wrapped.append(wrap(model, options, task))
            return wrapped[0].backbone, wrapped[0].node

        jobs = {name: self._job(method, name, words) for name, method in self.methods}
        specs = {}
        try:
            # If sets are missing, a method that also reads the training set names them all.
            for name in sorted(jobs, key=lambda name: not train_reader(jobs[name][2], {})):
                config, runtime, method, typed = jobs[name]
                own = None if words else adopt
                specs[name] = prepare(config, runtime, method=method, adopt=own, shared=self.shared, overrides=typed)
        except MissingSetsError as error:
            raise DataError(error.in_python) from None
        notes, warnings = (wrapped[0].notes, wrapped[0].warnings) if wrapped else ((), ())
        for text in warnings:
            python_warnings.warn(text, UserWarning, stacklevel=3)
        runtimes = {name: runtime for name, (_, runtime, *_) in jobs.items()}
        return Results({name: result_of_run(run(specs[name], r), r, notes, warnings) for name, r in runtimes.items()})

    def _job(
        self, method: Any, name: str, backbone: Sequence[str]
    ) -> tuple[Config, Runtime, ChosenMethod, tuple[str, ...]]:
        """The config of one method, its runtime, the method itself, and the overrides if nothing is an object."""
        by_name = isinstance(method, str)
        if not by_name:
            check_reaches(self.words, "method", f"method '{name}' is an object")
        first, *rest = self.words
        job = self.composed((first, *backbone, *([f"method={word(method)}"] if by_name else []), *rest))
        config = job.config if backbone else {**job.config, "backbone": {}}  # not the benchmark's own
        runtime = Runtime.from_config({**job.runtime, **self.runtime})
        if runtime.on_existing != "verify":
            RecordStore(runtime.records).check_writable()  # before a training begins
        chosen = build_method(config["method"]) if by_name else chosen_method(method, name=name)
        return config, runtime, chosen, job.overrides if by_name and backbone else ()


def _models(model: object) -> Mapping[str, Any] | None:
    """Several models by name; None for one model."""
    models: dict[str, Any] = {}
    if isinstance(model, Mapping):
        models = {str(key): one for key, one in model.items()}
        if len(models) < len(model):
            raise ConfigError(f"two models have one name ({', '.join(models)}) — give them distinct names")
    elif isinstance(model, list | tuple):
        for one in model:
            name = one if isinstance(one, str) else name_of(one)
            names = (name, *(f"{name}_{number}" for number in range(2, len(model) + 1)))
            models[next(key for key in names if key not in models)] = one
    else:
        return None
    if not models:
        raise ConfigError(f"model is an empty {type(model).__name__} — give at least one model")
    for key, one in models.items():
        if not is_name(one):
            check_model_name(key, "name of a model")
    return models
