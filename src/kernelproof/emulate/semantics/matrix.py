"""Matrix instructions of a warp: mma.sync and wmma (ISA 9.7.14)."""

from __future__ import annotations

import re

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.ptx import Instruction
from kernelproof.emulate.semantics.table import rule

_ELEMENTS = ("f16", "bf16", "tf32", "s8", "u8", "f64")


def _registers(e: Emitter, operand: object, ty: str) -> str:
    parts = operand if isinstance(operand, tuple) else (operand,)
    return "(" + ", ".join(e.read(part, ty) for part in parts) + ",)"


@rule("mma")
def multiply(e: Emitter, i: Instruction) -> None:
    shape = next((p for p in i.op if re.fullmatch(r"m\d+n\d+k\d+", p)), "")
    types = i.op[-4:]
    known = shape in ("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m8n8k4")
    double = types == ("f64",) * 4 and shape == "m8n8k4"
    normal = types[1] in _ELEMENTS[:5] and shape.startswith("m16n8")
    if "sync" not in i.op or not known or not (double or normal) or "sp" in i.op:
        raise e.unsupported()
    if i.op[-5:-4] and any(p in i.op for p in ("xor", "popc", "satfinite")):
        raise e.unsupported()
    d, a, b, c = i.operands
    k = int(shape.split("k")[1])
    ab, dt, ct = ("f64" if double else "b32"), types[0], types[3]
    out = "b32" if dt == "f16" else dt
    carried = "b32" if ct == "f16" else ct
    call = (
        f"S.matrix_multiply({e.operation()}, {k}, {tuple(types)!r}, {_registers(e, a, ab)}, "
        f"{_registers(e, b, ab)}, {_registers(e, c, carried)}, A, {e.guard})"
    )
    e.result(call, d if isinstance(d, tuple) else (d,), out)


@rule("wmma")
def warp_matrix(e: Emitter, i: Instruction) -> None:
    """Fragments are opaque to the program, so any layout will do: the one of `matrices`."""
    shape = next(p for p in i.op if re.fullmatch(r"m\d+n\d+k\d+", p))
    layouts = [p for p in i.op if p in ("row", "col")]
    if i.op[1] == "mma":
        kinds = i.op[i.op.index(shape) + 1 :]
        kinds = tuple(k for k in kinds if k != "satfinite")
        if len(kinds) == 2:  # d, c of f16 operands
            kinds = (kinds[0], "f16", "f16", kinds[1])
        if kinds[1] not in ("f16", "bf16", "s8", "u8", "tf32"):
            raise e.unsupported()
        d, a, b, c = i.operands
        ab = "f32" if kinds[1] == "tf32" else "b32"
        carried = "b32" if kinds[3] == "f16" else kinds[3]
        call = (
            f"S.warp_multiply({e.operation()}, '{shape}', {kinds!r}, {_registers(e, a, ab)}, "
            f"{_registers(e, b, ab)}, {_registers(e, c, carried)}, A, {e.guard})"
        )
        return e.result(call, d, "b32" if kinds[0] == "f16" else kinds[0])
    from kernelproof.emulate.semantics.memory import access

    ty, which = i.op[-1], i.op[2]
    element = {"f16": "u2", "bf16": "u2", "tf32": "f4", "f32": "f4", "s32": "i4"}
    element |= {"s8": "u1", "u8": "u1"}
    if ty not in element:
        raise e.unsupported()
    loads = i.op[1] == "load"
    kind = "load" if loads else "store"
    name = access(e, i, kind, dtype=element[ty])
    registers, address = i.operands[:2] if loads else (i.operands[1], i.operands[0])
    at = e.address(address)
    edge = dict(zip("mnk", map(int, re.findall(r"\d+", shape)), strict=True))
    columns = {"a": "k", "b": "n", "c": "n", "d": "n"}[which]
    rows = {"a": "m", "b": "k", "c": "m", "d": "m"}[which]
    stride = (
        e.read(i.operands[2], "u32")
        if len(i.operands) > 2
        else e.constant(edge[columns if layouts[0] == "row" else rows], "u4")
    )
    register = "b32" if ty in ("f16", "bf16", "s8", "u8") else "f32" if ty != "s32" else "s32"
    size = f"({edge[rows]}, {edge[columns]}), {layouts[0] == 'row'}, {stride}"
    if loads:
        call = f"S.load_fragment({name}, {at}, {size}, {len(registers)}, A, {e.guard})"
        return e.result(call, registers, register)
    values = _registers(e, registers, register)
    return e.line(f"S.store_fragment({name}, {at}, {size}, {values}, A, {e.guard})")
