"""Calls whose form has been seen: one look-up, then launches with everything but addresses ready.

At the founding size the work takes a tenth of the time that checks and choices take on the host.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelproof.cuda import launches_are_taken
from kernelproof.cuda_forms import Forms, undisturbed
from kernelproof.ops.gated_recurrence.call import Call, Launch

Result = Tensor | tuple[Tensor, Tensor]
# q, k, v, gate_k, gate_v, gate_head and the state, of which the last four may be missing.
Tensors = Sequence[Tensor | None]
# A call by the addresses of the tensors that it has; None where another way makes it.
_Known = Callable[[list[int]], Result] | None

_forms: Forms[_Known] = Forms()
_PLACE = 256  # bytes: parts of scratch memory start at multiples


def key_of(
    q: Tensor, tensors: Tensors, log_gates: bool, scale: float, with_state: bool | None
) -> Hashable:
    """What distinguishes a call beside the forms of its tensors. ``tensors``: those after q;
    ``with_state``: None for a step."""
    # How products of bfloat16 are rounded is the caller's choice (see chunk_choice.py).
    rounded = q.dtype is torch.bfloat16 and (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    )
    missing = tuple([t is None for t in tensors])
    return q.shape, missing, log_gates, scale, with_state, rounded


def quick(key: Hashable, given: list[Tensor]) -> Result | None:
    """The result of a call of a known form; else None. Where `undisturbed` only.

    Args:
        key: as of `key_of`.
        given: the tensors of the call that are not None, in order.
    """
    known = _forms.find(key, *given)
    if known is None or launches_are_taken():
        return None
    addresses = [t.data_ptr() for t in given]
    # Kernels are chosen by alignment: that of the first call, which was 16.
    if functools.reduce(operator.or_, addresses) & 15:
        return None
    return known(addresses)


def keep(
    key: Hashable, given: list[Tensor], call: Call, scale: float, with_state: bool | None
) -> None:
    """Remember how a call is made, after one has been made. Arguments as of `quick`; of a step,
    ``call.initial`` is its state."""
    if not undisturbed() or launches_are_taken() or torch.cuda.is_current_stream_capturing():
        return
    # Forms know no tensor that is given twice, nor could arguments of launches be told apart.
    if any(t.data_ptr() & 15 for t in given) or len({*map(id, given)}) < len(given):
        return
    if with_state is None:
        known = _step(call, given, scale)
    else:
        known = _sequence(call, given, scale, with_state)
    _forms.keep(key, known, *given)


def _sequence(call: Call, given: list[Tensor], scale: float, with_state: bool) -> _Known:
    """All steps at once."""
    from kernelproof.ops.gated_recurrence import chunked, cuda

    q, v, bounds = call.q, call.v, call.cu_seqlens
    sequences = q.shape[0] if bounds is None else bounds.shape[0] - 1
    state = (sequences, v.shape[2], q.shape[3], v.shape[3])
    sizes = [v.shape, torch.Size(state)] if with_state else [v.shape]
    if any(math.prod(size) == 0 for size in sizes) or q.shape[3] == 0:
        return None
    if bounds is not None and not bounds.is_contiguous():
        return None  # its copy lies elsewhere in every call
    outs = [v.new_empty(v.shape)]
    if with_state:
        outs.append(v.new_empty(state, dtype=torch.float32))
        call = call._replace(last=outs[1])
    plan = chunked.plan(call)
    if plan is None and q.shape[3] > cuda.MAX_ROWS:
        return None
    scratch = cuda.scratch_of(plan, v)
    return _bound(cuda.launches(plan, call, scale, outs[0], scratch), given, outs, scratch)


def _step(call: Call, given: list[Tensor], scale: float) -> _Known:
    """One step, whose tensors have no axis of time."""
    from kernelproof.ops.gated_recurrence.cuda_step import step_launch

    if call.v.numel() == 0:
        return None
    assert call.initial is not None
    steps = [None if t is None else t.unsqueeze(1) for t in call[:6]]
    names = {id(t): u for t, u in zip(steps, call[:6], strict=True) if t is not None}
    y = call.v.new_empty(call.v.shape)
    launcher: Any = step_launch
    launch = launcher(*steps, scale, call.initial, call.log_gates, y)
    arguments = tuple(names.get(id(x), x) for x in launch.arguments)
    return _bound([launch._replace(arguments=arguments)], given, [y], [])


def _bound(
    launches: list[Launch], given: list[Tensor], outs: list[Tensor],
    scratch: Sequence[Tensor | None],
) -> _Known:  # fmt: skip
    """``launches`` as a function of the addresses of ``given``; None where they cannot be."""
    device = given[0].get_device()
    parts = [t for t in scratch if t is not None]
    places = {id(t): i for i, t in enumerate([*given, *outs, *parts])}
    ready: list[tuple[Callable[..., None], list[int]]] = []
    for one in launches:
        start = one.kernel.bound(device, one.arguments, one.how)
        if start is None:
            return None
        order = [places[id(x)] for x in one.arguments if isinstance(x, Tensor)]
        ready.append((start, order))
    new = [_empty(out) for out in outs]
    if len(ready) == 1 and not parts and len(new) == 1:
        alone, order = ready[0]
        if order == list(range(len(given) + 1)):
            return _in_order(alone, new[0])
    offsets, total = [], 0
    for part in parts:
        offsets.append(total)
        total += -(-part.numel() // _PLACE) * _PLACE
    like = parts[0] if parts else None
    if like is not None:
        like = like[:1].clone()  # keeps no scratch memory

    def run(addresses: list[int]) -> Result:
        made = [empty() for empty in new]
        addresses += [t.data_ptr() for t in made]
        if like is not None:
            memory = like.new_empty(total)
            first = memory.data_ptr()
            addresses += [first + offset for offset in offsets]
        for start, order in ready:
            start(*[addresses[i] for i in order])
        return made[0] if len(made) == 1 else (made[0], made[1])

    return run


def _in_order(start: Callable[..., None], new: Callable[[], Tensor]) -> _Known:
    """One launch that takes the addresses as they come, and that of y: in the least time."""

    def run(addresses: list[int]) -> Tensor:
        y = new()
        start(*addresses, y.data_ptr())
        return y

    return run


def _empty(like: Tensor) -> Callable[[], Tensor]:
    """Makes contiguous tensors of this form: of an element expanded to it, which takes less time
    than `new_empty` takes to read the sizes."""
    form = like.new_empty(()).expand(like.shape)
    if 1 in like.shape:  # such an axis would keep the stride 0
        return functools.partial(torch.empty_like, form, memory_format=torch.contiguous_format)
    return functools.partial(torch.empty_like, form)
