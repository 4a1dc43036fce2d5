"""Nests of lists, tuples and dicts that a candidate returns, read without running any of its code.

A class that derives from tuple can compute its items when somebody iterates over it, one that
derives from str when it is hashed, and any object can say what its ``__class__`` is: after the
clock has stopped, unseen. So only types decide here, and only functions of the built-in types read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_a(value: Any, *kinds: type) -> bool:
    """Whether ``value`` is of one of ``kinds``, whatever it says of itself."""
    return issubclass(type(value), kinds)


def items(value: Any) -> list[Any]:
    """What a list or tuple holds."""
    if is_a(value, tuple):
        return list(tuple.__iter__(value))
    return list(list.__iter__(value))


def pairs(value: Any) -> list[tuple[str, Any]]:
    """Keys and values of a dict, in order."""
    return [(_key(key), item) for key, item in dict.items(value)]


def plain(value: Any) -> Any:
    """A number or text as one of the built-in types; anything else is returned as it is."""
    if type(value) in (bool, int, float, str, type(None)):
        return value
    # By the slots of the built-in type, not by what a class derived from it has put there.
    if is_a(value, int):
        return int.__pos__(value)
    if is_a(value, float):
        return float.__pos__(value)
    return str.__str__(value) if is_a(value, str) else value


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to what is no list, tuple or dict, in plain new ones."""
    if is_a(value, tuple):
        return tuple([rebuilt(item, change) for item in items(value)])
    if is_a(value, list):
        return [rebuilt(item, change) for item in items(value)]
    if is_a(value, dict):
        return {key: rebuilt(item, change) for key, item in pairs(value)}
    return change(value)


def _key(key: Any) -> str:
    key = plain(key)
    known = type(key) in (bool, int, float, str, type(None))
    return str(key) if known else f"<{type(key).__name__}>"
