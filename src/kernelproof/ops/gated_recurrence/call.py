"""The tensors of a call of the gated recurrence, as its kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from kernelproof.cuda import Kernel


class Call(NamedTuple):
    """All of a call but y and the scale; shapes as `gated_recurrence` has them."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate_k: Tensor | None = None
    gate_v: Tensor | None = None
    gate_head: Tensor | None = None
    initial: Tensor | None = None  # state (N, H, K, V)
    last: Tensor | None = None  # where the state after the last step goes, likewise
    log_gates: bool = False
    cu_seqlens: Tensor | None = None

    @property
    def gate(self) -> Tensor | None:
        """One of the gates, which have a type in common."""
        for one in (self.gate_v, self.gate_k):
            if one is not None:
                return one
        return self.gate_head

    @property
    def sequences(self) -> int:
        """So many packed sequences, -1 for a plain batch."""
        return -1 if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def addresses(self) -> int:
        """The bits of all addresses of rows, put together: what divides it divides each."""
        found = self.q.data_ptr() | self.k.data_ptr() | self.v.data_ptr()
        for one in (self.gate_k, self.gate_v):
            found |= 0 if one is None else one.data_ptr()
        return found

    def strides(self) -> tuple[tuple[int, ...] | None, ...]:
        """Of q, k, v, the gates, the initial and the last state."""
        return tuple(None if x is None else x.stride() for x in self[:8])


class Launch(NamedTuple):
    """One launch of a kernel, with all that it takes."""

    kernel: Kernel
    arguments: tuple[Any, ...]
    grid: int
    block: int
    shared: int = 0
    overlaps: bool = False  # it may begin before the launch before it has ended

    def run(self) -> None:
        self.kernel(
            *self.arguments, grid=self.grid, block=self.block, shared=self.shared,
            programmatic=self.overlaps,
        )  # fmt: skip

    @property
    def how(self) -> tuple[Any, ...]:
        """As `Kernel.bound` takes it."""
        return self.grid, self.block, self.shared, None, self.overlaps, False, True
