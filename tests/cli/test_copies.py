"""Copies of configs are those of `copy.deepcopy`, node by node, and share nothing that can be written to."""

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from omegaconf import MISSING, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.base import UnionNode

from openbench.compose.config import compose
from openbench.compose.copies import copied


class Colour(Enum):
    RED = 1


@dataclass
class Inner:
    number: int | None = None
    colour: Colour = Colour.RED
    either: int | str = 3
    unset: str = MISSING


@dataclass
class Typed:
    inner: Inner = field(default_factory=Inner)
    several: list[Inner] = field(default_factory=lambda: [Inner(number=1)])
    named: dict[str, int] = field(default_factory=lambda: {"a": 1})
    nothing: Inner | None = None
    later: Inner = MISSING
    elsewhere: Inner = "${inner}"  # type: ignore[assignment]


@pytest.fixture(params=["plain", "typed", "composed"])
def config(request: pytest.FixtureRequest) -> DictConfig:
    if request.param == "composed":
        return compose("run", ["+benchmark=digits", "method=knn"])
    if request.param == "typed":
        return OmegaConf.structured(Typed)
    made = OmegaConf.create({"a": {"b": [1, {"c": "${a.d}"}], "d": None, 3: b"x"}, "e": "???", "f": [], "g": {}})
    OmegaConf.set_readonly(made.a, True)
    OmegaConf.set_struct(made, True)
    return made


def told(node: Node) -> dict[str, Any]:
    """What a node is, those below it aside, and what it answers for flags that nodes above it may have."""
    state = {key: value for key, value in vars(node).items() if key not in ("_parent", "_flags_cache", "_content")}
    flags = [node._get_flag(flag) for flag in ("readonly", "struct", "allow_objects")]
    return {**state, "type": type(node), "flags": flags}


def inner(node: Node) -> dict[Any, Node]:
    """The nodes right below one."""
    content = vars(node).get("_content")
    if isinstance(node, UnionNode):
        return {None: content}
    if isinstance(content, list):
        return dict(enumerate(content))
    return dict(content) if isinstance(content, dict) else {}


def pairs(one: Node, other: Node):
    yield one, other
    assert list(inner(one)) == list(inner(other))
    for key, node in inner(one).items():
        yield from pairs(node, inner(other)[key])


def test_a_copy_is_node_for_node_the_one_that_deepcopy_makes(config: DictConfig) -> None:
    for part in (config, *(node for node in inner(config).values() if isinstance(node, DictConfig | ListConfig))):
        mine, theirs = copied(part), copy.deepcopy(part)
        for one, other in pairs(mine, theirs):
            assert told(one) == told(other)
            assert all(node._get_parent() is one for node in inner(one).values())
            if not inner(one):
                assert vars(one).get("_content") == vars(other).get("_content")
        assert mine._get_parent() is theirs._get_parent() is part._get_parent()


def test_a_copy_shares_nothing_that_can_be_written_to(config: DictConfig) -> None:
    config._get_flag("readonly")  # which it then remembers
    for mine, original in pairs(copied(config), config):
        assert vars(mine)["_flags_cache"] is None
        assert mine is not original
        assert mine._metadata is not original._metadata
        assert mine._metadata.flags is not original._metadata.flags
        assert mine._metadata.resolver_cache is not original._metadata.resolver_cache
        if inner(mine):
            assert vars(mine)["_content"] is not vars(original)["_content"]


def test_what_was_resolved_once_stays_what_it_was() -> None:
    made = OmegaConf.create({"a": "${now}"})
    made._metadata.resolver_cache["now"]["x"] = [1]
    mine = copied(made)
    assert mine._metadata.resolver_cache == {"now": {"x": [1]}}
    made._metadata.resolver_cache["now"]["x"].append(2)
    assert mine._metadata.resolver_cache["now"] == {"x": [1]}
    assert mine._metadata.resolver_cache["other"] == {}, "as before, what is missing is empty"
