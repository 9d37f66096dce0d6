"""Settings as tables show them: hyper-parameters that were tuned or set, and how the network was trained."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from openbench.config.folders import data_of, names, shipped
from openbench.config.overrides import NAME
from openbench.core.names import is_part
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.public import TARGET, public

_ALTERNATIVES = 24  # characters in which differing words are listed; more are counted


def hyper_parameters(params: Mapping[str, Any]) -> str:
    """Return hyper-parameters as `k=50, metric=l2`; empty if there are none."""
    return ", ".join(f"{key}={written(params[key])}" for key in sorted(params))


def not_default(node: Mapping[str, Any], params: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters of a run that somebody or something chose.

    The defaults are those of configs/method now: where one has changed since the run, the run's value is shown.

    Args:
        node: the config's method node.
        params: all hyper-parameters, as the record holds them.
        tuned: those chosen on validation.
    """
    default = _file(str(node.get(NAME)))
    values = {key: value for key, value in node.items() if not str(key).startswith("_")}
    chosen = {key for key in values if key not in default or digest(values[key]) != digest(default[key])}
    return {key: params.get(key, values.get(key)) for key in sorted(chosen | set(tuned))}


def over_runs(chosen: Sequence[Mapping[str, Any]]) -> str:
    """Return the hyper-parameters of the runs of one row, e.g. `k=20…100, metric=l2 (3 seeds)`.

    Numbers that differ become a range; words are listed where that is short, and else counted.

    Args:
        chosen: of each run, as `not_default` returns them.
    """
    names = sorted({name for one in chosen for name in one})
    values = {name: [one.get(name) for one in chosen] for name in names}
    differ = any(len({written(v) for v in choices}) > 1 for choices in values.values())
    text = ", ".join(f"{name}{_merged(choices)}" for name, choices in values.items())
    return f"{text} ({len(chosen)} seeds)" if differ else text


def written(value: Any) -> str:
    """Return a value as it is shown: numbers short, lists in brackets, mappings in braces."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(of)}" for key, of in value.items()) + "}"
    return "[" + ", ".join(map(written, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _merged(values: Sequence[Any]) -> str:
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        low, high = written(min(values)), written(max(values))
        return f"={low}" if low == high else f"={low}…{high}"
    texts = sorted({written(value) for value in values})
    listed = "/".join(texts)
    return f"={listed}" if len(texts) == 1 or len(listed) <= _ALTERNATIVES else f": {len(texts)} choices"


@cache
def _file(method: str) -> Mapping[str, Any]:
    """The values of a method's config file; none for a method that openbench does not ship."""
    values: Mapping[str, Any] = public((shipped("method", method) if is_part(method) else None) or {})
    return values


def strategy_of(record: ResultRecord) -> str:
    """Return the strategy by which a run's hyper-parameters were chosen; `none` if there was nothing to choose."""
    return str((record.config.get("tune") or {}).get("strategy", "none")) if record.tuned else "none"


def given_of(record: ResultRecord) -> str:
    """Return the digest of the scores of a record whose scores were given; empty for a run."""
    node = record.config.get(GIVEN)
    return str(node.get("sha256")) if isinstance(node, Mapping) else ""


def is_per_set(record: ResultRecord) -> bool:
    """Whether each OOD set has hyper-parameters, and hence scores of the ID side, of its own."""
    return strategy_of(record) == "oracle_per_set"


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every value of a config that is not a mapping with keys."""
    if isinstance(node, Mapping) and node:
        for key, child in node.items():
            yield from leaves(child, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


GIVEN = "scores"  # node of a config: its scores were given, and nobody ran the code that made them
NONE = "none"
RELEASED = "released weights"
OWN = "own weights"  # of a model given from Python: nothing is known of its training
_OF_OWN = {TARGET, NAME, "name", "architecture"}  # what a config says of such a model
# Crops and flips belong to every recipe, in sizes that depend on the benchmark; they are not named.
_PLAIN = ("RandomCrop", "HorizontalFlip", "RandomResizedCrop")


def training_of(record: ResultRecord) -> str:
    """Return how a run's backbone was trained, as users type it after `training=`."""
    node = record.config.get("backbone") or {}
    from_python = "architecture" in node and _OF_OWN.issuperset(node)
    return str(record.backbone.get("training") or (OWN if from_python else RELEASED))


def network_of(record: ResultRecord) -> str:
    """Return a run's backbone and how it was trained; the name alone where features were given and no network ran."""
    backbone = record.backbone
    one_pixel = (backbone.get("preprocess") or {}).get("crop") == 1  # rows of numbers pass as images of one pixel
    if not backbone.get("training") and (one_pixel or backbone.get("weights_sha256") == ""):
        return str(backbone.get("name"))
    return f"{backbone.get('name')} ({training_of(record)})"


def augmentation_of(record: ResultRecord) -> str:
    """Return the augmentation beyond crops and flips, as users type it after `+augment=`; `none` if there is none.

    What differs from that config file stands in brackets, e.g. `pixmix (rounds=2)`, so that two augmentations never
    have one name. A record that does not name its augmentation is called by its classes.
    """
    node: Any = record.config
    for key in ("training", "recipe", "augment"):
        node = node.get(key) if isinstance(node, Mapping) else None
    recipe = _special(node)
    name = str(record.backbone.get("augment") or " + ".join(_class(node).lower() for node in recipe))
    if not name or not record.backbone.get("training"):
        return NONE
    files = _files()
    if not recipe or name not in files or recipe in files[name]:
        return name
    changed = sorted(_settings_of(recipe) - _settings_of(files[name][0]))
    return f"{name} ({', '.join(changed)})" if changed else f"{name} (shortened)"


def outliers_of(record: ResultRecord) -> str:
    """Return the data set of outliers that the training saw, `none` if it saw none."""
    return str(record.backbone.get("outliers") or NONE)


def _special(augment: Any) -> list[Mapping[str, Any]]:
    """The augmentations of a recipe that are not crops and flips."""
    nodes = [a for a in augment if isinstance(a, Mapping)] if isinstance(augment, list | tuple) else []
    return [a for a in nodes if _class(a) not in _PLAIN]


def _class(node: Mapping[str, Any]) -> str:
    return str(node.get(TARGET)).rpartition(".")[2]


@cache
def _files() -> dict[str, list[list[Mapping[str, Any]]]]:
    """The special augmentations of each config file by name: in general, and as they are on some data."""
    special = {}
    for name in names("augment"):
        nodes = [public(shipped("augment", name, data)) for data in ("", *data_of("augment", name))]
        special[name] = [_special(node.get("then") or node.get("augment")) for node in nodes]
    return special


def _settings_of(recipe: Sequence[Mapping[str, Any]]) -> set[str]:
    return {f"{key}={written(value)}" for node in recipe for key, value in leaves(node)}
