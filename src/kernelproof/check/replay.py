"""The reference as a CUDA graph, where launching its many small operations takes most of a run.

Nothing rests on the graph alone. A form of inputs is run eagerly until a case's usual seeds are
over; then the graph must give the same bits as an eager run, twice, on different inputs. What
cannot be captured (a synchronisation, anything read on the CPU), draws random numbers, changes its
inputs, returns them or does not repeat its own bits goes on running eagerly.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from kernelproof.strides import copy_like
from kernelproof.timeline import span

# Eager runs before a graph is made: other cases than the first have so many at most, and a graph
# of theirs would be made in vain.
_EAGER_RUNS = 4
# Eager runs that a graph must agree with before it is relied on.
_CONFIRMATIONS = 2
_PLAIN = (int, float, bool, str, type(None))


class Replays:
    """Graphs of ``function``, one for each form (shapes, strides, dtypes, other arguments) of its
    inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._forms: dict[Any, Form] = {}

    def of(self, inputs: list[Any]) -> Form | None:
        """What is known of inputs of this form; None where they cannot be those of a graph."""
        leaves, structure = tree_flatten(inputs)
        if not all(_plain(leaf) for leaf in leaves):
            return None
        key = str(structure), tuple(_described(leaf) for leaf in leaves)
        if key not in self._forms:
            self._forms[key] = Form(self._function)
        return self._forms[key]


class Form:
    """Inputs of one form. ``trusted``: there is a graph that has been confirmed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._runs = 0
        self._confirmed = 0
        self._unfit = False
        self._graph: Any = None
        self._inputs: Any = None
        self._output: Any = None

    @property
    def trusted(self) -> bool:
        return self._confirmed >= _CONFIRMATIONS and not self._unfit

    @span("reference, replayed")
    @torch.no_grad()
    def replay(self, inputs: list[Any]) -> Any:
        """The output for ``inputs``, which are left alone, in memory of its own; None where the
        graph turns out to change its inputs, or cannot be replayed."""
        held = [leaf for leaf in tree_leaves(self._inputs) if isinstance(leaf, torch.Tensor)]
        given = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for into, value in zip(held, given, strict=True):
            into.copy_(value)
        given = [into.clone() for into in held]
        try:
            self._graph.replay()
        except RuntimeError:
            # The failed capture of another form may have left the generator in a state in which
            # torch replays nothing.
            self._drop()
            return None
        output = tree_map(_copied, self._output)
        if not all(same_bits(a, b) for a, b in zip(held, given, strict=True)):
            self._drop()
            return None
        return output

    def ran(self, inputs: list[Any], output: Any, fit: bool) -> None:
        """Learn from an eager run on ``inputs``, which is untouched, that gave ``output``; ``fit``:
        it neither drew random numbers nor changed or returned an input."""
        if self._unfit:
            return
        if not fit:
            self._drop()
            return
        self._runs += 1
        if self._runs <= _EAGER_RUNS:
            return
        if self._graph is None:
            self._capture(inputs)
        if self._graph is not None:
            self._confirm(inputs, output)

    @span("capture the reference")
    def _capture(self, inputs: list[Any]) -> None:
        torch.cuda.synchronize()
        self._inputs = tree_map(_copied, inputs)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # What the collector frees meanwhile may be memory of the GPU, which ends a capture.
        collects = gc.isenabled()
        gc.disable()
        try:
            # Only this thread: others may do what a capture forbids.
            with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self._function(*self._inputs)
            self._graph = graph
        except Exception:
            self._drop()
            _abandon(graph, stream)
        finally:
            if collects:
                gc.enable()

    def _confirm(self, inputs: list[Any], output: Any) -> None:
        again = self.replay(inputs)
        if again is None:
            return
        mine, structure = tree_flatten(again)
        wanted, other = tree_flatten(output)
        if structure == other and all(map(same_bits, mine, wanted)):
            self._confirmed += 1
        else:
            self._drop()

    def _drop(self) -> None:
        self._unfit = True
        self._graph = self._inputs = self._output = None


# Graphs whose capture has failed, for good: torch before 2.12 does not take back what the beginning
# of a capture has told the allocator, which then asks the graph at each allocation, also once it is
# freed (pytorch/pytorch#180395).
_abandoned: list[Any] = []


def _abandon(graph: Any, stream: Any) -> None:
    """Undo what a failed capture leaves behind that torch does not: the stream of the capture stays
    the current one, and the generator of the GPU takes itself to be captured and refuses to draw.
    """
    _abandoned.append(graph)
    torch.cuda.set_stream(stream)
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
    with contextlib.suppress(RuntimeError, AttributeError):
        device = stream.device
        fresh = torch.Generator(device).graphsafe_get_state()
        torch.cuda.default_generators[device.index].graphsafe_set_state(fresh)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two leaves of an output are equal to the bit; NaN of the same bits are equal."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    x, y = (t.detach().contiguous().reshape(-1) for t in (a, b))
    return torch.equal(x.view(torch.uint8), y.view(torch.uint8)) if x.numel() else True


def _copied(leaf: Any) -> Any:
    return copy_like(leaf, str(leaf.device)) if isinstance(leaf, torch.Tensor) else leaf


def _plain(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        # Elements that share a place cannot be written anew.
        return leaf.layout is torch.strided and all(
            stride or size < 2 for size, stride in zip(leaf.shape, leaf.stride(), strict=True)
        )
    return type(leaf) in _PLAIN


def _described(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype
    return type(leaf), repr(leaf)
