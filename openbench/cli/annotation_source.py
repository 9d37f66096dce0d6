"""What a field's annotation allows, in words, read from source: nothing is imported but typing and our constraints."""

import ast
import typing
from collections import abc
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import annotated_types

from openbench.config import constraints
from openbench.config.constraints import described

_KNOWN = {
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal")},
    **{name: getattr(abc, name) for name in ("Mapping", "Sequence", "Iterable", "Collection")},
    **{kind.__name__: kind for kind in (int, float, bool, str, list, tuple, dict)},
    **{name: getattr(annotated_types, name) for name in annotated_types.__all__ if hasattr(annotated_types, name)},
    **{name: value for name, value in vars(constraints).items() if not name.startswith("_")},
}


class _UnknownError(Exception):
    """An annotation with something other than plain kinds and constraints."""


def allowed(annotation: ast.expr, look_up: Callable[[str], ast.expr | None]) -> str:
    """Return what an annotation allows; empty where that cannot be told from plain kinds and constraints.

    Args:
        annotation: of a field.
        look_up: the expression behind a name of the module, None if it has no such name.
    """
    try:
        return described(_value(annotation, look_up))
    except (_UnknownError, TypeError):
        return ""


def _value(node: ast.expr, look_up: Callable[[str], ast.expr | None]) -> Any:
    """What an expression made of known names, subscripts, unions, plain values and calls of constraints stands for."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        found = look_up(node.id)
        if found is not None:
            return _value(found, look_up)
        if node.id in _KNOWN:
            return _KNOWN[node.id]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, look_up) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, look_up)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return reduce(or_, (_value(side, look_up) for side in (node.left, node.right)))
    if isinstance(node, ast.Subscript):
        return _value(node.value, look_up)[_value(node.slice, look_up)]
    if isinstance(node, ast.Call):
        made = _value(node.func, look_up)
        if isinstance(made, type) and made.__module__ in ("annotated_types", constraints.__name__):
            given = {keyword.arg: _value(keyword.value, look_up) for keyword in node.keywords if keyword.arg}
            return made(*(_value(argument, look_up) for argument in node.args), **given)
    raise _UnknownError(ast.unparse(node))
