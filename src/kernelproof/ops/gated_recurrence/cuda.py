"""The gated recurrence on an NVIDIA GPU: configuration and launch of ``kernel.cu``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.cuda import Kernel
from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence import chunked
from kernelproof.ops.gated_recurrence.call import Call, Launch
from kernelproof.ops.gated_recurrence.config import SHARED_LIMIT, Config, choose, gate_bits
from kernelproof.ops.gated_recurrence.cuda_backward import launch_backward
from kernelproof.ops.gated_recurrence.cuda_step import launch_step
from kernelproof.ops.gated_recurrence.forms import Form

__all__ = ["ModelNew", "launch", "launch_backward", "launch_step"]

_NO_STRIDES = (0, 0, 0, 0)
MAX_ROWS = 1024  # of the state in one launch
_MAX_INT = 2**31 - 1
# What the split of time is chosen for where the lengths of sequences are known to the GPU alone.
_UNKNOWN_STEPS = 1 << 20


@dataclass(frozen=True)
class _Plan:
    """What a launch needs besides addresses."""

    kernel: Kernel
    config: Config
    grid: int
    block: int
    shared: int
    numbers: tuple[int, ...]  # T, H, V
    strides: tuple[int, ...]  # and the heads of v to a head of q and k


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    with_state: bool = False,
    *,
    log_gates: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``y (B, T, H, V)`` in v's dtype and, if asked for, the last state ``(N, H, K, V)`` float32.

    The arguments are those of :func:`kernelproof.ops.gated_recurrence.gated_recurrence`, which
    checks them; here they are taken to be valid. Any strides; nothing is copied, except that
    K > 1024 in half precision goes through float32 copies.

    Raises:
        UnsupportedError: T, V or the number of blocks does not fit 32 bits.
    """
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()  # the kernels know no stride of it
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    state = None
    if with_state:
        shape = (sequences, v.shape[2], q.shape[3], v.shape[3])
        state = torch.empty(shape, dtype=torch.float32, device=v.device)
    if q.shape[3] == 0:
        return y.zero_(), state
    if (y.numel() == 0 and (state is None or state.numel() == 0)) or sequences == 0:
        return y, state
    call = Call(q, k, v, gate_k, gate_v, gate_head, initial_state, state, log_gates, cu_seqlens)
    in_chunks = chunked.plan(call)
    if in_chunks is None and q.shape[3] > MAX_ROWS:
        _launch_row_blocks(call, scale, y)
        return y, state
    for one in launches(in_chunks, call, scale, y, scratch_of(in_chunks, v)):
        one.run()
    return y, state


def scratch_of(plan: chunked.Plan | None, v: Tensor) -> list[Tensor | None]:
    """Memory for what the launches of ``plan`` hand on, on v's device."""
    sizes = () if plan is None else chunked.scratch_bytes(plan)
    return [v.new_empty(n, dtype=torch.uint8) if n else None for n in sizes]


def launches(
    plan: chunked.Plan | None,
    call: Call,
    scale: float,
    y: Tensor,
    scratch: Sequence[Tensor | None],
) -> list[Launch]:
    """The launches of a call with K up to 1024: those of ``plan``, as `chunked.plan` makes it, or
    the one of ``kernel.cu``. They write y and, if given, the last state."""
    if plan is None:
        return [_general(call, scale, y)]
    return chunked.launches(plan, call, float(scale), y, scratch)


class ModelNew(nn.Module):
    """The CUDA kernel as a candidate for ``problem.Model`` and ``problem_forms.Model``."""

    def __init__(self, *form: Any) -> None:
        super().__init__()
        self.form = Form(*form)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        if self.form == _FOUNDING and not torch.is_grad_enabled():
            return launch(q, k, v, gate_v=rest[0])[0]
        return self.form.run(launch, launch_backward, q, k, v, *rest)


_FOUNDING = Form()


def _launch_row_blocks(call: Call, scale: float, y: Tensor) -> None:
    """Rows of the state never meet but in the sum that is y: launch blocks of rows and add."""
    if y.dtype != torch.float32:  # partial sums must not be rounded to half precision
        call = call._replace(
            q=call.q.float(),
            k=call.k.float(),
            v=call.v.float(),
            gate_k=None if call.gate_k is None else call.gate_k.float(),
            gate_v=None if call.gate_v is None else call.gate_v.float(),
            gate_head=None if call.gate_head is None else call.gate_head.float(),
        )
    total = torch.zeros_like(y, dtype=torch.float32)
    part = torch.empty_like(total)
    for first in range(0, call.q.shape[-1], MAX_ROWS):
        rows = slice(first, first + MAX_ROWS)
        block = call._replace(
            q=call.q[..., rows],
            k=call.k[..., rows],
            gate_k=None if call.gate_k is None else call.gate_k[..., rows],
            initial=None if call.initial is None else call.initial[:, :, rows],
            last=None if call.last is None else call.last[:, :, rows],
        )
        _general(block, scale, part).run()
        total += part
    y.copy_(total)


def _general(call: Call, scale: float, y: Tensor) -> Launch:
    plan, bounds = _plan_of(call), call.cu_seqlens
    packed = () if bounds is None else (bounds, int(bounds.dtype == torch.int64))
    arguments = (
        *call[:7], y, call.last, *plan.numbers, float(scale), *plan.strides, *packed
    )  # fmt: skip
    return Launch(plan.kernel, arguments, plan.grid, plan.block, plan.shared)


def _plan_of(call: Call) -> _Plan:
    gate = call.gate
    return _plan(
        call.q.device.index,
        call.addresses() % 16 == 0,
        call.q.dtype,
        torch.float32 if gate is None else gate.dtype,
        call.log_gates and gate is not None,
        call.q.shape,
        call.v.shape,
        call.sequences,
        *call.strides(),
    )


@functools.lru_cache(maxsize=1024)
def _plan(
    device: int,
    aligned: bool,
    element: torch.dtype,
    gate: torch.dtype,
    log_gates: bool,
    keys: Sequence[int],
    values: Sequence[int],
    sequences: int,
    *strides: Sequence[int] | None,
) -> _Plan:
    """``keys`` and ``values`` are the shapes of q and v; ``sequences`` is -1 for a plain batch;
    ``strides`` are those of q, k, v, gate_k, gate_v, gate_head, the initial and last state."""
    batch, steps, key_heads, key_dim = keys
    heads, value_dim = values[2:]
    packed = sequences >= 0
    matrices = (sequences if packed else batch) * heads
    gate_k, gate_v, gate_head = strides[3:6]
    gates = gate_bits(gate_k, gate_v, gate_head)
    sizes, key_sizes = (batch, steps, heads), (batch, steps, key_heads)
    rows = [(key_sizes, s, key_dim) for s in strides[:2] if s is not None]
    rows += [(sizes, s, key_dim) for s in (gate_k,) if s is not None]
    rows += [(sizes, s, value_dim) for s in (strides[2], gate_v) if s is not None]
    wide = aligned and all(_in_quads(size, s, width) for size, s, width in rows)
    gpu: Any = torch.cuda.get_device_properties(device)
    limit = min(gpu.shared_memory_per_block_optin, SHARED_LIMIT)
    config = choose(
        element, gate, key_dim, value_dim, _UNKNOWN_STEPS if packed else steps, matrices, gates,
        wide, gpu.multi_processor_count, limit,
    )  # fmt: skip
    config = replace(config, log_gates=log_gates)
    blocks = -(-value_dim // config.tile) * matrices
    for name, number in (("T", steps + 256), ("V", value_dim + 256), ("blocks", blocks)):
        if number > _MAX_INT:
            raise UnsupportedError(
                f"gated_recurrence: {name} = {number} does not fit 32 bits; split the batch, "
                'the sequence (with initial_state) or the columns, or use impl="reference"'
            )
    states = (batch, heads, key_dim, value_dim)
    shapes = (keys, keys, values, (*sizes, key_dim), values, sizes, states, states)
    entry = "contiguous"
    if packed:
        entry = "packed"
    elif heads != key_heads or not all(
        s is None or _contiguous(z, s) for z, s in zip(shapes, strides, strict=True)
    ):
        entry = "strided"
    numbers: list[int] = []
    if entry != "contiguous":
        for one in strides:
            numbers += [*one, 0][:4] if one is not None else _NO_STRIDES
        numbers.append(heads // key_heads)
    return _Plan(
        config.kernel(entry),
        config,
        blocks,
        config.threads,
        config.shared,
        (steps, heads, value_dim),
        tuple(numbers),
    )


def _in_quads(sizes: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Whether every row of ``width`` elements can be read four aligned elements at a time."""
    outer = zip(sizes, strides[:3], strict=True)
    return width % 4 == 0 and strides[3] == 1 and all(n <= 1 or s % 4 == 0 for n, s in outer)


def _contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def describe(call: Call) -> str:
    """What `launch` would run, in words."""
    q, k, gate_k = call.q, call.k, call.gate_k
    blocks = -(-q.shape[-1] // MAX_ROWS)
    if q.shape[-1] == 0:
        return "no kernel, because a state without rows makes y zero"
    in_chunks = chunked.plan(call)
    if in_chunks is not None:
        return chunked.describe(in_chunks)
    plan = _plan_of(
        call._replace(
            q=q[..., :MAX_ROWS],
            k=k[..., :MAX_ROWS],
            gate_k=None if gate_k is None else gate_k[..., :MAX_ROWS],
        )
    )
    c = plan.config
    reads = "four elements at a time" if c.wide else "element by element (strides or alignment)"
    split = (
        f"time in spans of {c.segments} segments of {c.steps} steps that run at once"
        if c.segments > 1
        else "one step after the other"
    )
    return (
        f"kernel.cu, {plan.grid} blocks of {plan.block} threads, {plan.shared:,} bytes of shared "
        f"memory and {c.tile} columns each; {split}; inputs read {reads}"
        + (f"; {blocks} launches of up to {MAX_ROWS} rows" if blocks > 1 else "")
    )
