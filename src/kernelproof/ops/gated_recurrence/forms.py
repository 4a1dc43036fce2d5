"""The forms of the recurrence as a candidate meets them: which tensors follow q, k and v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence.gradients import Sums, from_sums

Launch = Callable[..., tuple[Tensor, Tensor | None]]
LaunchBackward = Callable[..., Sums]


class Tensors(NamedTuple):
    """The tensors of a call after q, k and v, in the order of the launchers' arguments."""

    gate_k: Tensor | None
    gate_v: Tensor | None
    gate_head: Tensor | None
    initial_state: Tensor | None
    cu_seqlens: Tensor | None


class Form(NamedTuple):
    """What a module's constructor is told, and its ``forward`` is given after q, k and v: the gates
    named by the letters of ``gates`` ("k", "v", "h": key axis, value axis, head, in this order),
    the initial state where ``initial``, ``cu_seqlens`` where ``packed``."""

    gates: str = "v"
    log_gates: bool = False
    scale: float = 1.0
    initial: bool = False
    returned: bool = False  # the last state is returned as well
    packed: bool = False

    def tensors(self, *rest: Tensor) -> Tensors:
        """``rest`` by name. Raises TypeError where it has another number of tensors."""
        wanted = len(self.gates) + self.initial + self.packed
        if len(rest) != wanted:
            raise TypeError(f"{wanted} tensors belong after q, k and v, {len(rest)} are given")
        left = list(rest)
        given = [*(letter in self.gates for letter in "kvh"), self.initial, self.packed]
        return Tensors._make(left.pop(0) if one else None for one in given)

    def run(
        self,
        launch: Launch,
        backward: LaunchBackward,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *rest: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y, or (y, last state), with gradients where a tensor asks for them."""
        given = self.tensors(*rest)
        run: Any = _Differentiable.apply
        y, state = run(self, launch, backward, q, k, v, *given)
        return (y, state) if self.returned else y


class _Differentiable(torch.autograd.Function):
    """A pair of launchers as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, form: Form, launch: Launch, backward: Any, *tensors: Any) -> Any:
        q, k, v, gate_k, gate_v, gate_head, initial, cu_seqlens = tensors
        ctx.form, ctx.backward_of = form, backward
        ctx.save_for_backward(*tensors)
        return launch(
            q, k, v, gate_k, gate_v, gate_head, form.scale, initial, form.returned,
            log_gates=form.log_gates, cu_seqlens=cu_seqlens,
        )  # fmt: skip

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor | None) -> Any:
        q, k, v, gate_k, gate_v, gate_head, initial, cu_seqlens = ctx.saved_tensors
        sums = ctx.backward_of(
            grad, grad_state, q, k, v, gate_k, gate_v, gate_head, ctx.form.scale, initial,
            log_gates=ctx.form.log_gates, cu_seqlens=cu_seqlens,
        )  # fmt: skip
        gates = (gate_k, gate_v, gate_head)
        return (None, None, None, *from_sums(sums, q, v, *gates, ctx.form.log_gates), None)
