"""Whether what a timed call is measured by is the same before each of them.

`tripwires` looks after a request; what a candidate replaces in one call and puts back in the next
is gone by then. So before each timed call the names by which it is measured are compared with what
they stood for before the candidate was imported. That is done by objects of C only: a function of
Python could be replaced as well, for the moment.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from itertools import repeat
from operator import attrgetter, eq
from types import ModuleType
from typing import Any


class Names:
    """Attributes of ``root``, by dotted names, as they are now."""

    def __init__(self, root: Any, names: list[str]) -> None:
        self._root = root
        # A getter of one name would not give a tuple.
        self._get: Any = attrgetter(*names, *names[:1])
        self._kept = self._get(root)

    def steady(self) -> Iterator[bool]:
        """True again and again, as long as all are what they were; then raises KeyError(False)."""
        same = map(eq, map(self._get, repeat(self._root)), repeat(self._kept))
        return map({True: True}.__getitem__, same)


def of_modules(modules: list[ModuleType]) -> Names:
    """Functions, classes and modules that these modules of kernelproof have, with the code of the
    functions and of the methods."""
    root = types.SimpleNamespace()
    names: list[str] = []
    for number, module in enumerate(modules):
        place = f"module_{number}"
        setattr(root, place, module)
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            if isinstance(value, type) and value.__module__ == module.__name__:
                names += [f"{place}.{name}", *_methods(f"{place}.{name}", value)]
            elif isinstance(value, types.FunctionType):
                names += [f"{place}.{name}", f"{place}.{name}.__code__"]
            elif callable(value) or isinstance(value, ModuleType):
                names.append(f"{place}.{name}")
    return Names(root, names)


def _methods(place: str, kind: type) -> list[str]:
    found = [f"{place}.{n}" for n, v in vars(kind).items() if isinstance(v, types.FunctionType)]
    return [*found, *(f"{name}.__code__" for name in found)]
