"""mbarrier objects (ISA 9.7.13.15)."""

from __future__ import annotations

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.ptx import Instruction
from kernelproof.emulate.semantics.table import rule


def _word(e: Emitter, kind: str) -> str:
    return e.share("M", Access(e.operation(), kind, "shared", "u8", 1))


@rule("mbarrier")
def mbarrier(e: Emitter, i: Instruction) -> None:
    """Objects in shared memory; only arrivals reach those of other blocks of the cluster."""
    what = i.op[1]
    if what == "pending_count":
        state = e.read(i.operands[1], "b64")
        e.write(i.operands[0], f"({state} & np.uint64(0xFFFFF)).astype('u4')", "b32")
        return
    if not any(p.startswith("shared") for p in i.op):
        raise e.unsupported("objects at generic addresses")
    guard = e.guard
    if what == "init":
        at, count = e.address(i.operands[0]), e.read(i.operands[1], "u32")
        e.line(f"S.mbarrier_init({_word(e, 'store')}, {at}, {count}, A, {guard})")
    elif what == "inval":
        e.line(f"S.mbarrier_gone({_word(e, 'store')}, {e.address(i.operands[0])}, A, {guard})")
    elif what in ("arrive", "arrive_drop"):
        _arrive(e, i, what == "arrive_drop")
    elif what == "expect_tx":
        at, nbytes = e.address(i.operands[0]), e.read(i.operands[1], "u32")
        zero = e.constant(0, "u4")
        word = _word(e, "atomic")
        e.line(f"S.mbarrier_arrive({word}, {at}, {zero}, {nbytes}, False, A, {guard})")
    elif what in ("test_wait", "try_wait"):
        parity = "parity" in i.op
        at = e.address(i.operands[1])
        state = e.read(i.operands[2], "u32" if parity else "b64")
        learns = "relaxed" not in i.op
        word = _word(e, "load")
        call = f"S.mbarrier_wait({word}, {at}, {state}, {parity}, {learns}, A, {guard})"
        e.write(i.operands[0], call, "pred")
    else:
        raise e.unsupported()


def _arrive(e: Emitter, i: Instruction, drop: bool) -> None:
    if "noComplete" in i.op:
        raise e.unsupported()
    operands = list(i.operands)
    target = operands.pop(0) if not hasattr(operands[0], "base") else "_"
    at, nbytes, count = e.address(operands[0]), "None", e.constant(1, "u4")
    if "expect_tx" in i.op:
        nbytes = e.read(operands[1], "u32")
    elif len(operands) > 1:
        count = e.read(operands[1], "u32")
    word = _word(e, "atomic")
    call = f"S.mbarrier_arrive({word}, {at}, {count}, {nbytes}, {drop}, A, {e.guard})"
    e.write(target, call, "b64")


def copy_arrive(e: Emitter, i: Instruction) -> None:
    """cp.async.mbarrier.arrive"""
    at = e.address(i.operands[0])
    word = _word(e, "atomic")
    e.line(f"S.mbarrier_copies({word}, {at}, {'noinc' in i.op}, A, {e.guard})")
