"""``torch.library`` definitions, so that ``torch.compile`` sees one opaque operator.

Two operators instead of one with an optional output: a schema cannot make an output optional, and
writing a state that nobody reads costs memory traffic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor? gate_k, Tensor? gate_v, Tensor? gate_head, "
    "float scale, Tensor? initial_state)"
)
_NAME = "kernelproof::gated_recurrence"
_NAME_WITH_STATE = "kernelproof::gated_recurrence_with_state"

torch.library.define(_NAME, f"{_ARGUMENTS} -> Tensor")
torch.library.define(_NAME_WITH_STATE, f"{_ARGUMENTS} -> (Tensor, Tensor)")


@torch.library.impl(_NAME, "cpu")
def _cpu(*args: Any) -> Tensor:
    from kernelproof.ops.gated_recurrence.cpu import launch

    return launch(*args)[0]


@torch.library.impl(_NAME_WITH_STATE, "cpu")
def _cpu_with_state(*args: Any) -> tuple[Tensor, Tensor | None]:
    from kernelproof.ops.gated_recurrence.cpu import launch

    return launch(*args, with_state=True)


@torch.library.impl(_NAME, "cuda")
def _cuda(*args: Any) -> Tensor:
    from kernelproof.ops.gated_recurrence.cuda import launch

    return launch(*args)[0]


@torch.library.impl(_NAME_WITH_STATE, "cuda")
def _cuda_with_state(*args: Any) -> tuple[Tensor, Tensor | None]:
    from kernelproof.ops.gated_recurrence.cuda import launch

    return launch(*args, with_state=True)


@torch.library.register_fake(_NAME)
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return v.new_empty(v.shape)


@torch.library.register_fake(_NAME_WITH_STATE)
def _fake_with_state(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, _, heads, key_dim = q.shape
    state = v.new_empty((batch, heads, key_dim, v.shape[-1]), dtype=torch.float32)
    return v.new_empty(v.shape), state


op: Any = torch.ops.kernelproof.gated_recurrence.default
op_with_state: Any = torch.ops.kernelproof.gated_recurrence_with_state.default
