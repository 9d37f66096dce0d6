"""YAML as plain values: no other types, no key twice, and aliases that cannot grow without end."""

import re
from pathlib import Path
from typing import Any

import yaml

from openbench.errors import ConfigError
from openbench.storage.files import read_regular

MOST_VALUES = 10_000  # scalars, lists and mappings, each alias counted as often as it is used
DEEPEST = 64
_MOST_BYTES = 2**20
_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge"))
_NUMBERS = {
    "float": r"""(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    "int": r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$",
}
_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first where libyaml is installed


class _Loader(_Base):  # type: ignore[misc]
    """Reads 1e-3 as a number, as Hydra does; dates and times of day are text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes text that Hydra or YAML 1.1 reads as another value."""


for _name, _pattern in _NUMBERS.items():
    for _of in (_Loader, _Dumper):
        _of.add_implicit_resolver(_TAG + _name, re.compile(_pattern, re.VERBOSE), list("-+0123456789."))


def yaml_text(value: Any) -> str:
    """Return plain values as YAML, short lists and mappings on one line."""
    return str(
        yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=None, width=120)
    )


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file; None for an empty one.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or is refused by `parse_yaml`.
    """
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the bytes are not UTF-8"
        raise ConfigError(f"'{path}' cannot be read — {reason}") from error
    return parse_yaml(text, f"'{path}'")


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text; None for an empty one.

    Args:
        text: one document.
        where: its file or place, for messages.

    Raises:
        ConfigError: not YAML, several documents, a key twice in a mapping, a tag of anything but a plain value, more
            than 10,000 values when aliases are followed, or values nested deeper than 64.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check(loader, node, where)
        return loader.construct_document(node)
    # Text that is tagged as a number raises ValueError or LookupError.
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        reason = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
        raise ConfigError(f"{where} is not valid YAML — {reason}") from error


def _check(loader: Any, root: yaml.Node, where: str) -> None:
    """Raise ConfigError for what YAML allows and plain values do not have; aliases are followed."""
    pending, count = [(root, 0)], 0
    while pending:
        node, depth = pending.pop()
        count += 1
        at = f"{where} line {node.start_mark.line + 1}"
        if node.tag not in _PLAIN:
            raise ConfigError(f"{at} has the tag {node.tag} — leave it out")
        if count > MOST_VALUES:
            raise ConfigError(f"{at}: more than {MOST_VALUES:,} values, aliases followed — write fewer values")
        if depth > DEEPEST:
            raise ConfigError(f"{at}: values nested deeper than {DEEPEST}, aliases followed — write them flatter")
        if isinstance(node, yaml.MappingNode):
            _check_keys(loader, node, where)
            pending += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            pending += [(part, depth + 1) for part in node.value]


def _check_keys(loader: Any, node: yaml.MappingNode, where: str) -> None:
    keys: set[Any] = set()
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        value = key.value if key.tag == _TAG + "merge" else loader.construct_object(key)
        if value in keys:
            raise ConfigError(f"{where} line {key.start_mark.line + 1} has the key '{key.value}' twice — keep one")
        keys.add(value)
