"""``torch.library`` definitions, so that ``torch.compile`` sees one opaque operator.

Two operators instead of one with an optional output: a schema cannot make an output optional, and
writing a state that nobody reads costs memory traffic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence.checks import check_dtype_of_kernels, check_tensors

_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor? gate_k, Tensor? gate_v, Tensor? gate_head, "
    "float scale, Tensor? initial_state)"
)
_NAME = "kernelproof::gated_recurrence"
_NAME_WITH_STATE = "kernelproof::gated_recurrence_with_state"
_TAGS = (torch.Tag.pt2_compliant_tag,)

torch.library.define(_NAME, f"{_ARGUMENTS} -> Tensor", tags=_TAGS)
torch.library.define(_NAME_WITH_STATE, f"{_ARGUMENTS} -> (Tensor, Tensor)", tags=_TAGS)


def _check(arguments: tuple[Any, ...]) -> None:
    q, k, v, gate_k, gate_v, gate_head, _, initial_state = arguments
    check_tensors(q, k, v, gate_k, gate_v, gate_head, initial_state)
    check_dtype_of_kernels(v)


def _run(device: str, arguments: tuple[Any, ...], with_state: bool) -> tuple[Any, Any]:
    """Check, and call the launcher of ``device`` (imported on first use)."""
    _check(arguments)
    launch: Any
    if device == "cuda":
        from kernelproof.ops.gated_recurrence.cuda import launch
    else:
        from kernelproof.ops.gated_recurrence.cpu import launch
    y, state = launch(*arguments, with_state)
    return y, state


@torch.library.impl(_NAME, "cpu")
def _cpu(*arguments: Any) -> Tensor:
    y: Tensor = _run("cpu", arguments, False)[0]
    return y


@torch.library.impl(_NAME_WITH_STATE, "cpu")
def _cpu_with_state(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _run("cpu", arguments, True)


@torch.library.impl(_NAME, "cuda")
def _cuda(*arguments: Any) -> Tensor:
    y: Tensor = _run("cuda", arguments, False)[0]
    return y


@torch.library.impl(_NAME_WITH_STATE, "cuda")
def _cuda_with_state(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _run("cuda", arguments, True)


def _fake(*arguments: Any) -> Tensor:
    _check(arguments)
    v: Tensor = arguments[2]
    return v.new_empty(v.shape)


def _fake_with_state(*arguments: Any) -> tuple[Tensor, Tensor]:
    y = _fake(*arguments)
    batch, _, heads, key_dim = arguments[0].shape
    return y, y.new_empty((batch, heads, key_dim, y.shape[-1]), dtype=torch.float32)


torch.library.register_fake(_NAME, _fake)
torch.library.register_fake(_NAME_WITH_STATE, _fake_with_state)

op: Any = torch.ops.kernelproof.gated_recurrence.default
op_with_state: Any = torch.ops.kernelproof.gated_recurrence_with_state.default
