"""``torch.library`` definitions, so that ``torch.compile`` sees one opaque operator for each use.

Forward comes as two operators instead of one with an optional output: a schema cannot make an
output optional, and writing a state that nobody reads costs memory traffic. Each has a twin without
gradients, ``..._forward``, since a registered gradient costs microseconds of the host in every
call, needed or not. The backward operator returns a tensor without elements for what is not given.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence.checks import (
    check_dtype_of_kernel,
    check_tensors,
    check_writable,
    state_dtype,
)
from kernelproof.ops.gated_recurrence.gradients import from_sums

_GATES = "Tensor? gate_k, Tensor? gate_v, Tensor? gate_head, bool log_gates, float scale"
_ARGUMENTS = f"Tensor q, Tensor k, Tensor v, {_GATES}, Tensor? initial_state, Tensor? cu_seqlens"
_NAME = "kernelproof::gated_recurrence"
_NAME_WITH_STATE = f"{_NAME}_with_state"
_NAME_STEP = f"{_NAME}_step"
_NAME_BACKWARD = f"{_NAME}_backward"
_TAGS = (torch.Tag.pt2_compliant_tag,)
_GRADIENTS = ", ".join(["Tensor"] * 7)

for _suffix in ("", "_forward"):
    torch.library.define(_NAME + _suffix, f"({_ARGUMENTS}) -> Tensor", tags=_TAGS)
    torch.library.define(
        _NAME_WITH_STATE + _suffix, f"({_ARGUMENTS}) -> (Tensor, Tensor)", tags=_TAGS
    )
torch.library.define(
    _NAME_STEP, f"(Tensor q, Tensor k, Tensor v, Tensor(a!) state, {_GATES}) -> Tensor", tags=_TAGS
)
torch.library.define(
    _NAME_BACKWARD, f"(Tensor grad, Tensor? grad_state, {_ARGUMENTS}) -> ({_GRADIENTS})", tags=_TAGS
)


@functools.cache
def _launchers(device: str) -> Any:
    """The module of ``device``, imported on first use: a machine without a compiler can still
    import the operator."""
    if device == "cuda":
        from kernelproof.ops.gated_recurrence import cuda as module
    else:
        from kernelproof.ops.gated_recurrence import cpu as module  # type: ignore[no-redef]
    return module


def _check(device: str, arguments: tuple[Any, ...]) -> None:
    q, k, v, gate_k, gate_v, gate_head, _, _, initial_state, cu_seqlens = arguments
    check_tensors(q, k, v, gate_k, gate_v, gate_head, initial_state, cu_seqlens)
    check_dtype_of_kernel(device, v)


def _forward(device: str, arguments: tuple[Any, ...], with_state: bool) -> tuple[Any, Any]:
    _check(device, arguments)
    q, k, v, gate_k, gate_v, gate_head, log_gates, scale, initial, cu_seqlens = arguments
    y, state = _launchers(device).launch(
        q, k, v, gate_k, gate_v, gate_head, scale, initial, with_state,
        log_gates=log_gates, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return y, state


def _steps(tensors: tuple[Any, ...]) -> list[Any]:
    """Tensors of one step, with an axis of time of size 1."""
    for name, tensor in zip(("q", "k", "v"), tensors, strict=False):
        if tensor.dim() != 3:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; a step takes q, k (B, Hq, K) and "
                "v (B, H, V), without an axis of time"
            )
    return [None if x is None else x.unsqueeze(1) for x in tensors]


def check_step_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    state: Tensor,
) -> list[Any]:
    """The tensors of a step with an axis of time of size 1. Raises ValueError as `check_tensors`
    does."""
    tensors = _steps((q, k, v, gate_k, gate_v, gate_head))
    check: Any = check_tensors
    check(*tensors, state, state_name="state")
    return tensors


def _check_step(device: str, arguments: tuple[Any, ...]) -> list[Any]:
    q, k, v, state, gate_k, gate_v, gate_head, _, _ = arguments
    tensors = check_step_tensors(q, k, v, gate_k, gate_v, gate_head, state)
    check_dtype_of_kernel(device, v)
    return tensors


def _step(device: str, arguments: tuple[Any, ...]) -> Tensor:
    tensors = _check_step(device, arguments)
    state, log_gates, scale = arguments[3], *arguments[7:]
    check_writable(state)
    y = _launchers(device).launch_step(*tensors, scale, state, log_gates)
    torch.autograd.graph.increment_version(state)  # as its gradients, if it was kept for any, ask
    one: Tensor = y.squeeze(1)
    return one


def _backward(device: str, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    grad, grad_state, *rest = arguments
    _check(device, tuple(rest))
    q, k, v, gate_k, gate_v, gate_head, log_gates, scale, initial, cu_seqlens = rest
    sums = _launchers(device).launch_backward(
        grad, grad_state, q, k, v, gate_k, gate_v, gate_head, scale, initial,
        log_gates=log_gates, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    gradients = from_sums(sums, q, v, gate_k, gate_v, gate_head, log_gates)
    return tuple(v.new_empty(0) if x is None else x.contiguous() for x in gradients)


def _fake(*arguments: Any) -> Tensor:
    _check(arguments[2].device.type if arguments[2].device.type == "cuda" else "cpu", arguments)
    v: Tensor = arguments[2]
    return v.new_empty(v.shape)


def _fake_with_state(*arguments: Any) -> tuple[Tensor, Tensor]:
    y = _fake(*arguments)
    q, v, cu_seqlens = arguments[0], arguments[2], arguments[9]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (sequences, v.shape[2], q.shape[3], v.shape[3])
    return y, y.new_empty(shape, dtype=state_dtype(v))


def _fake_step(*arguments: Any) -> Tensor:
    v: Tensor = arguments[2]
    _check_step("cuda" if v.device.type == "cuda" else "cpu", arguments)
    return v.new_empty(v.shape)


def _fake_backward(grad: Tensor, grad_state: Tensor | None, *arguments: Any) -> tuple[Any, ...]:
    q, k, v, gate_k, gate_v, gate_head, _, _, initial, _ = arguments
    given = (q, k, v, gate_k, gate_v, gate_head, initial)
    return tuple(v.new_empty(0) if x is None else x.new_empty(x.shape) for x in given)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, log_gates, scale, initial, cu_seqlens = inputs
    ctx.save_for_backward(*tensors, initial, cu_seqlens)
    ctx.log_gates, ctx.scale = log_gates, scale


def _gradients(ctx: Any, grad: Tensor, grad_state: Tensor | None = None) -> tuple[Any, ...]:
    q, k, v, gate_k, gate_v, gate_head, initial, cu_seqlens = ctx.saved_tensors
    given = (q, k, v, gate_k, gate_v, gate_head, initial)
    out = op_backward(
        grad, grad_state, *given[:6], ctx.log_gates, ctx.scale, initial, cu_seqlens
    )  # fmt: skip
    out = [x if tensor is not None else None for x, tensor in zip(out, given, strict=True)]
    return (*out[:6], None, None, out[6], None)


def _no_second(ctx: Any, *_: Any) -> None:
    raise UnsupportedError(
        "the kernels of gated_recurrence have no second derivative; use "
        'impl="reference", or a backward without create_graph=True'
    )


def _register(device: str) -> None:
    def run(*arguments: Any) -> Any:
        return _forward(device, arguments, False)[0]

    def run_with_state(*arguments: Any) -> Any:
        return _forward(device, arguments, True)

    for suffix in ("", "_forward"):
        torch.library.impl(_NAME + suffix, device, run)
        torch.library.impl(_NAME_WITH_STATE + suffix, device, run_with_state)
    torch.library.impl(_NAME_STEP, device, lambda *arguments: _step(device, arguments))
    torch.library.impl(_NAME_BACKWARD, device, lambda *arguments: _backward(device, arguments))


for _device in ("cpu", "cuda"):
    _register(_device)
for _suffix in ("", "_forward"):
    torch.library.register_fake(_NAME + _suffix, _fake)
    torch.library.register_fake(_NAME_WITH_STATE + _suffix, _fake_with_state)
torch.library.register_fake(_NAME_STEP, _fake_step)
torch.library.register_fake(_NAME_BACKWARD, _fake_backward)
for _name in (_NAME, _NAME_WITH_STATE):
    torch.library.register_autograd(_name, _gradients, setup_context=_save)
torch.library.register_autograd(_NAME_BACKWARD, _no_second)

op: Any = torch.ops.kernelproof.gated_recurrence.default
op_with_state: Any = torch.ops.kernelproof.gated_recurrence_with_state.default
op_step: Any = torch.ops.kernelproof.gated_recurrence_step.default
op_backward: Any = torch.ops.kernelproof.gated_recurrence_backward.default
# By whether the state is returned: with gradients, and without.
OPS: dict[bool, tuple[Any, Any]] = {
    False: (op, torch.ops.kernelproof.gated_recurrence_forward.default),
    True: (op_with_state, torch.ops.kernelproof.gated_recurrence_with_state_forward.default),
}
