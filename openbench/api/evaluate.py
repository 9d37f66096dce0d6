"""Evaluating models from Python: what `python -m openbench run` computes, of a torch module, a function or a name."""

import warnings as python_warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from torch import Tensor

from openbench.api.arguments import (
    check_benchmark,
    check_model_name,
    check_reaches,
    head_of,
    path_of,
    plain,
    words_of,
)
from openbench.api.methods import chosen_method, named_methods
from openbench.api.models.adopt import Adopted, Asked, Shown, adopt, name_of
from openbench.api.models.names import check_is_no_weights, config_words, files_of, is_name, loaded, with_weights
from openbench.api.result import ModelResults, Result, Results
from openbench.backbones.base import Backbone
from openbench.backbones.device import resolve_device
from openbench.compose.composed import Composed, composed
from openbench.config.constraints import check_value
from openbench.config.overrides import word
from openbench.core.benchmark import Benchmark
from openbench.core.runtime import Runtime
from openbench.core.search import ChosenMethod
from openbench.engine.prepare import Config, SharedObjects, build_method, prepare
from openbench.engine.provenance import WARNINGS, RunOutcome
from openbench.engine.run import run
from openbench.errors import CacheError, ConfigError
from openbench.progress import messages, shown
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore


def evaluate(
    model: Any,
    *,
    benchmark: str,
    methods: Any = "msp",
    preprocess: Any = None,
    features: str | None = None,
    head: Any = None,
    weights: Any = None,
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
    stochastic: int | None = None,
    progress: bool = True,
) -> Any:
    """Return the results of one model, by method; of several models, by model.

    Records, cached features and scores are those of `python -m openbench run`: what is there already is not computed
    again. A model that is changed in place is another model.

    Args:
        model: a torch.nn.Module; a function of normalised images (n, channels, h, w) that returns logits or
            (features, logits); the path of an ONNX file; the name of one of openbench's backbones, `timm:NAME`,
            `torchvision:NAME`, `open_clip:NAME`, `hf_hub:OWNER/NAME` or `transformers:NAME`; or a list or a mapping of
            these. It is left exactly as it was.
        benchmark: its name (python -m openbench list benchmark).
        methods: a name, an instance, a list of these, or a mapping from your own names to them. An instance is taken
            as it is, nothing is tuned.
        preprocess: how images reach the model: ob.Preprocess, a transform of torchvision, timm or open_clip, an image
            processor of Hugging Face, a function of a PIL image, or `"benchmark"` for the benchmark's own. None: as
            the model was published, if it says so.
        features: name of the module whose output is the features, where they are not the classifier's input; of an
            ONNX file, the name of that output.
        head: name of the linear classifier where it cannot be found, or (W, b) where the model does not show it, or
            ends in its features.
        weights: a file of weights for the module, or several, e.g. the epochs of a training run: a list or mapping.
        name: of the model in tables and records; None = its class's.
        tune: `validation`, `none`, or `oracle` and `oracle_per_set`, which look at the test sets.
        seed: of what a method draws at random.
        incomplete: `allow` evaluates on the images that are there where some are missing; record and table say
            so. None: as the benchmark has it, usually an error that lists them.
        overrides: as on the command line, e.g. `["~benchmark.far.places365"]`.
        config_dir: a folder of your own benchmarks, methods and backbones, as after `--config-dir`: what
            `python -m openbench data new` and `new` write.
        cache: folder of features and scores; None = OPENBENCH_CACHE or the user's cache folder.
        results: folder of records; None = OPENBENCH_RESULTS or ./results.
        device: `auto`, or a torch device string.
        batch_size: images per forward pass.
        stochastic: how many passes, each with its own seed, are averaged of a model whose outputs are drawn, e.g. by
            dropout; None: such a model is refused.
        progress: whether to tell how far it is, in a terminal or notebook.

    Returns:
        Results, a mapping from methods to Result; ModelResults, a mapping from models to Results, where a list or
        mapping of models, or several files of weights, were given.

    Raises:
        OpenbenchError: whatever the command line refuses, before anything is computed wherever it can be known by then.
    """
    named, own = named_methods(methods), words_of(overrides)
    check_value(plain(stochastic), Annotated[int, Ge(2)] | None, "stochastic")
    check_value(progress, bool, "progress")
    if name is not None:
        check_model_name(name)
    words = [f"+benchmark={check_benchmark(benchmark)}", f"tune={word(tune)}", f"seed={word(plain(seed))}", *own]
    if incomplete is not None:
        words.append(f"benchmark.incomplete={word(incomplete)}")
    given = {"device": device, "batch_size": batch_size, "cache": cache, "results": results}
    runtime = {key: plain(value) for key, value in given.items()} | {"progress": shown(progress)}
    folder = None if config_dir is None else path_of(config_dir, "config_dir")
    call = _Call(named, words, runtime, lru_cache(lambda words: composed("run", words, folder)))
    asked = Asked(preprocess, features, head_of(head), name, resolve_device(runtime["device"]), plain(stochastic))
    models = _models(model, weights)
    with messages(runtime["progress"]):
        if models is None:
            return call.results(model, weights, asked)
        if name is not None:
            raise ConfigError(
                f"name '{name}' is one name for {len(models)} models — give a mapping from names to models"
            )
        return ModelResults(
            {
                key: call.results(one, file, replace(asked, name=None if is_name(one) else key))
                for key, (one, file) in models.items()
            }
        )


@dataclass(frozen=True, eq=False)
class _Call:
    """What all models and methods of one call share.

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

    def results(self, model: object, weights: Any, asked: Asked) -> Results:
        """Return the results of one model; every method is checked before the first is run."""
        check_is_no_weights(model)
        if isinstance(model, str) and is_name(model) and weights is None:
            _refuse_parts(model, asked)
            network, words = None, config_words(model)
        else:
            check_reaches(self.words, "backbone", "the model is an object")
            model = loaded(model)
            network, words = _Network(model if weights is None else with_weights(model, weights), asked), []
        jobs = {name: self._job(given, name, words) for name, given in self.methods}
        specs = {
            name: prepare(
                config,
                setting,
                method=method,
                adopt=network.adopt if network else None,
                shared=self.shared,
                overrides=() if network else typed,
            )
            for name, (config, setting, method, typed) in jobs.items()
        }
        adopted = network.adopted if network else None
        for text in adopted.warnings if adopted else ():
            python_warnings.warn(text, UserWarning, stacklevel=3)
        return Results(
            {name: _result(run(spec, jobs[name][1]), jobs[name][1], adopted) for name, spec in specs.items()}
        )

    def _job(
        self, given: Any, name: str, backbone: Sequence[str]
    ) -> tuple[Config, Runtime, ChosenMethod, tuple[str, ...]]:
        """The config of one method, how it is run, the method itself, and the overrides if it is not an object."""
        method = [f"method={word(given)}"] if isinstance(given, str) else []
        if not method:
            check_reaches(self.words, "method", f"method '{name}' is an object")
        job = self.composed((*self.words[:1], *backbone, *method, *self.words[1:]))
        setting = Runtime.from_config({**job.runtime, **{k: v for k, v in self.runtime.items() if v is not None}})
        if setting.on_existing != "verify":
            RecordStore(setting.records).check_writable()  # before a training begins
        if method:
            return job.config, setting, build_method(job.config["method"]), job.overrides
        return job.config, setting, chosen_method(given, name=name), ()


class _Network:
    """The caller's own network, made a backbone once, for the first method that is prepared."""

    def __init__(self, model: object, asked: Asked) -> None:
        self._model, self._asked = model, asked
        self.adopted: Adopted | None = None

    def adopt(self, benchmark: Benchmark) -> tuple[Backbone, Config]:
        """Return it as a backbone for a benchmark, with what a config says of it."""
        if benchmark.columns is not None:
            raise ConfigError(
                f"benchmark '{benchmark.name}' has rows of a table — a model takes images — choose another "
                "benchmark, or evaluate your features with evaluate_features"
            )
        shown = Shown(benchmark.id_test, benchmark.classes, benchmark.preprocess)
        self.adopted = self.adopted or adopt(self._model, self._asked, shown)
        return self.adopted.backbone, self.adopted.node


def _refuse_parts(model: object, asked: Asked) -> None:
    """Refuse what is said of a model that a config describes: it runs exactly as the command line has it."""
    given = [key for key in ("preprocess", "features", "head", "name") if getattr(asked, key) is not None]
    if given:
        raise ConfigError(
            f"{given[0]} is given for '{model}', whose config says it — leave it out, or change the config: "
            f"overrides=['backbone.{given[0]}=…']"
        )


def _result(outcome: RunOutcome, setting: Runtime, adopted: Adopted | None) -> Result:
    """The outcome of a run with its scores: those just computed, else those that are still in the cache."""
    scores = outcome.scores
    if outcome.status == "skipped":
        with suppress(CacheError):  # the cache has been emptied since
            scores = tuple(ScoreStore(setting.scores).read(outcome.record.run_id))
    own, said = (adopted.notes, adopted.warnings) if adopted else ((), ())
    remarks = tuple(outcome.record.provenance.get(WARNINGS) or ())
    return Result(
        outcome.record,
        scores,
        outcome.path,
        notes=(*own, *outcome.notes),
        warnings=(*said, *remarks, *outcome.warnings),
    )


def _models(model: object, weights: object) -> Mapping[str, tuple[Any, Any]] | None:
    """Several models by name, each with its file of weights; None for one model."""
    files = files_of(weights)
    if files is not None:
        for key in files:
            check_model_name(key, "weights: a name")
        return {key: (model, file) for key, file in files.items()}
    if isinstance(model, Mapping):
        if model and all(isinstance(value, Tensor) for value in model.values()):
            raise ConfigError(
                "model is a mapping of tensors, as of state_dict() — a network expected — load them into its class: "
                "model.load_state_dict(…)"
            )
        found = {str(key): value for key, value in model.items()}
    elif isinstance(model, list | tuple):
        found = dict(_numbered(model))
    else:
        return None
    if not found:
        raise ConfigError(f"model is an empty {type(model).__name__} — give at least one model")
    if len(found) < len(model):
        raise ConfigError(f"two models have one name — found {', '.join(found)} — give a mapping from your own names")
    for key, value in found.items():
        if not is_name(value):
            check_model_name(key, "model: a key of the mapping")
    return {key: (value, weights) for key, value in found.items()}


def _numbered(models: Sequence[object]) -> Iterator[tuple[str, object]]:
    """Models with names that tell them apart: a second `resnet` is `resnet_2`."""
    seen: Counter[str] = Counter()
    for model in models:
        name = model if isinstance(model, str) else name_of(model)
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}_{seen[name]}"), model
