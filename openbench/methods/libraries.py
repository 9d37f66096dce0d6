"""Detectors of pytorch-ood, OpenOOD and oodeel, unchanged: cached features are their images, the head their network."""

import importlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from types import NoneType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from openbench import _compat
from openbench.config.constraints import Seed
from openbench.core import FeatureSet, Field, Head, LiveBackbone, LiveMethod, Request, Role
from openbench.core.search import grid
from openbench.errors import ConfigError, MethodError, NotApplicableError, OpenbenchError, did_you_mean
from openbench.methods._stats import Learning, seeded

_BATCH = 200  # samples at a time, as in OpenOOD; some detectors compute an (n, n) matrix of a batch
_NAMES = "pytorch-ood, OpenOOD or oodeel"
# What OpenOOD's evaluator wraps the network in; other postprocessors get the network itself.
_WRAPPERS = {"ASHPostprocessor": "ash_net.ASHNet", "ScalePostprocessor": "scale_net.ScaleNet"}


class _Network(nn.Module):
    """The classifier of features (n, d), with the interface of OpenOOD's networks; of images while `encode` is set."""

    def __init__(self, head: Head | None) -> None:
        super().__init__()
        self.features = _Features()
        if head is not None:
            self.fc = nn.Linear(head.weight.shape[1], head.num_classes, device=head.weight.device)
            self.fc.load_state_dict({"weight": head.weight, "bias": head.bias})
            self.fc.requires_grad_(False)

    def forward(self, x: Tensor, return_feature: bool = False) -> Any:
        features = self.features(x)
        logits = self.fc(features)
        return (logits, features) if return_feature else logits

    def forward_threshold(self, x: Tensor, threshold: float) -> Tensor:
        return self.fc(self.features(x).clip(max=threshold))

    def get_fc(self) -> tuple[Any, Any]:
        return self.fc.weight.cpu().numpy(), self.fc.bias.cpu().numpy()

    def get_fc_layer(self) -> nn.Module:
        return self.fc


class _Features(nn.Module):
    """Features (n, d) as they are, or those of images by `encode`."""

    encode: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim > 2 and self.encode is not None:
            return self.encode(x)
        if x.requires_grad:
            raise NotApplicableError("it takes the gradient of its input — add live=true to run it on images")
        return x.clone()  # a network's output may be written to


class _OnCPU(TorchFunctionMode):
    """While open, `.cuda()` leaves tensors where they are: OpenOOD calls it on every batch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.Tensor.cuda else func(*args, **(kwargs or {}))


class _Loaders(dict[str, Any]):
    """Loaders by the name of their split; `asked` is the one that was asked for and is not there."""

    asked = ""

    def __missing__(self, key: str) -> Any:
        self.asked = key
        raise MethodError(f"its `setup` reads the loader '{key}' — allowed: one of ID, train or val")


def _as_openood(pairs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """A batch of OpenOOD's loaders."""
    data, labels = zip(*pairs, strict=True)
    return {"data": torch.stack(data), "label": torch.stack(labels)}


class _Node(dict[str, Any]):
    """A mapping whose keys are attributes, as OpenOOD's configs are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"its config has no '{name}'") from None


@dataclass(frozen=True)
class _Library:
    """How the detectors of a library are made, fitted and asked for scores.

    Each library defines `make` (a new detector of features, or of a network), `is_live` (whether features and logits
    are not enough for it), `fit_on` (the split that it is fitted on), `fit` and `scores`, (n,), larger = more OOD.

    Args:
        kind: the detector's class.
        method: whose hyper-parameters make it.
    """

    install: ClassVar[str]
    calls: ClassVar[tuple[str, ...]]  # what a detector has
    fields: ClassVar[frozenset[Field]] = frozenset({Field.FEATURES})
    head: ClassVar[bool] = True

    kind: Any
    method: "LibraryDetector"

    def sweep(self) -> Mapping[str, Sequence[Any]]:
        """The detector's own lists of values to try."""
        return {}

    @staticmethod
    def arguments(detector: Any) -> dict[str, Any]:
        """The hyper-parameters that make an equal detector: the public attributes named as its arguments."""
        defaults = _parameters(type(detector))
        found = {name: vars(detector)[name] for name in defaults if name in vars(detector)}
        changed = {k: v for k, v in found.items() if k not in _FILLED and not _same(v, defaults[k].default)}
        # What is not plain cannot be stated in a record; the comparison with a new detector shows whether it counts.
        return {"kwargs": {name: value for name, value in changed.items() if _plain(value)}, "sweep": {}}


class _PytorchOOD(_Library):
    install = "pip install pytorch-ood"
    calls = ("fit", "predict")

    @property
    def _reads(self) -> str:
        bases = {base.__name__ for base in self.kind.__mro__}
        if "RankFeat" in bases:  # of maps with one pixel nothing is left
            return ""
        kinds = {"LogitsDetector": "logits", "FeaturesDetector": "features", "FeatureMapsDetector": "feature_maps"}
        return next((reads for name, reads in kinds.items() if name in bases), "")

    @property
    def fields(self) -> frozenset[Field]:  # type: ignore[override]
        return frozenset({Field.LOGITS if self._reads == "logits" else Field.FEATURES})

    @property
    def head(self) -> bool:  # type: ignore[override]
        return self.is_live() or bool({"head", "w"} & _parameters(self.kind).keys())

    def make(self, net: _Network, network: nn.Module | None = None) -> Any:
        fc, model = getattr(net, "fc", None), network or (net if self.is_live() else None)
        given: dict[str, Any] = {"model": model, "encoder": net.features, "head": fc}
        if fc is not None:
            given |= {"w": fc.weight, "b": fc.bias}
        if self._reads == "feature_maps":  # pooled features are maps of one pixel
            given |= {"backbone": _as_maps, "head": nn.Sequential(nn.Flatten(), fc or nn.Identity())}
        given = {name: value for name, value in given.items() if name in _parameters(self.kind)}
        return self.kind(**{**given, **self.method.kwargs, **self.method.setting})

    def is_live(self) -> bool:
        return not self._reads

    def fit_on(self) -> Role | None:
        return Role.ID_TRAIN if getattr(self.kind, "requires_fit", False) else None

    def fit(self, detector: Any, net: _Network, x: Tensor, labels: Tensor) -> None:
        if self._reads:
            getattr(detector, f"fit_{self._reads}")(self._shaped(x), labels)
        else:
            detector.fit(DataLoader(TensorDataset(x, labels), _BATCH))

    def scores(self, detector: Any, net: _Network, x: Tensor) -> Any:
        if not self._reads or x.ndim > 2:
            return detector.predict(x)
        return getattr(detector, f"predict_{self._reads}")(self._shaped(x))

    def _shaped(self, x: Tensor) -> Tensor:
        return _as_maps(x) if self._reads == "feature_maps" else x

    def sweep(self) -> Mapping[str, Sequence[Any]]:
        own = getattr(self.kind, "hyperparameter_space", {})
        return {name: list(values) for name, values in own.items() if name not in self.method.kwargs}


class _OpenOOD(_Library):
    install = "pip install git+https://github.com/Jingkang50/OpenOOD"
    calls = ("setup", "postprocess")

    def make(self, net: _Network, network: nn.Module | None = None) -> Any:
        m = self.method
        if any(base.__name__ == "AdaScalePostprocessor" for base in self.kind.__mro__):
            raise NotApplicableError("it needs one of two networks of its own — choose method=adascale_a or adascale_l")
        lists = {"postprocessor_args": _Node(m.kwargs), "postprocessor_sweep": _Node(m.sweep or {})}
        node = _Node(lists, APS_mode=bool(m.sweep))
        return self.kind(_Node(postprocessor=node, dataset=_Node(name=m.dataset)))

    def is_live(self) -> bool:
        # OpenOOD has no declaration of it.
        return "requires_grad" in inspect.unwrap(self.kind.postprocess).__code__.co_names

    def fit_on(self) -> Role | None:
        """What `setup` asks for first; it is stopped there."""
        net, loaders, roles = _small(), _Loaders(), {"train": Role.ID_TRAIN, "val": Role.ID_VAL}
        try:
            with _quiet(net):
                self.make(net).setup(net, loaders, _Loaders())
        except MethodError:
            if loaders.asked not in roles:
                raise
        return roles.get(loaders.asked)

    def fit(self, detector: Any, net: _Network, x: Tensor, labels: Tensor) -> None:
        split = "train" if self.method.request.fit_on == Role.ID_TRAIN else "val"
        # A loader without a generator of its own draws from the global one, which a detector may draw from afterwards.
        loader = DataLoader(TensorDataset(x, labels), _BATCH, collate_fn=_as_openood, generator=torch.Generator())
        detector.setup(net, _Loaders({split: loader}), _Loaders())
        if self.method.setting:
            detector.set_hyperparam(list(self.method.setting.values()))

    def scores(self, detector: Any, net: _Network, x: Tensor) -> Any:
        wrappers = [_WRAPPERS[base.__name__] for base in self.kind.__mro__ if base.__name__ in _WRAPPERS]
        wrapped = _class_of(f"openood.networks.{wrappers[0]}")(net) if wrappers else net
        return -torch.as_tensor(detector.postprocess(wrapped, x)[1])

    @staticmethod
    def arguments(detector: Any) -> dict[str, Any]:
        node = detector.config.postprocessor if "postprocessor" in detector.config else _Node()
        searched = node.get("postprocessor_sweep") if node.get("APS_mode") else None
        data = detector.config.dataset.name if "dataset" in detector.config else "cifar10"
        args = node.get("postprocessor_args") or {}
        return {"kwargs": dict(args), "sweep": searched and dict(searched), "dataset": str(data)}


class _Oodeel(_Library):
    install = "pip install oodeel"
    calls = ("fit", "score")

    def make(self, net: _Network, network: nn.Module | None = None) -> Any:
        return self.kind(**self.method.kwargs, **self.method.setting)

    def is_live(self) -> bool:
        return bool(getattr(self.make(_Network(None)), "eps", 0) > 0)

    def fit_on(self) -> Role | None:
        detector = self.make(_Network(None))
        return Role.ID_TRAIN if detector.requires_to_fit_dataset or detector.use_react else None

    def fit(self, detector: Any, net: _Network, x: Tensor, labels: Tensor) -> None:
        data = DataLoader(TensorDataset(x, labels), _BATCH) if len(x) else None
        detector.fit(net, fit_dataset=data, feature_layers_id=["features"], head_layer_id="fc")

    def scores(self, detector: Any, net: _Network, x: Tensor) -> Any:
        return detector.score(x)[0]


_LIBRARIES: Mapping[str, type[_Library]] = {"pytorch_ood": _PytorchOOD, "openood": _OpenOOD, "oodeel": _Oodeel}
_FILLED = ("model", "encoder", "backbone", "head", "w", "b", "self")  # arguments that are parts of the network


@dataclass
class LibraryDetector(Learning):
    """Score of a detector of pytorch-ood, OpenOOD or oodeel, which runs on the cached features and the linear head.

    score(x) = the detector's own score of f; OpenOOD's confidence is negated.

    A detector that takes input gradients becomes a `LiveLibraryDetector`, which runs the network.

    Args:
        detector: the dotted name of its class, of these libraries or derived from one of theirs.
        kwargs: arguments of the class without parts of the network (model, encoder, backbone, head, w, b), which come
            from the network that is evaluated; for OpenOOD the `postprocessor_args`.
        sweep: hyper-parameter → values that are searched on validation; None = pytorch-ood's `hyperparameter_space`
            without what `kwargs` gives. For OpenOOD the `postprocessor_sweep`.
        setting: one value for each list of the sweep.
        dataset: OpenOOD's name of the ID data, by which it looks up the number of classes and the pixels' deviation.
        fit_on: the split that it is fitted on; None = ID training, for OpenOOD the one that its `setup` asks for.
        live: whether images are passed through the network; None = if the detector needs it.
        seed: of detectors that draw.

    Raises:
        ConfigError: a class that is not there or not a detector of these libraries.
        NotApplicableError: the library is not installed, or the detector needs more than features and logits.
        MethodError: arguments that the class refuses, or an error of the detector.

    Reference: the papers that the library names for a detector; Kirchheim et al., PyTorch-OOD, CVPR Workshops 2022;
    Zhang et al., OpenOOD v1.5, 2023, arXiv 2306.09301; DEEL, oodeel. A detector of feature maps gets pooled features as
    maps of one pixel; one of several layers is refused.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Kirchheim et al., CVPRW 2022; Zhang et al., 2023, arXiv 2306.09301; DEEL, oodeel"
    learns_objects: ClassVar[str] = "an object of another library"

    detector: str = "pytorch_ood.detector.KNN"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    dataset: str = "cifar10"
    fit_on: Literal["id_train", "id_val"] | None = None
    live: bool | None = None
    seed: Seed = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an object of the kind that the detector needs."""
        self: Any = super().__new__(cls)
        if cls is LibraryDetector and (args or kwargs):
            cls.__init__(self, *args, **kwargs)
            if self.live if self.live is not None else self._guarded("is read", self._library.is_live):
                self = super().__new__(LiveLibraryDetector)
        return self

    def __post_init__(self) -> None:
        """Find the class, and make a detector once, so that wrong arguments are refused now."""
        library = self._library
        self._guarded("is made", lambda: library.make(_small()))
        self._role = Role(self.fit_on) if self.fit_on else self._guarded("is read", self._library.fit_on)

    @property
    def _library(self) -> Any:
        kind = _class_of(self.detector)
        return _library_of(kind, self.detector)(kind, self)

    @property
    def made_of(self) -> tuple[object, ...]:
        """The detector's class, whose source and library's version identify it."""
        return (self._library.kind,)

    @property
    def label(self) -> str:
        """A name for results, e.g. `pytorch_ood_knn`."""
        library = next(name for name, kind in _LIBRARIES.items() if isinstance(self._library, kind))
        return f"{library}_{self._library.kind.__name__.lower()}"

    @property
    def request(self) -> Request:
        """What the detector reads."""
        fields = self._library.fields | {Field.LABELS} if self._role else self._library.fields
        unread = isinstance(self, LiveMethod) and not self._role
        return Request(fields=frozenset() if unread else fields, fit_on=self._role, head=self._library.head)

    @property
    def own_space(self) -> Mapping[str, Sequence[Any]]:
        """The settings of the sweep, in the library's order."""
        lists = self._library.sweep() if self.sweep is None else self.sweep
        return {"setting": grid(lists, list(lists), self.detector)} if lists else {}

    def _learn(self, train: FeatureSet, head: Head | None) -> None:
        """Fit a new detector on the features or logits (n, d)."""
        self.net_ = _Network(head)
        x = labels = torch.empty(0)
        if self._role:
            x, labels = self._read(train).clone(), train.labels.clone()
        self.detector_ = self._guarded("is made", lambda: self._library.make(self.net_))
        if self._role or not isinstance(self._library, _PytorchOOD):
            self._guarded("is fitted", lambda: self._library.fit(self.detector_, self.net_, x, labels))

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return self._scores(self.learnt("detector_"), self._read(x))

    def _read(self, x: FeatureSet) -> Tensor:
        return x.logits if Field.LOGITS in self._library.fields else x.features

    def _scores(self, detector: Any, inputs: Tensor) -> Tensor:
        def of(rows: Tensor) -> Tensor:
            found = self._library.scores(detector, self.net_, rows.detach().clone())
            return torch.as_tensor(found).detach().to(inputs.device, torch.float32).flatten()

        return torch.cat([self._guarded("scores", partial(of, rows)) for rows in torch.split(inputs, _BATCH)])

    def _guarded(self, what: str, call: Callable[[], Any]) -> Any:
        """What a call of the library's code returns; its errors become ours, what it prints is dropped."""
        with _quiet(getattr(self, "net_", None)), seeded(self.seed):
            try:
                return call()
            except OpenbenchError as error:
                raise type(error)(f"{self.detector}: {error}") from error
            except Exception as error:
                raise MethodError(
                    f"{self.detector}: {type(error).__name__} while it {what}: {error} — check its arguments, and "
                    "whether it needs more than features, logits and a linear head"
                ) from error


@dataclass
class LiveLibraryDetector(LiveMethod, LibraryDetector):
    """Score of a detector that needs the network, e.g. ODIN: it scores images; `fit` reads the cache.

    Args:
        detector, kwargs, sweep, setting, dataset, fit_on, live, seed: as of LibraryDetector.

    Raises:
        NotApplicableError: the network does not end in a linear layer.
        MethodError: an error of the detector.

    Reference: as LibraryDetector.
    """

    reference: ClassVar[str] = LibraryDetector.reference

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of images; larger = more OOD."""
        detector: Any = self.learnt("detector_")
        with backbone.frozen() as network, torch.enable_grad():
            self.net_.features.encode = _encoder(network, self.net_.fc.weight.shape)
            try:
                if self.request.fit_on is None and isinstance(self._library, _PytorchOOD):
                    detector = self._guarded("is made", lambda: self._library.make(self.net_, network))
                return self._scores(detector, images)
            finally:
                self.net_.features.encode = None


def wrapped(detector: Any, **params: Any) -> LibraryDetector:
    """Return the method that makes, fits and asks detectors like an object of another library.

    Args:
        detector: an object of pytorch-ood, OpenOOD or oodeel, or of a class derived from one of theirs. Its arguments
            are read from its public attributes; parts of the network come from the one that is evaluated.
        **params: of LibraryDetector, in place of those read.

    Raises:
        ConfigError: a class that is not one of these libraries', or attributes from which an equal detector cannot be
            made.
    """
    kind = type(detector)
    name = f"{kind.__module__}.{kind.__qualname__}"
    method = LibraryDetector(name, **{**_library_of(kind, name).arguments(detector), **params})
    new, now = vars(method._library.make(_small())), vars(detector)
    differing = [key for key in now if key not in (*_FILLED, "config") and not _same(now[key], new.get(key))]
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{name}: the attribute '{key}' is {now[key]!r:.80}, and {new.get(key)!r:.80} in a new one with the "
            "arguments that its attributes name — pass a new, unfitted detector whose arguments are "
            "plain values, or name the class: method=pytorch_ood, openood or oodeel"
        )
    return method


def is_detector(value: object) -> bool:
    """Whether an object is of a class of pytorch-ood, OpenOOD or oodeel, or of one derived from theirs."""
    return any(_top(base) in _LIBRARIES for base in type(value).__mro__)


@cache
def _class_of(path: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library's own imports
            _compat.prepare_torchvision()
            found = getattr(importlib.import_module(module or path), name, None)
    except (ImportError, ValueError, TypeError) as error:  # an empty path, or one that begins with a dot
        library = _LIBRARIES.get(path.partition(".")[0])
        absent = isinstance(error, ImportError) and f"{module}.".startswith(f"{error.name}.")
        if library is not None and absent:
            raise NotApplicableError(f"'{path}': {error} — {library.install}") from error
        raise ConfigError(f"method.detector: '{path}' cannot be imported — {error}") from error
    if not inspect.isclass(found):
        known = [key for key, value in vars(importlib.import_module(module)).items() if inspect.isclass(value)]
        raise ConfigError(f"method.detector: module '{module}' has no class '{name}'{did_you_mean(name, known)}")
    return found


def _library_of(kind: type, where: str) -> Any:
    found = next((library for base in kind.__mro__ if (library := _LIBRARIES.get(_top(base)))), None)
    if found is None:
        raise ConfigError(f"'{where}' is not a detector of {_NAMES} — name a class of theirs, or one derived from one")
    missing = [name for name in found.calls if not callable(getattr(kind, name, None))]
    missing += sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"'{where}' has no `{missing[0]}` — a detector defines {' and '.join(found.calls)}")
    return found


def _small() -> _Network:
    return _Network(Head(torch.zeros(2, 3), torch.zeros(2)))


def _top(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """The named arguments of a class, with those that it hands on to its bases."""
    found: dict[str, inspect.Parameter] = {}
    for base in (base for base in kind.__mro__ if "__init__" in vars(base) and base is not object):
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]
        found |= {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} | found
        if not rest:
            break
    return found


def _same(a: Any, b: Any) -> bool:
    if _plain(a) and _plain(b):
        return bool(a == b)
    return type(a) is type(b) and (isinstance(a, nn.Module | Tensor) or not callable(a) or a == b)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_plain, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool | int | float | str | NoneType)


def _as_maps(features: Tensor) -> Tensor:
    return features[:, :, None, None]


@contextmanager
def _quiet(net: _Network | None) -> Iterator[None]:
    """Without what the library prints, and with `.cuda()` as no move unless the head is on such a device."""
    weight = None if net is None or not hasattr(net, "fc") else net.fc.weight
    here = nullcontext() if weight is not None and weight.is_cuda else _OnCPU()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings(), here:
        warnings.simplefilter("ignore")
        yield


def _encoder(network: nn.Module, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A function that returns what the network's last linear layer of a shape receives for images."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear) and layer.weight.shape == shape]
    if not layers:
        raise NotApplicableError(f"the network has no linear layer {tuple(shape)} — choose one that ends in its head")

    def encode(images: Tensor) -> Tensor:
        received: list[Tensor] = []
        with layers[-1].register_forward_pre_hook(lambda _, inputs: received.append(inputs[0])):
            network(images)
        return received[-1]

    return encode
