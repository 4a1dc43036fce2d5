"""Bulk copies, tensor copies and st.async (ISA 9.7.9.25 to 9.7.9.27, 9.7.9.12)."""

from __future__ import annotations

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.ptx import WIDTHS, Address, Instruction


def bulk(e: Emitter, i: Instruction) -> None:
    """cp.async.bulk, with or without a tensor map."""
    if "commit_group" in i.op:
        return e.line(f"S.bulk_commit(A, {e.guard})")
    if "wait_group" in i.op:
        keep, reads = int(i.operands[0], 0), "read" in i.op
        return e.line(f"S.bulk_wait({keep}, {reads}, A, {e.guard})")
    if "prefetch" in i.op:
        return None
    if any(p.startswith(("im2col", "tile::", "cp_mask")) for p in i.op):
        raise e.unsupported()
    spaces = [p.split("::")[0] for p in i.op if p.split("::")[0] in ("shared", "global")]
    if spaces == ["global", "shared"] and "bulk_group" in i.op:
        return _out(e, i)
    if spaces[:1] == ["shared"] and any(p.startswith("mbarrier::complete_tx") for p in i.op):
        return _in(e, i, spaces[1])
    raise e.unsupported()


def _in(e: Emitter, i: Instruction, origin: str) -> None:
    """To shared memory of the block or of its cluster."""
    to = e.share("M", Access(e.operation(), "copy", "shared", "u1", 16))
    where = e.address(i.operands[0])
    multicast = "multicast::cluster" in i.op
    if "tensor" in i.op:
        map_, corner = _map(e, i.operands[1])
        # Elements may be narrower than 16 bytes, which only the map knows.
        source = e.share("M", Access(e.operation(), "load", "global", "u1", 4))
        mask = e.read(i.operands[3], "u16") if multicast else e.constant(-1, "i4")
        barrier = e.address(i.operands[2])
        e.line(
            f"S.tensor_load({to}, {source}, {where}, {map_}, {corner}, {barrier}, {mask}, A, "
            f"{e.guard})"
        )
        return
    source = e.share("M", Access(e.operation(), "load", origin, "u1", 16))
    at, size, barrier = e.address(i.operands[1]), e.read(i.operands[2], "u32"), i.operands[3]
    mask = e.read(i.operands[4], "u16") if multicast else e.constant(-1, "i4")
    e.line(
        f"S.copy_bulk({to}, {source}, {where}, {at}, {size}, {e.address(barrier)}, {mask}, A, "
        f"{e.guard})"
    )


def _out(e: Emitter, i: Instruction) -> None:
    """To global memory."""
    source = e.share("M", Access(e.operation(), "load", "shared", "u1", 16))
    at = e.address(i.operands[1])
    if "tensor" in i.op:
        to = e.share("M", Access(e.operation(), "copy", "global", "u1", 4))
        map_, corner = _map(e, i.operands[0])
        e.line(f"S.tensor_store({to}, {source}, {at}, {map_}, {corner}, A, {e.guard})")
        return
    to = e.share("M", Access(e.operation(), "copy", "global", "u1", 16))
    where, size = e.address(i.operands[0]), e.read(i.operands[2], "u32")
    e.line(f"S.store_bulk({to}, {source}, {where}, {at}, {size}, A, {e.guard})")


def _map(e: Emitter, operand: object) -> tuple[str, str]:
    if not isinstance(operand, tuple) or not isinstance(operand[0], Address):
        raise e.unsupported(f"operand {operand!r}")
    corner = ", ".join(e.read(x, "s32") for x in operand[1])
    return e.address(operand[0]), f"({corner},)"


def store_async(e: Emitter, i: Instruction) -> None:
    """st.async to the shared memory of the cluster."""
    if not any(p.startswith("mbarrier::complete_tx") for p in i.op):
        raise e.unsupported()
    ty = i.op[-1]
    values = i.operands[1] if isinstance(i.operands[1], tuple) else (i.operands[1],)
    size = WIDTHS[ty] * len(values)
    to = e.share("M", Access(e.operation(), "copy", "shared", "u1", size))
    names = ", ".join(e.read(value, ty) for value in values)
    where, barrier = e.address(i.operands[0]), e.address(i.operands[2])
    e.line(f"S.store_async({to}, {where}, ({names},), {barrier}, A, {e.guard})")
