"""How many blocks and warps of a launch a multiprocessor holds, and what sets the limit.

The rules are those of NVIDIA's ``cuda_occupancy.h``, with the driver's default division of the
memory between shared memory and L1, which makes as much of it shared as the blocks can use.
"""

from __future__ import annotations

import dataclasses

from kernelproof.inspect.devices import (
    REGISTER_GRANULARITY,
    SHARED_DEFAULT,
    SHARED_GRANULARITY,
    SHARED_SYSTEM,
    SUBDIVISIONS,
    WARP,
    Capability,
)


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """``blocks`` and ``warps`` per multiprocessor; ``share`` of the most warps that it holds, 0 to
    1; ``limits``: blocks that each resource allows by itself."""

    blocks: int
    warps: int
    share: float
    limits: dict[str, int]

    @property
    def limiters(self) -> tuple[str, ...]:
        """The resources that allow no more blocks than there are."""
        return tuple(name for name, most in self.limits.items() if most == self.blocks)

    @property
    def limiter(self) -> str:
        """Such as "registers", or "registers and shared memory"."""
        return " and ".join(self.limiters)


def occupancy(
    gpu: Capability, *, threads: int, registers: int, static_shared: int = 0,
    dynamic_shared: int = 0, barriers: int = 0, opted_in: bool = True,
) -> Occupancy:  # fmt: skip
    """Of a block of ``threads`` that takes ``registers`` per thread, bytes of shared memory, and
    named ``barriers``. ``opted_in``: the launch may have more than 48 KiB of shared memory. No
    block fits (0) where a launch would be refused.

    Raises ValueError where ``threads`` is not positive.
    """
    if threads <= 0:
        raise ValueError(f"a block of {threads} threads; give at least 1")
    warps = _divide_up(threads, WARP)
    limits = {
        "registers": _by_registers(gpu, registers, warps),
        "shared memory": _by_shared(gpu, static_shared + dynamic_shared, opted_in),
        "warps": gpu.warps // warps if threads <= gpu.threads_block else 0,
        "blocks": gpu.blocks,
    }
    if gpu.barriers is not None and barriers:
        limits["barriers"] = gpu.barriers // barriers
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, blocks * warps / gpu.warps, limits)


def _by_registers(gpu: Capability, registers: int, warps: int) -> int:
    if registers <= 0:
        return gpu.blocks
    per_warp = _round_up(registers * WARP, REGISTER_GRANULARITY)
    # The check of a launch assumes that its warps are spread evenly over the subdivisions.
    if per_warp * _round_up(warps, SUBDIVISIONS) > gpu.registers_block:
        return 0
    return gpu.registers // SUBDIVISIONS // per_warp * SUBDIVISIONS // warps


def _by_shared(gpu: Capability, asked: int, opted_in: bool) -> int:
    taken = _round_up(asked + SHARED_SYSTEM, SHARED_GRANULARITY)
    most = gpu.shared_block if opted_in else SHARED_DEFAULT
    return gpu.shared // taken if taken <= most + SHARED_SYSTEM else 0


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _divide_up(a, b) * b
