"""Shared memory of other blocks of a cluster, and its barrier (ISA 9.7.9.23, 9.7.13.4)."""

from __future__ import annotations

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.memory.layout import WINDOWS
from kernelproof.emulate.ptx import Instruction
from kernelproof.emulate.semantics.table import rule


@rule("mapa")
def map_shared(e: Emitter, i: Instruction) -> None:
    """The address in the block of a rank; generic without .shared::cluster."""
    ty = i.op[-1]
    start = "" if "shared::cluster" in i.op else f" + np.int64({WINDOWS['shared']})"
    at = f"{e.read(i.operands[1], ty)}"
    inside = f"{at}.astype('i8') - np.int64({WINDOWS['shared']})" if start else at
    call = f"(S.map_shared({inside}, {e.read(i.operands[2], 'u32')}, A){start})"
    e.write(i.operands[0], f"{call}.astype('{'u4' if ty == 'u32' else 'u8'}')", ty)


@rule("getctarank")
def rank(e: Emitter, i: Instruction) -> None:
    at = e.read(i.operands[1], i.op[-1])
    e.write(i.operands[0], f"S.rank_of({at}, A).astype('u4')", "u32")


@rule("barrier")
def arrive(e: Emitter, i: Instruction) -> None:
    """barrier.cluster.arrive; waits and other barriers end a block of code."""
    releases = "relaxed" not in i.op
    e.line(f"S.cluster_arrive({e.operation()}, {releases}, A, {e.guard})")
