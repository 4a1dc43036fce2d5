"""Reference models with graphs, which are worth some runs to make: kept while cases with other
constructor arguments are judged, and for the outputs of timed calls."""

from __future__ import annotations

from typing import Any

from kernelproof.check.reference import ReferenceModel

# Those used last; small ones, since only small inputs have graphs.
_MOST = 3
_kept: dict[Any, ReferenceModel] = {}


def kept(key: Any) -> ReferenceModel | None:
    """The model that was kept under ``key``: class and arguments of its construction."""
    return _kept.get(key)


def keep(key: Any, model: ReferenceModel) -> None:
    """Keep ``model`` if it has graphs. Never in training mode, which has none: there each run
    leaves other statistics behind."""
    if model.replaying:
        _kept.pop(key, None)
        _kept[key] = model
        while len(_kept) > _MOST:
            del _kept[next(iter(_kept))]
