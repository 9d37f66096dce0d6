"""YAML as plain values: no other types, no key twice, nothing that grows when its aliases are followed."""

import re
from typing import Any

import yaml

from openbench.errors import ConfigError

MOST_VALUES = 10_000  # scalars, lists and mappings, each alias counted as often as it is used
DEEPEST = 64

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "seq", "map"))
_LONGEST = 100  # characters of a whole number
_NUMBERS = {
    "float": r"""(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    "int": r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$",
}
_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first where libyaml is


class _Loader(_Base):  # type: ignore[misc]
    """Reads 1e-3 as a number, as Hydra does; dates and times of day are text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern, re.VERBOSE), list("-+0123456789."))


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text; None for an empty one.

    Args:
        text: one document.
        where: what holds it, for messages.

    Raises:
        ConfigError: not YAML, several documents, a key twice in a mapping, a tag of anything but a plain value, more
            values than 10,000 where aliases are followed, an alias within what it stands for, or deeper than 64.
    """
    loader: Any = None
    try:
        _check_size(text, where)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(loader, node, where)
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the last two of a text tagged as a number
        raise ConfigError(f"{where} is not valid YAML — {_one_line(error)} — correct it") from error
    finally:
        if loader is not None:
            loader.dispose()


def _check_size(text: str, where: str) -> None:
    """Raise ConfigError where following the aliases would not end or would fill the memory.

    The parser's events are counted, so that nothing is built before its size is known.
    """
    sizes: dict[str, int] = {}  # of anchored values that have ended
    open_: list[tuple[str | None, int]] = []  # anchor, and values seen before, of the lists and mappings around
    seen = 0
    event: Any
    for event in yaml.parse(text, Loader=_Base):
        line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!" and tag not in _PLAIN:
            raise ConfigError(f"{where} line {line} — found the tag {tag} — allowed: plain values — leave the tag out")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in open_):
                raise ConfigError(
                    f"{where} line {line} — found the alias *{event.anchor} inside the value that it stands for — "
                    "write the values out"
                )
            seen += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, seen))
            seen += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            sizes.update({} if anchor is None else {anchor: seen - before})
        elif isinstance(event, yaml.ScalarEvent):
            seen += 1
            sizes.update({} if event.anchor is None else {event.anchor: 1})
        if seen > MOST_VALUES:
            raise ConfigError(
                f"{where} line {line} — found more than {MOST_VALUES:,} values, aliases followed — allowed: at most "
                f"{MOST_VALUES:,} — write fewer values, or aliases that hold less"
            )
        if len(open_) > DEEPEST:
            raise ConfigError(f"{where} line {line} — found values nested deeper than {DEEPEST} — write them flatter")


def _check_keys(loader: Any, root: yaml.Node, where: str) -> None:
    """Raise ConfigError where a mapping has a key twice, or a whole number is too long to be one."""
    waiting, done = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        if node.tag == _TAG + "int" and len(node.value) > _LONGEST:
            line = node.start_mark.line + 1
            raise ConfigError(f"{where} line {line} — found a whole number of more than {_LONGEST} characters")
        if isinstance(node, yaml.MappingNode):
            keys: set[Any] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                value = key.value if key.tag == _TAG + "merge" else loader.construct_object(key)
                if value in keys:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"{where} line {line} — found the key '{key.value}' twice — keep one of them")
                keys.add(value)
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        for child in () if isinstance(node, yaml.ScalarNode) else children:
            if id(child) not in done:
                done.add(id(child))
                waiting.append(child)


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
