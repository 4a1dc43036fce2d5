"""Loads, stores, atomics, fences, asynchronous copies (ISA 9.7.9) as calls of the machine."""

from __future__ import annotations

import re

from kernelproof.emulate.emitter import DTYPES, Emitter
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.ptx import WIDTHS, Address, Instruction
from kernelproof.emulate.semantics.bulk import bulk, store_async
from kernelproof.emulate.semantics.mbarrier import copy_arrive
from kernelproof.emulate.semantics.table import rule

_SPACES = ("global", "shared", "local", "const", "param")
_ORDERS = ("volatile", "relaxed", "acquire", "release", "acq_rel")


def _space(i: Instruction) -> str:
    return next((p.split("::")[0] for p in i.op if p.split("::")[0] in _SPACES), "generic")


def access(e: Emitter, i: Instruction, kind: str, **fields: object) -> str:
    """The name of the description of this access."""
    count = next((int(p[1:]) for p in i.op if re.fullmatch(r"v[248]", p)), 1)
    order = next((p for p in i.op if p in _ORDERS), "weak")
    values = {
        "kind": kind, "space": _space(i), "dtype": DTYPES.get(i.op[-1], "u1"), "count": count,
        "order": order, "read_only": "nc" in i.op, **fields,
    }  # fmt: skip
    return e.share("M", Access(operation=e.operation(), **values))  # type: ignore[arg-type]


@rule("ld", "ldu")
def load(e: Emitter, i: Instruction) -> None:
    ty, address = i.op[-1], i.operands[1]
    targets = i.operands[0] if isinstance(i.operands[0], tuple) else (i.operands[0],)
    if ty == "b128":
        raise e.unsupported()
    if _space(i) == "param":
        dtype = DTYPES[ty]
        at = e.address(address)
        for n, target in enumerate(targets):
            e.write(target, f"S.parameter('{dtype}', {at} + {n * WIDTHS[ty]})", ty)
        return
    assert isinstance(address, Address)
    used = e.env["read_registers"]
    unused = tuple(n for n, target in enumerate(targets) if len(targets) > 1 and target not in used)
    name = access(e, i, "load", unused=unused)
    call = f"S.load({name}, {e.address(address)}, A, {e.guard})"
    e.result(call, targets, ty)


@rule("st")
def store(e: Emitter, i: Instruction) -> None:
    if i.op[1] == "async":
        return store_async(e, i)
    ty = i.op[-1]
    values = i.operands[1] if isinstance(i.operands[1], tuple) else (i.operands[1],)
    names = ", ".join(e.read(value, ty) for value in values)
    at = e.address(i.operands[0])
    return e.line(f"S.store({access(e, i, 'store')}, {at}, ({names},), A, {e.guard})")


_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@rule("atom", "red")
def atomic(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    what = next((p for p in i.op[1:] if p in _ATOMIC), "")
    if not what or any(re.fullmatch(r"v[248]", p) for p in i.op):
        raise e.unsupported()
    operands = i.operands[1:] if i.op[0] == "atom" else i.operands
    returns = i.op[0] == "atom" and i.operands[0] != "_"
    name = access(e, i, "atomic", what=what, ty=ty, returns=returns)
    at = e.address(operands[0])
    b = e.read(operands[1], ty)
    c = e.read(operands[2], ty) if what == "cas" else "None"
    call = f"S.atomic({name}, {at}, {b}, {c}, A, {e.guard})"
    if returns:
        e.write(i.operands[0], call, ty)
    else:
        e.line(call)


@rule("membar", "fence")
def fence(e: Emitter, i: Instruction) -> None:
    if "proxy" in i.op:
        # Of shared memory; what stands in for tensor maps needs no fence of theirs.
        if "async" in i.op and "global" not in i.op:
            e.line(f"S.fence_proxy(A, {e.guard})")
        return
    e.line(f"S.fence({e.operation()}, A, {e.guard})")


@rule("cp")
def copy(e: Emitter, i: Instruction) -> None:
    if i.op[1] != "async":
        raise e.unsupported()
    if "bulk" in i.op:
        return bulk(e, i)
    if "mbarrier" in i.op:
        return copy_arrive(e, i)
    if "commit_group" in i.op:
        return e.line(f"S.copy_commit(A, {e.guard})")
    if "wait_group" in i.op or "wait_all" in i.op:
        keep = int(i.operands[0], 0) if "wait_group" in i.op else -1
        return e.line(f"S.copy_wait({keep}, A, {e.guard})")
    size = int(i.operands[2], 0)
    to = e.share("M", Access(e.operation(), "copy", "shared", "u1", size))
    source = e.share("M", Access(e.operation(), "load", "global", "u1", size))
    given = "None"
    if len(i.operands) > 3 and not i.operands[3].startswith("%policy"):
        operand = i.operands[3]
        if e.registers.get(operand) == "pred":  # ignore-src
            ignored, full = e.read(operand, "pred"), e.constant(size, "u4")
            given = e.let(f"np.where({ignored}, np.uint32(0), {full})")
        elif e.registers.get(operand) != "b64":  # a cache policy has 64 bits
            given = e.read(operand, "u32")
    where, at = e.address(i.operands[0]), e.address(i.operands[1])
    return e.line(f"S.copy_async({to}, {source}, {where}, {at}, {given}, A, {e.guard})")


@rule("ldmatrix", "stmatrix")
def matrix(e: Emitter, i: Instruction) -> None:
    if "b16" not in i.op or "m8n8" not in i.op:
        raise e.unsupported()
    loads = i.op[0] == "ldmatrix"
    registers, address = i.operands if loads else reversed(i.operands)
    parts = registers if isinstance(registers, tuple) else (registers,)
    kind = "load" if loads else "store"
    name = e.share("M", Access(e.operation(), kind, "shared", "u1", 16))
    at, trans = e.address(address), "trans" in i.op
    if loads:
        call = f"S.load_matrix({name}, {at}, {len(parts)}, {trans}, A, {e.guard})"
        return e.result(call, parts, "b32")
    names = ", ".join(e.read(part, "b32") for part in parts)
    return e.line(f"S.store_matrix({name}, {at}, ({names},), {trans}, A, {e.guard})")


@rule("vprintf")
def print_formatted(e: Emitter, i: Instruction) -> None:
    """The device's printf: addresses of the format and of the arguments."""
    text, arguments = (e.read(operand, "u64") for operand in i.operands[1:3])
    e.line(f"S.print_formatted({text}, {arguments}, A, {e.guard})")
    if i.operands[0] != "_":
        e.write(i.operands[0], e.constant(0, "i4"), "s32")


@rule("__assertfail")
def assertion(e: Emitter, i: Instruction) -> None:
    message, file, line = i.operands[1:4]
    names = e.read(message, "u64"), e.read(file, "u64"), e.read(line, "u32")
    e.line(f"S.assertion({e.operation()}, {', '.join(names)}, A, {e.guard})")
