"""Instructions that the threads of a warp execute together (ISA 9.7.13): shuffles, votes, sums."""

from __future__ import annotations

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.ptx import Instruction
from kernelproof.emulate.semantics.table import rule

COLLECTIVE = ("shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "wmma", "elect")
WARPGROUP = ("wgmma", "setmaxnreg")


@rule("shfl")
def shuffle(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.op:
        raise e.unsupported("shuffles without .sync were removed with sm_70")
    target = i.operands[0]
    pair = target if isinstance(target, tuple) else (target, "_")
    names = [e.read(operand, "u32") for operand in i.operands[1:5]]
    call = f"S.shuffle({e.operation()}, '{i.op[2]}', {', '.join(names)}, A, {e.guard})"
    value, valid = e.fresh(), e.fresh()
    e.line(f"{value}, {valid} = {call}")
    if pair[0] != "_":
        e.write(pair[0], value, "b32")
    if pair[1] != "_":
        e.write(pair[1], valid, "pred")


@rule("vote")
def vote(e: Emitter, i: Instruction) -> None:
    p, mask = e.read(i.operands[1], "pred"), e.read(i.operands[2], "u32")
    ty = "b32" if i.op[2] == "ballot" else "pred"
    call = f"S.vote({e.operation()}, '{i.op[2]}', {p}, {mask}, A, {e.guard})"
    e.write(i.operands[0], call, ty)


@rule("activemask")
def active(e: Emitter, i: Instruction) -> None:
    e.write(i.operands[0], f"S.active_mask(A, {e.guard})", "b32")


@rule("match")
def match(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    target = i.operands[0]
    pair = target if isinstance(target, tuple) else (target, "_")
    a, mask = e.read(i.operands[1], ty), e.read(i.operands[2], "u32")
    value, whole = e.fresh(), e.fresh()
    call = f"S.match({e.operation()}, '{i.op[1]}', {a}, {mask}, A, {e.guard})"
    e.line(f"{value}, {whole} = {call}")
    e.write(pair[0], value, "b32")
    if pair[1] != "_":
        e.write(pair[1], whole, "pred")


@rule("redux")
def reduce(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, mask = e.read(i.operands[1], ty), e.read(i.operands[2], "u32")
    call = f"S.reduce({e.operation()}, '{i.op[2]}', {a}, {mask}, A, {e.guard})"
    e.write(i.operands[0], call, ty)


@rule("elect")
def elect(e: Emitter, i: Instruction) -> None:
    """One thread of the mask: here the lowest."""
    target = i.operands[0]
    mask = e.read(i.operands[1], "u32")
    lane, chosen = e.fresh(), e.fresh()
    e.line(f"{lane}, {chosen} = S.elect({e.operation()}, {mask}, A, {e.guard})")
    if target[0] != "_":
        e.write(target[0], lane, "b32")
    e.write(target[1], chosen, "pred")
