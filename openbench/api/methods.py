"""Methods in the arguments of a call, and methods as estimators on arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from openbench.api.arguments import ArrayLike, as_array, as_features, as_head, class_indices
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.folders import config_folders, named_for, shipped
from openbench.config.overrides import NAME
from openbench.core.benchmark import RowItems, Split
from openbench.core.features import DEFAULT_BATCH, FeatureSet, Head
from openbench.core.method import Composite, Method, StreamingMethod, leaves
from openbench.core.names import PART, is_part
from openbench.core.request import Field, Request, Role
from openbench.core.search import ChosenMethod, with_params
from openbench.engine.compatibility import lacking
from openbench.engine.evaluate import FeatureSource, Fitting, Scoring, fit, score_split
from openbench.errors import (
    ConfigError,
    FieldError,
    MethodError,
    NotApplicableError,
    NotFittedError,
    check_known,
    did_you_mean,
)
from openbench.methods.libraries import LibraryDetector, is_detector, wrapped
from openbench.public import TARGET, name_of

Validation = tuple[Any, Any]
_CPU = torch.device("cpu")


def named_methods(methods: object) -> tuple[tuple[str, Any], ...]:
    """Return the argument `methods` of a call as pairs of name and method.

    Args:
        methods: a name, an object, a list of names and objects, or a mapping from one's own names to them.

    Raises:
        ConfigError: no method, something else, or two of one name.
    """
    if isinstance(methods, str | Method) or hasattr(methods, "as_method") or is_detector(methods):
        methods = [methods]
    if isinstance(methods, Mapping):
        pairs = tuple((str(key), value) for key, value in methods.items())
    elif isinstance(methods, list | tuple):
        pairs = tuple((value if isinstance(value, str) else _default_name(value), value) for value in methods)
    else:
        raise _not_a_method(methods)
    if not pairs:
        raise ConfigError("methods is empty — name at least one, e.g. methods=['msp', 'knn']")
    for number, (name, value) in enumerate(pairs):
        if not isinstance(value, str):
            _check_values(_instance(value))
        if name in dict(pairs[:number]):
            raise ConfigError(f"methods names '{name}' twice — pass a mapping: {{'{name}': …, '{name}_2': …}}")
    return pairs


def chosen_method(given: Any, params: Mapping[str, Any] | None = None, name: str = "") -> ChosenMethod:
    """Return the method that a caller names or passes.

    Args:
        given: a name, as after `method=`; an object of a class that derives from Method; or an `ob.method`.
        params: hyper-parameters in place of the defaults; nothing is tuned then.
        name: in results; empty = the name typed, or of the class in lower case.

    Raises:
        ConfigError: an unknown name or hyper-parameter, a value out of its range, or something else than a method.
    """
    if isinstance(given, str):
        node, name = _shipped_node(given), name or given
        node |= {**(params or {}), NAME: name}
        method = build(node, f"method '{given}'", Method)
        space = {} if params and not method.own_space else node.get("_space_") or method.own_space
    else:
        method, name = _instance(given), name or _default_name(given)
        if params:
            check_known(params, method.params(), type(method).__name__)
            method = with_params(method, params)
        node, space = {**as_node(method), NAME: name}, method.own_space
    if not is_part(name):
        raise ConfigError(f"methods: '{name}' cannot be the name of a method — allowed: {PART}")
    return ChosenMethod(name, method, node, space)


def as_node(method: Method) -> dict[str, Any]:
    """Return the config node that makes a method; a method among its hyper-parameters is a node itself."""
    values = {key: as_node(v) if isinstance(v, Method) else v for key, v in method.params().items()}
    kind = type(method)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **values}


def beyond_features(method: Method) -> list[str]:
    """Return, in words, what an unfitted method reads besides features, logits, labels and a head."""
    parts = list(leaves(method))
    inputs = ["the images before"] * any(isinstance(part, StreamingMethod) for part in parts)
    inputs += ["embeddings of text"] * any(part.request.texts for part in parts)
    return [name for name in (*inputs, *lacking(Rows("features", 1), method)) if name != "the head"]


def _shipped_node(name: str) -> dict[str, Any]:
    """The config of a method of openbench or of an installed package."""
    places = config_folders()
    known = sorted({file.stem for place in places for file in (place.path / "method").glob("*.yaml")})
    node = shipped("method", name, places=places) if name in known else None
    if node is None:
        hint = f"{did_you_mean(name, known)} (python -m openbench list method)"
        raise ConfigError(f"method '{name}' not found in configs/method{hint}")
    if not node.get(TARGET):
        raise ConfigError(f"method '{name}' is chosen by the training of a network — name the method itself")
    return dict(node)


def _default_name(value: object) -> str:
    """The name of an object: of its class's config, else of its class."""
    method = _instance(value)
    return method.label if isinstance(method, LibraryDetector) else named_for(name_of(type(method)), "method")


def _instance(value: object) -> Method:
    """The unfitted method in an argument: itself, or what is inside an Estimator."""
    method = value.as_method() if isinstance(value, Estimator) else wrapped(value) if is_detector(value) else value
    if not isinstance(method, Method):
        raise _not_a_method(value)
    # A run makes a new method from the hyper-parameters, so an attribute beside them would be lost.
    hidden = [name for name in vars(method).keys() - vars(with_params(method, {})).keys() if not name.endswith("_")]
    if hidden:
        kind = type(method).__name__
        raise ConfigError(f"{kind}: the attribute '{min(hidden)}' is not a hyper-parameter — make it a field")
    for part in method.params().values():
        if isinstance(part, Method):
            _instance(part)
    return method


def _check_values(method: Method) -> None:
    """Check that hyper-parameters are plain values, so that a record states them completely."""
    for name, value in method.params().items():
        if isinstance(value, Method):
            _check_values(value)
        elif not _is_plain(value):
            found = f"{type(method).__name__}.{name} is a {type(value).__name__}"
            raise ConfigError(f"{found} — allowed: numbers, texts, lists, mappings")


def _is_plain(value: object) -> bool:
    """Whether a record can hold it; there, numbers that are not finite are text."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return all(type(key) is str and _is_plain(child) for key, child in value.items())
    return type(value) in (type(None), bool, int, float, str) or isinstance(value, Enum | np.generic)


def _not_a_method(value: object) -> ConfigError:
    if isinstance(value, type) and issubclass(value, Method):
        return ConfigError(f"method is the class {value.__name__}, not an object — write {value.__name__}()")
    return ConfigError(
        f"method is a {type(value).__name__} — pass a name, an object of a class derived from Method, or a detector"
    )


class Estimator:
    """An OOD method as an estimator: arguments are stored as given, `fit` returns itself, larger scores = more OOD.

    It works with `sklearn.base.clone` and wherever openbench takes a method.

    Args:
        method: a name, as after `method=` on the command line, or an object of a class of your own.
        **params: hyper-parameters in place of the method's defaults.

    Raises:
        ConfigError: an unknown name or hyper-parameter, a value out of its range, or something else than a method.
    """

    def __init__(self, method: str | Method, **params: Any) -> None:
        self.method = method
        self._params = params
        self._chosen = chosen_method(method, params)

    def __repr__(self) -> str:
        return f"method({', '.join([repr(self.method), *(f'{key}={value!r}' for key, value in self._params.items())])})"

    def __sklearn_tags__(self) -> Any:
        """Return the tags that scikit-learn's tools read."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type="outlier_detector", target_tags=TargetTags(required=False))

    def as_method(self) -> Method:
        """Return the method itself, unfitted."""
        return chosen_method(self.method, self._params).method

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the method and all its hyper-parameters by name."""
        return {"method": self.method, **self._chosen.method.params(), **self._params}

    def set_params(self, **params: Any) -> Self:
        """Change the method or hyper-parameters; the fitted state is dropped. Return itself.

        Raises:
            ConfigError: as for a new one.
        """
        method = params.pop("method", self.method)
        same = method is self.method or (isinstance(method, str) and method == self.method)
        other = Estimator(method, **{**(self._params if same else {}), **params})
        self.__dict__.clear()
        self.__dict__.update(other.__dict__)
        return self

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        logits: ArrayLike | None = None,
        head: Any = None,
        *,
        val: Validation | None = None,
    ) -> Self:
        """Fit on ID features and return itself.

        Args:
            X: (n, d) features of ID training samples (of ID validation for a method that is fitted on it, such as
                `temp_scaling`); numpy, torch or JAX.
            y: (n,) their classes, for methods that read labels.
            logits: (n, c) outputs of the classifier. None = computed with `head`.
            head: the linear classifier: (W, b) with W (c, d) and b (c,), a torch.nn.Linear, or a fitted linear model
                of scikit-learn.
            val: (X, y) of ID validation, for methods made of others, such as `combood`.

        Raises:
            NotApplicableError: the method reads what features do not have (images, maps, input gradients), or logits,
                labels or a head that were not given.
            DataError: labels or a head that do not fit the features, or values that are NaN or infinite.
            MethodError: X is not (n, d), has another number of rows than `logits`, or cannot be fitted on, e.g. because
                all rows are equal.
        """
        method, name = self.as_method(), self._chosen.name
        if inputs := beyond_features(method):
            read = ", ".join(inputs)
            raise NotApplicableError(f"method '{name}' reads {read}, and an estimator has features and logits only")
        if isinstance(method, Composite) and val is None:
            raise NotApplicableError(f"method '{name}' weighs its parts on ID validation — pass val=(X, y)")
        labelled = Field.LABELS in method.request.fields
        train = _split(name, X, y if labelled else None, logits)
        d = as_array(X, "X").shape[1]
        linear = None if head is None else as_head(head, d)
        if linear is None and any(leaf.request.head for leaf in leaves(method)):
            raise _missing(name, "the head", "head=(W, b)")
        id_val = train
        if isinstance(method, Composite) and val is not None:
            id_val = _split(name, val[0], val[1] if labelled else None)
        fitting = Fitting(train, id_val, Rows(name, d, head=linear).head)
        try:
            self.method_ = fit(method, fitting, _Columns(name, linear), _CPU)
        except FieldError as error:
            if y is None and Field.LABELS in method.request.fields:
                raise _missing(name, "labels", "y, the class of each row") from error
            raise
        self.head_, self.n_features_in_ = linear, d
        return self

    def score(self, X: ArrayLike, logits: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return the scores (n,) float32 of samples; larger = more OOD.

        Args:
            X: (n, d) features.
            logits: (n, c) outputs of the classifier. None = computed with the head given to `fit`.

        Raises:
            NotFittedError: before `fit`.
            MethodError: another number of features than in `fit`, or of rows than `logits`.
            DataError: values that are NaN or infinite.
        """
        if not hasattr(self, "method_"):
            raise NotFittedError(f"{self!r}.score called before fit — call fit(X, y) first")
        name = self._chosen.name
        split = _split(name, X, None, logits)
        if (d := as_array(X, "X").shape[1]) != self.n_features_in_:
            raise MethodError(f"{self!r}.score: X has {d} features — fit had {self.n_features_in_}")
        return score_split(self.method_, split, Scoring(_Columns(name, self.head_), _CPU))


def method(name: str | Method, **params: Any) -> Estimator:
    """Return an OOD method as an estimator on arrays.

    Example:
        scores = ob.method("knn", k=50).fit(X, y).score(X_test)  # (n,), larger = more OOD

    Args:
        name: as after `method=` on the command line (python -m openbench list method), or an object of a class of
            your own.
        **params: hyper-parameters in place of the method's defaults.

    Raises:
        ConfigError: an unknown name or hyper-parameter, or a value out of its range.
    """
    return Estimator(name, **params)


def _split(name: str, X: ArrayLike, y: ArrayLike | None = None, logits: ArrayLike | None = None) -> Split:
    """The arrays of a call as a split, whose labels are −1 where they are not known."""
    given = (as_array(X, "X"), *(() if logits is None else (as_array(logits, "logits"),)))
    shape, n = given[0].shape, len(given[0])
    if len(shape) != 2 or 0 in shape:
        raise MethodError(f"X has shape {shape} — allowed: (n, d), a row of features for each sample")
    if len(given[-1]) != n:
        raise MethodError(f"method '{name}': {n} rows of X and {len(given[-1])} of logits — pass one of each")
    labels = np.full(n, -1) if y is None else class_indices(y, n, "y")
    return Split("X", Role.ID_TEST, RowItems(given), labels, range(n), (), "", n)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Columns(FeatureSource):
    """The columns of arrays; logits that are not among them are computed by the head.

    Args:
        name: of the method, for messages.
        head: the linear classifier, if it is known.
    """

    name: str
    head: Head | None

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        items: Any = split.items
        features, *logits = (as_features(part, key) for part, key in zip(items.parts, ("X", "logits"), strict=False))
        columns = {Field.FEATURES: features}
        if Field.LOGITS in request.fields and logits:
            columns[Field.LOGITS] = logits[0]
        elif Field.LOGITS in request.fields:
            if self.head is None:
                raise _missing(self.name, "logits", "logits=…, or head=(W, b) to compute them")
            columns[Field.LOGITS] = torch.cat([self.head(rows) for rows in torch.split(features, DEFAULT_BATCH)])
        # Some methods use labels where there are some, and fit without.
        if Field.LABELS in request.fields and split.labels.min() >= 0:
            columns[Field.LABELS] = torch.from_numpy(split.labels)
        return FeatureSet(columns)


def _missing(name: str, what: str, argument: str) -> NotApplicableError:
    return NotApplicableError(f"method '{name}' reads {what} — pass {argument}")
