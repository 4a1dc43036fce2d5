"""Comparison and selection instructions (ISA 9.7.6 and 9.7.7)."""

from __future__ import annotations

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.ptx import WIDTHS, Instruction
from kernelproof.emulate.semantics.arithmetic import FLOATS, PACKED
from kernelproof.emulate.semantics.table import rule

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def compare(e: Emitter, a: str, b: str, how: str, floating: bool) -> str:
    """A bool expression. Comparisons ending in u are true where an operand is NaN."""
    if how == "num":
        return f"~(np.isnan({a}) | np.isnan({b}))"
    if how == "nan":
        return f"(np.isnan({a}) | np.isnan({b}))"
    if floating and how == "ne":  # ordered, unlike Python's !=
        return f"(({a} < {b}) | ({a} > {b}))"
    if floating and how.endswith("u"):
        opposite = {"equ": "", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}[how]
        return f"~({a} {opposite} {b})" if opposite else f"~(({a} < {b}) | ({a} > {b}))"
    return f"({a} {_COMPARE[how]} {b})"


def _comparands(e: Emitter, i: Instruction, ty: str) -> tuple[str, str, bool]:
    a, b = (e.read(operand, ty) for operand in i.operands[1:3])
    if ty == "bf16":
        a, b = e.let(f"N.from_bf16({a})"), e.let(f"N.from_bf16({b})")
    if "ftz" in i.op and ty == "f32":
        a, b = e.let(f"N.flush({a})"), e.let(f"N.flush({b})")
    return a, b, ty in FLOATS


@rule("setp")
def set_predicate(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    combine = next((c for c in ("and", "or", "xor") if c in i.op[2:]), "")
    targets = i.operands[0] if isinstance(i.operands[0], tuple) else (i.operands[0],)
    if ty in PACKED:
        a, b = (e.read(operand, "b32") for operand in i.operands[1:3])
        kind = "np.float16" if ty == "f16x2" else "np.uint16"
        names = []
        for part in range(2):
            pair = [f"N.halves({x}, {kind})[:, {part}]" for x in (a, b)]
            pair = [f"N.from_bf16({x})" for x in pair] if ty == "bf16x2" else pair
            x, y = e.let(pair[0]), e.let(pair[1])
            names.append(e.let(compare(e, x, y, i.op[1], True)))
        for target, name in zip(targets, names, strict=False):
            e.write(target, name, "pred")
        return
    a, b, floating = _comparands(e, i, ty)
    result = e.let(compare(e, a, b, i.op[1], floating))
    values = [result, f"~{result}"]
    if combine:
        other = e.read(i.operands[3], "pred")
        sign = {"and": "&", "or": "|", "xor": "^"}[combine]
        values = [f"{result} {sign} {other}", f"(~{result}) {sign} {other}"]
    for target, value in zip(targets, values, strict=False):
        if target != "_":
            e.write(target, value, "pred")


@rule("set")
def set_value(e: Emitter, i: Instruction) -> None:
    """Like setp, into a number: 1.0 or all bits for true."""
    to, ty = i.op[-2], i.op[-1]
    if ty in PACKED:
        kind = "np.float16" if ty == "f16x2" else "np.uint16"
        raw = [e.read(operand, "b32") for operand in i.operands[1:3]]
        pair = [f"N.halves({x}, {kind})" for x in raw]
        pair = [e.let(f"N.from_bf16({x})" if ty == "bf16x2" else x) for x in pair]
        true = {"f16x2": "0x3C00", "bf16x2": "0x3F80"}.get(to, "0xFFFF")
        result = compare(e, pair[0], pair[1], i.op[1], True)
        scalar = " and ".join(f"np.ndim({x}) == 0" for x in raw)
        out = f"N.packed(np.where({result}, np.uint16({true}), np.uint16(0)), {scalar})"
        return e.write(i.operands[0], out, "b32")
    a, b, floating = _comparands(e, i, ty)
    result = compare(e, a, b, i.op[1], floating)
    true = {"f32": "np.float32(1)", "f16": "np.float16(1)", "bf16": "np.uint16(0x3F80)"}.get(to, "")
    true = true or e.constant(-1, f"u{WIDTHS[to]}")
    dtype = {"f32": "f4", "f16": "f2", "bf16": "u2"}.get(to, f"u{WIDTHS[to]}")
    zero = e.constant(0, dtype)
    to = to if to in ("f32", "f16", "bf16") else f"b{8 * WIDTHS[to]}"
    return e.write(i.operands[0], f"np.where({result}, {true}, {zero})", to)


@rule("selp")
def select(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, b = e.read(i.operands[1], ty), e.read(i.operands[2], ty)
    e.write(i.operands[0], f"np.where({e.read(i.operands[3], 'pred')}, {a}, {b})", ty)


@rule("slct")
def select_by_sign(e: Emitter, i: Instruction) -> None:
    ty, test = i.op[-2], i.op[-1]
    a, b = e.read(i.operands[1], ty), e.read(i.operands[2], ty)
    e.write(i.operands[0], f"np.where({e.read(i.operands[3], test)} >= 0, {a}, {b})", ty)
