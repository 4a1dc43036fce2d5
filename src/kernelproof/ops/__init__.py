"""The shipped operators: ``kernelproof.ops.mla_kv(...)``, ``from kernelproof.ops import mla_kv``.

Each lives in a folder of its own with a function of the folder's name, found by listing; nothing
here names one. ``from kernelproof.ops.mla_kv import mla_kv`` is the form that type checkers see.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def names() -> list[str]:
    """Names of the shipped operators."""
    return sorted(p.parent.name for p in Path(__file__).parent.glob("[!_]*/problem.py"))


def explain(operator: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> str:
    """What an operator, or the one of that name, would do with these arguments, and why.

    Raises:
        AttributeError: there is no such operator.
        UnsupportedError: it does not explain itself.
    """
    name = operator if isinstance(operator, str) else operator.__name__
    if name not in names():
        raise AttributeError(f"no operator {name!r}; there are {', '.join(names())}")
    told = getattr(importlib.import_module(f"{__name__}.{name}"), "explain", None)
    if told is None:
        from kernelproof.errors import UnsupportedError

        raise UnsupportedError(f"{name} does not explain its choices")
    text: str = told(*args, **kwargs)
    return text


class _Operators(ModuleType):
    """Shows an operator's function where Python would show its package.

    Importing ``kernelproof.ops.x`` sets the attribute ``x`` of this module to the package, from
    then on hiding the function of the same name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and callable(getattr(value, name, None)):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Operators


def __getattr__(name: str) -> Any:
    if name in names():
        return getattr(importlib.import_module(f"{__name__}.{name}"), name)
    raise AttributeError(f"no operator {name!r}; there are {', '.join(names())}")


def __dir__() -> list[str]:
    return names()
