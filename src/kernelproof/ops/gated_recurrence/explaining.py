"""What a call of the gated recurrence would run, and why, in words."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence.call import Call
from kernelproof.ops.gated_recurrence.checks import (
    check_dtype_of_kernel,
    check_tensors,
    state_dtype,
)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    log_gates: bool = False,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    impl: str | None = None,
) -> str:
    """Which kernel a call of ``gated_recurrence`` with these arguments runs, how it divides the
    work, and the bytes and operations that it cannot do without. Nothing is run.

    Raises:
        ValueError, UnsupportedError: as the call itself would.
    """
    from kernelproof.ops.gated_recurrence import _by_reference

    by_reference = _by_reference(v, impl)
    check_tensors(q, k, v, gate_k, gate_v, gate_head, initial_state, cu_seqlens)
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    heads, (key_dim, value_dim) = v.shape[2], (q.shape[3], v.shape[3])
    tensors = [q, k, v, v, gate_k, gate_v, gate_head, initial_state]  # v again: y has its size
    moved = sum(t.numel() * t.element_size() for t in tensors if t is not None)
    state = sequences * heads * key_dim * value_dim * state_dtype(v).itemsize
    moved += state if return_state else 0
    steps = q.shape[0] * q.shape[1] * heads
    gates = sum(gate is not None for gate in (gate_k, gate_v, gate_head))
    lines = [
        f"gated_recurrence on {v.device}: {sequences} sequences of {heads} heads, a state of "
        f"{key_dim} x {value_dim} each ({state:,} bytes in {state_dtype(v)}); at least {moved:,} "
        f"bytes to move and {(4 + gates) * steps * key_dim * value_dim:,} operations",
    ]
    if by_reference:
        lines.append('the PyTorch loop over steps, because impl="reference"')
    else:
        device = v.device.type
        check_dtype_of_kernel(device, v)
        if device == "cpu":
            kernel = _cpu()
            back = "backward.cpp, which runs the recurrence again from states kept every 64 steps"
        else:
            from kernelproof.ops.gated_recurrence.cuda import describe
            from kernelproof.ops.gated_recurrence.cuda_backward import describe_backward

            three = (gate_k, gate_v, gate_head)
            call = Call(q, k, v, *three, log_gates=log_gates, cu_seqlens=cu_seqlens)
            kernel, back = describe(call), describe_backward(call)
        lines.append(f"{kernel}, because the tensors are on {v.device}")
        lines.append(f"gradients: {back}; the forward keeps nothing but its arguments")
    return "\n  ".join(lines)


def _cpu() -> str:
    return (
        f"kernel.cpp, {torch.get_num_threads()} threads: a task is a head of a sequence and a run "
        f"of SIMD vectors of columns ({torch.backends.cpu.get_cpu_capability()}), in pieces of 64 "
        "steps"
    )
