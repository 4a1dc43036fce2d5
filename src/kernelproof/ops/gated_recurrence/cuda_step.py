"""One step of the gated recurrence on an NVIDIA GPU: the launch of ``step.cu``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence.call import Launch
from kernelproof.ops.gated_recurrence.config import gate_bits, types

_SOURCE = Path(__file__).parent / "step.cu"
_THREADS = 256
_MAX_INT = 2**31 - 1


def launch_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    state: Tensor,
    log_gates: bool = False,
) -> Tensor:
    """``y (B, 1, H, V)`` in v's dtype; ``state (B, H, K, V)`` is updated in place. The tensors are
    those of `gated_recurrence_step` with an axis of time of size 1, of any strides.

    Raises:
        UnsupportedError: K, V or the number of blocks does not fit 32 bits.
    """
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if y.numel():
        step_launch(q, k, v, gate_k, gate_v, gate_head, scale, state, log_gates, y).run()
    return y


def step_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    state: Tensor,
    log_gates: bool,
    y: Tensor,
) -> Launch:
    """The launch of `launch_step`, which writes ``y`` as well."""
    gate = gate_k if gate_k is not None else gate_v if gate_v is not None else gate_head
    kernel, grid, sizes, strides = _plan(
        q.dtype,
        torch.float32 if gate is None else gate.dtype,
        log_gates and gate is not None,
        gate_bits(gate_k, gate_v, gate_head),
        state.data_ptr() % 16 == 0,
        q.shape,
        v.shape,
        q.stride(),
        k.stride(),
        v.stride(),
        None if gate_k is None else gate_k.stride(),
        None if gate_v is None else gate_v.stride(),
        None if gate_head is None else gate_head.stride(),
        state.stride(),
    )
    arguments = (
        q, k, v, gate_k, gate_v, gate_head, state, y, *sizes, float(scale), *strides
    )  # fmt: skip
    return Launch(kernel, arguments, grid, _THREADS)


@functools.lru_cache(maxsize=1024)
def _plan(
    element: torch.dtype,
    gate: torch.dtype,
    log_gates: bool,
    gates: int,
    aligned: bool,
    keys: Sequence[int],
    values: Sequence[int],
    *strides: Sequence[int] | None,
) -> tuple[Kernel, int, tuple[int, ...], tuple[int, ...]]:
    """Kernel, blocks, (H, K, V), and the numbers after ``scale``. ``strides``: of q, k, v, the
    gates and the state. The choice depends on the sizes of one head and the layout alone, so that
    a result does not change with its batch."""
    batch, _, key_heads, key_dim = keys
    heads, value_dim = values[2:]
    state = strides[-1]
    assert state is not None
    quads = aligned and value_dim % 4 == 0 and state[3] == 1
    # A stride of an axis of size 1 is no stride.
    sizes = zip((batch, heads, key_dim), state[:3], strict=True)
    width = 4 if quads and all(n == 1 or s % 4 == 0 for n, s in sizes) else 1
    lanes = 1
    while lanes < 32 and lanes * width < value_dim:
        lanes *= 2
    grid = batch * heads * -(-value_dim // (lanes * width))
    for name, number in (("K", key_dim + 1024), ("V", value_dim), ("blocks", grid)):
        if number > _MAX_INT:
            raise UnsupportedError(
                f"gated_recurrence_step: {name} = {number} does not fit 32 bits; split the batch "
                'or the columns, or use impl="reference"'
            )
    numbers: list[int] = []
    for one in strides[:-1]:
        numbers += [*one, 0][:4] if one is not None else [0] * 4
    arguments = [*types(element, gate, log_gates), str(gates), str(width), str(lanes)]
    return (
        _kernel(", ".join(arguments)),
        grid,
        (heads, key_dim, value_dim),
        (*numbers, *state, heads // key_heads),
    )


@functools.cache
def _kernel(arguments: str) -> Kernel:
    return Kernel(_SOURCE, f"step<Config<{arguments}>>")
