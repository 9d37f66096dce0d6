"""Methods as callers name or pass them, and as estimators: `method("knn", k=50).fit(X, y).score(X_test)`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.api.arguments import ArrayLike, as_array, as_features, as_head, class_indices
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import named_for, names, shipped
from openbench.core.composite import Composite, leaves
from openbench.core.features import DEFAULT_BATCH, FeatureSet, Head
from openbench.core.method import Method
from openbench.core.names import PART, is_part
from openbench.core.request import Field, Request
from openbench.core.search import ChosenMethod, with_params
from openbench.core.streaming import StreamingMethod
from openbench.engine.compatibility import lacking
from openbench.engine.evaluate import score as scored
from openbench.errors import (
    ConfigError,
    FieldError,
    MethodError,
    NotApplicableError,
    NotFittedError,
    check_known,
    did_you_mean,
)
from openbench.public import TARGET, name_of

Validation = tuple[Any, Any]


def named_methods(methods: object) -> tuple[tuple[str, Any], ...]:
    """Return what a caller gives as `methods`, with the name of each in the results.

    Args:
        methods: a name, an instance, a list of names and instances, or a mapping from one's own names to them.

    Raises:
        ConfigError: none, something else, or two of one name.
    """
    if isinstance(methods, str | Method) or hasattr(methods, "as_method"):
        methods = [methods]
    if isinstance(methods, Mapping):
        pairs = tuple((str(key), value) for key, value in methods.items())
    elif isinstance(methods, list | tuple):
        pairs = tuple((value if isinstance(value, str) else _called(value), value) for value in methods)
    else:
        raise _unknown(methods)
    for _, value in pairs:
        if not isinstance(value, str):
            _check_values(_instance(value))
    if not pairs:
        raise ConfigError("methods is empty — name at least one, e.g. methods=['msp', 'knn']")
    twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
    if twice:
        raise ConfigError(
            f"methods names '{twice[0]}' twice — each needs its own name — give a mapping, e.g. "
            f"methods={{'{twice[0]}': '{twice[0]}', '{twice[0]}_2': …}}"
        )
    return pairs


def _checked_name(name: str) -> str:
    """The name, after checking that records can be named by it."""
    if not is_part(name):
        raise ConfigError(f"methods: '{name}' cannot be the name of a method — allowed: {PART}")
    return name


def chosen_method(given: Any, params: Mapping[str, Any] | None = None, name: str = "") -> ChosenMethod:
    """Return the method that a caller names or passes.

    Args:
        given: a name, as after `method=`; an object of a class that derives from Method; or what `openbench.method`
            returned.
        params: hyper-parameters in place of the defaults; nothing is then tuned.
        name: how it is called in results; empty = the name typed, or of the class in lower case.

    Raises:
        ConfigError: an unknown name or hyper-parameter, a value out of its range, or something else than a method.
    """
    if isinstance(given, str):
        node = {**_node(given), **(params or {}), NAME: name or given}
        method = build(node, f"method '{given}'", Method)
        return ChosenMethod(_checked_name(name or given), method, node, {} if params else node.get("_space_") or {})
    method = _instance(given)
    if params:
        check_known(params, method.params(), type(method).__name__)
        method = with_params(method, params)
    name = _checked_name(name or _called(method))
    return ChosenMethod(name, method, {**as_node(method), NAME: name})


def as_node(method: Method) -> dict[str, Any]:
    """Return the config node that makes a method; a method among its hyper-parameters is a node itself."""
    values = {key: as_node(v) if isinstance(v, Method) else v for key, v in method.params().items()}
    kind = type(method)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **values}


def beyond_features(method: Method) -> list[str]:
    """Return, in words, what an unfitted method reads that is neither features, logits, labels nor a head."""
    streams = any(isinstance(leaf, StreamingMethod) for leaf in leaves(method))
    read = ["the images before"] * streams + lacking(Rows("features", 1), method)
    return [what for what in read if what != "the head"]


def _node(name: str) -> dict[str, Any]:
    """The config of a shipped method."""
    known = names("method")
    found = shipped("method", name) if name in known else None
    if found is None:
        raise ConfigError(
            f"method '{name}' not found in configs/method{did_you_mean(name, known)} — an object of a class "
            "of your own goes wherever a name goes (python -m openbench list method)"
        )
    if not found.get(TARGET):
        raise ConfigError(f"method '{name}' is chosen by the training of a network — name the method itself")
    return found


def _called(value: object) -> str:
    """What an instance is called: by the config of its class, else by its class."""
    return named_for(name_of(type(_instance(value))), "method")


def _instance(value: object) -> Method:
    """The unfitted method that a caller passes, or that `openbench.method` returned."""
    held = getattr(value, "as_method", None)
    found = held() if held is not None and not isinstance(value, type) else value
    if not isinstance(found, Method):
        raise _unknown(value)
    _refuse_hidden(found)
    return found


def _refuse_hidden(method: Method) -> None:
    """Refuse attributes of an object that are no hyper-parameters: a run makes methods anew, without them."""
    hidden = [name for name in vars(method).keys() - vars(with_params(method, {})).keys() if not name.endswith("_")]
    if hidden:
        raise ConfigError(
            f"{type(method).__name__} — found the attribute '{min(hidden)}', which is no hyper-parameter and would be "
            "lost — make it a field of a class of your own, or override the method in one"
        )
    for part in method.params().values():
        if isinstance(part, Method):
            _refuse_hidden(part)


def _check_values(method: Method) -> None:
    """Refuse hyper-parameters that are not plainly values: results of one could be taken for those of another."""
    for name, value in method.params().items():
        if isinstance(value, Method):
            _check_values(value)
        elif not _is_value(value):
            raise ConfigError(
                f"{type(method).__name__}.{name} — found a {type(value).__name__} — allowed: numbers, texts, lists and "
                "mappings of these, so that a record tells what made it"
            )


def _is_value(value: object) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_value, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return all(type(key) is str and _is_value(child) for key, child in value.items())
    return type(value) in (type(None), bool, int, float, str) or isinstance(value, Enum | np.generic)


def _unknown(value: object) -> ConfigError:
    if isinstance(value, type) and issubclass(value, Method):
        return ConfigError(f"method — found the class {value.__name__} — an object expected — write {value.__name__}()")
    return ConfigError(
        f"method — found a {type(value).__name__} — allowed: a name (python -m openbench list method), or an object of "
        "a class that derives from openbench.core.method.Method"
    )


class Estimator:
    """An OOD method as an estimator: arguments are stored as given, `fit` returns itself, larger scores = more OOD.

    It works with `sklearn.base.clone` and wherever openbench takes a method.
    """

    def __init__(self, method: str | Method, **params: Any) -> None:
        """Take a method and its hyper-parameters.

        Args:
            method: a name, as after `method=` on the command line, or an object of a class of one's own.
            **params: hyper-parameters in place of the method's defaults.

        Raises:
            ConfigError: an unknown name or hyper-parameter, a value out of its range, or something else than a method.
        """
        self.method = method
        self._params = params
        self._chosen = chosen_method(method, params)

    def __repr__(self) -> str:
        return f"method({', '.join([repr(self.method), *(f'{key}={value!r}' for key, value in self._params.items())])})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask of an estimator."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type="outlier_detector", target_tags=TargetTags(required=False))

    def as_method(self) -> Method:
        """Return the method itself, unfitted."""
        return chosen_method(self.method, self._params).method

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the method and all its hyper-parameters by name."""
        return {"method": self.method, **self._chosen.method.params(), **self._params}

    def set_params(self, **params: Any) -> Self:
        """Change the method or hyper-parameters; what was fitted is forgotten. Return itself.

        Raises:
            ConfigError: as for a new one.
        """
        method = params.pop("method", self.method)
        kept = self._params if method is self.method or (isinstance(method, str) and method == self.method) else {}
        other = Estimator(method, **{**kept, **params})
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
        """Learn from ID features and return itself.

        Args:
            X: (n, d) features of ID training samples (of ID validation, for a method that is fitted on it, such as
                `temp_scaling`); numpy, torch or JAX.
            y: (n,) their classes, for methods that read labels.
            logits: (n, c) the classifier's outputs; computed with `head` where they are not given.
            head: the linear classifier: (W, b) with W (c, d) and b (c,), a torch.nn.Linear, or a fitted linear model
                of scikit-learn.
            val: (X, y) of ID validation, for methods made of others, such as `combood`.

        Raises:
            NotApplicableError: the method reads what arrays of features do not hold: images, maps, input gradients; or
                logits, labels or a head that were not given.
            DataError: labels or a head that do not fit the features, or values that are NaN or infinite.
            MethodError: X has no rows of features, another number of rows than `logits`, or what the method cannot be
                fitted on, such as features that are all equal.
        """
        method = self.as_method()
        self._refuse_network(method)
        d = _columns(X)
        linear = None if head is None else as_head(head, d)
        given = _Given(self._chosen.name, X, y, logits, linear)
        checking = None if val is None else _Given(self._chosen.name, val[0], val[1], None, linear)
        self.method_ = _fitted(method, given, checking)
        self.head_, self.n_features_in_ = linear, d
        return self

    def score(self, X: ArrayLike, logits: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return the scores (n,) float32 of samples; larger = more OOD.

        Args:
            X: (n, d) features.
            logits: (n, c); computed with the head given to `fit` where they are not given.

        Raises:
            NotFittedError: before `fit`.
            MethodError: another number of features than was fitted, or of rows than `logits`.
            DataError: values that are NaN or infinite.
        """
        if not hasattr(self, "method_"):
            raise NotFittedError(f"{self!r}.score called before fit — call fit(X, y) first")
        d = _columns(X)
        if d != self.n_features_in_:
            raise MethodError(f"{self!r}.score: X has {d} features — {self.n_features_in_} were fitted — pass the same")
        given = _Given(self._chosen.name, X, None, logits, self.head_)
        return _scores(self.method_, given)

    def fit_score(self, X: ArrayLike, y: ArrayLike | None = None, **rest: Any) -> NDArray[np.float32]:
        """Fit on samples and return their own scores (n,); arguments as for `fit`."""
        return self.fit(X, y, **rest).score(X, rest.get("logits"))

    def _refuse_network(self, method: Method) -> None:
        if read := beyond_features(method):
            raise NotApplicableError(
                f"method '{self._chosen.name}' reads {', '.join(read)} — an estimator has features and "
                "logits only — evaluate the network itself, or choose a method that reads features, e.g. "
                "openbench.method('knn')"
            )


def method(name: str | Method, **params: Any) -> Estimator:
    """Return an OOD method as an estimator on arrays: `method("knn", k=50).fit(X, y).score(X_test)`.

    Args:
        name: as after `method=` on the command line (python -m openbench list method), or an object of a class of
            one's own.
        **params: hyper-parameters in place of the method's defaults.

    Raises:
        ConfigError: an unknown name or hyper-parameter, or a value out of its range.
    """
    return Estimator(name, **params)


class _Given:
    """The arrays of one call, made into what a method declares."""

    def __init__(self, name: str, X: ArrayLike, y: Any, logits: Any, head: Head | None) -> None:
        self.name, self.X, self.y, self.logits, self.head = name, X, y, logits, head
        if logits is not None and len(as_array(logits, "logits")) != len(X):
            raise MethodError(f"method '{name}': {len(X)} rows of X, {len(logits)} of logits — one of each per sample")

    def columns(self, request: Request, rows: slice = slice(None), labelled: bool = False) -> FeatureSet:
        """The columns that a request names, of some rows."""
        found: dict[Field, Tensor] = {}
        features = as_features(self.X[rows], "X")
        if Field.FEATURES in request.fields:
            found[Field.FEATURES] = features
        if Field.LOGITS in request.fields:
            found[Field.LOGITS] = self._logits(features, rows)
        # Some methods use labels where there are some, and fit without.
        if labelled and Field.LABELS in request.fields and self.y is not None:
            found[Field.LABELS] = torch.from_numpy(class_indices(self.y, len(self.X), "y"))
        return FeatureSet(found or {Field.FEATURES: features})

    def head_for(self, request: Request) -> Head | None:
        """The head, if a request names it."""
        if not request.head:
            return None
        if self.head is None:
            raise self.missing("the head", "head=(W, b)")
        return self.head

    def batches(self) -> Iterator[slice]:
        """Rows that are scored together."""
        yield from (slice(start, start + DEFAULT_BATCH) for start in range(0, len(self.X), DEFAULT_BATCH))

    def _logits(self, features: Tensor, rows: slice) -> Tensor:
        if self.logits is not None:
            return as_features(self.logits[rows], "logits")
        if self.head is None:
            raise self.missing("logits", "logits=…, or head=(W, b) to compute them")
        return torch.cat([self.head(part) for part in torch.split(features, DEFAULT_BATCH)])

    def missing(self, what: str, way: str) -> NotApplicableError:
        """The error for a column that the method reads and nobody gave."""
        return NotApplicableError(f"method '{self.name}' reads {what} — not given — pass {way}")


def _columns(X: ArrayLike) -> int:
    shape = tuple(getattr(X, "shape", ())) or as_array(X, "X").shape
    if len(shape) != 2 or 0 in shape:
        raise MethodError(f"X — found shape {shape} — allowed: (n, d), a row of features for each sample")
    return int(shape[1])


def _fitted(method: Method, given: _Given, checking: _Given | None) -> Method:
    """A method fitted on arrays; a composite's parts one by one."""
    if isinstance(method, Composite):
        if checking is None:
            raise NotApplicableError(
                f"method '{given.name}' weighs its parts on ID validation — not given — pass val=(X_val, y_val) to fit"
            )
        return method.fit_parts(
            lambda part: _fitted(part, given, checking), lambda part: torch.from_numpy(_scores(part, checking))
        )
    clean = replace(method.request, perturb=None)
    head = given.head_for(clean)
    if clean.fit_on is None:
        return method.fit(None, head)
    try:
        return method.fit(given.columns(clean, labelled=True), head)
    except FieldError as error:
        if given.y is None and Field.LABELS in clean.fields:
            raise given.missing("labels", "y, the class of each row") from error
        raise


def _scores(method: Method, given: _Given) -> NDArray[np.float32]:
    if isinstance(method, Composite):
        parts = {name: torch.from_numpy(_scores(part, given)) for name, part in method.fitted_parts.items()}
        return method.combine(parts).numpy()
    found = [
        scored(method, given.columns(method.request, rows), DEFAULT_BATCH, f"rows from {rows.start}")
        for rows in given.batches()
    ]
    return np.concatenate(found)
