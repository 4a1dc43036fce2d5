"""A worker's module: its class or function in the file, made and given the reference's weights."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

from kernelproof.errors import ContractError


def factory_of(source: Any, attr: str, path: str) -> Any:
    """The class or function to judge. ``attr`` is a class name, or ``BASELINES:<name>``."""
    if attr.startswith("BASELINES:"):
        return source.BASELINES[attr.removeprefix("BASELINES:")]
    found = getattr(source, attr, None)
    if found is None:
        names = [
            n
            for n, v in vars(source).items()
            if inspect.isclass(v) and v.__module__ == source.__name__
        ]
        seen = f"; it defines {', '.join(names)}" if names else ""
        raise ContractError(
            f"{Path(path).name} has no class `{attr}`{seen}. A candidate is a module with "
            f"`class {attr}(nn.Module)` whose constructor and forward take what Model's take"
        )
    return found


def constructed(factory: Any, args: Any, kwargs: Any, state: Any) -> tuple[Any, str, bool | None]:
    """The module, how it took over the weights ``state``, and whether it had drawn the same."""
    import torch

    if not (inspect.isclass(factory) and issubclass(factory, torch.nn.Module)):
        if inspect.isclass(factory):
            raise ContractError(f"`{factory.__name__}` is not a torch.nn.Module")
        return _Function(factory), "a function: no weights", None
    module = factory(*args, **kwargs)
    alike = _alike(module, state)
    return module, _take_weights(module, state), alike


class _Function:
    """A baseline that is a plain function of forward's arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def _alike(module: Any, state: Any) -> bool | None:
    """Whether the module's weights are those of ``state``, one by one, as its constructor has left
    them; None where there are none. Harnesses that copy none compare by such weights."""
    import torch

    if not state:
        return None
    mine, wanted = list(module.state_dict().values()), list(state.values())
    if any(_shape(t) is None for t in mine):
        return False
    return len(mine) == len(wanted) and all(
        a.dtype == b.dtype and torch.equal(a.cpu(), b) for a, b in zip(mine, wanted, strict=True)
    )


def _take_weights(module: Any, state: Any) -> str:
    """Load the reference's weights; returns how they matched."""
    import torch

    mine = module.state_dict()
    if not state:
        return "the reference has no weights"
    with contextlib.suppress(RuntimeError):
        module.load_state_dict(state, strict=True)
        return "by name (strict)"
    mine_list, state_list = list(mine.values()), list(state.values())
    if len(mine_list) == len(state_list):
        placed = [_as_kept(own, given) for own, given in zip(mine_list, state_list, strict=True)]
        if all(given is not None for given in placed):
            with torch.no_grad():
                for own, given in zip(mine_list, placed, strict=True):
                    if _shape(own) is None:
                        own.materialize(given.shape)
                    own.copy_(given)
            return "by order and shape"
    return f"same seed only: {len(mine_list)} tensors in state_dict, {len(state_list)} expected"


def _as_kept(own: Any, given: Any) -> Any:
    """``given`` for the place of ``own``: as it is, or the other way round where the module has
    drawn it so, which shapes do not tell of a square one; None where it does not fit."""
    shape = _shape(own)
    if shape is None:
        return given
    if given.dim() == 2 and shape == tuple(given.mT.shape):
        drawn = own.detach().cpu()
        if drawn.equal(given.mT) and not drawn.equal(given):
            return given.mT
    return given if shape == tuple(given.shape) else None


def _shape(t: Any) -> tuple[int, ...] | None:
    """Of a weight; None where it has none before the first call, as in `nn.LazyLinear`."""
    from torch.nn.parameter import is_lazy

    return None if is_lazy(t) else tuple(t.shape)
