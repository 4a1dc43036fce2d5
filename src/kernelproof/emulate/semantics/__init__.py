"""What each PTX instruction does: one table, opcode to the function that emits its numpy code."""

from __future__ import annotations

from kernelproof.emulate.semantics import (
    arithmetic,
    cluster,
    compare,
    convert,
    matrix,
    mbarrier,
    memory,
    warp,
    wgmma,
)
from kernelproof.emulate.semantics.table import TABLE, emit

__all__ = [
    "TABLE", "arithmetic", "cluster", "compare", "convert", "emit", "matrix", "mbarrier", "memory",
    "warp", "wgmma",
]  # fmt: skip
