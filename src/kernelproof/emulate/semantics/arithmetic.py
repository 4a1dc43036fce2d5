"""Integer, floating-point and logic instructions (ISA 9.7.1 to 9.7.5, 9.7.8)."""

from __future__ import annotations

import re

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.ptx import WIDTHS, Instruction
from kernelproof.emulate.semantics.table import rule

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
PACKED = ("f16x2", "bf16x2")


def finish(e: Emitter, i: Instruction, expression: str, ty: str) -> None:
    """Apply .ftz, .sat and .relu, and assign the first operand."""
    if "ftz" in i.op and ty == "f32":
        expression = f"N.flush({expression})"
    if "sat" in i.op and ty in ("f32", "f64", "f16"):
        expression = f"N.saturate({expression})"
    if "relu" in i.op and ty == "f16":
        expression = f"N.maximum({expression}, np.float16(0), True)"
    e.write(i.operands[0], expression, ty)


def sources(e: Emitter, i: Instruction, ty: str, first: int = 1) -> list[str]:
    """The operands from ``first`` on as ``ty``; subnormals flushed under .ftz."""
    names = [e.read(operand, ty) for operand in i.operands[first:]]
    if "ftz" in i.op and ty == "f32":
        names = [e.let(f"N.flush({name})") for name in names]
    return names


def directed(i: Instruction) -> str:
    """rz, rm or rp where the instruction asks for one of these, else nothing."""
    return next((mode for mode in ("rz", "rm", "rp") if mode in i.op), "")


def nearest_or_directed(e: Emitter, i: Instruction, ty: str, formula: str, *operands: str) -> str:
    """``formula`` rounded as the instruction says. One product, quotient or root of float32 is
    never so near to a float32 that its float64 hides on which side of it it lies."""
    mode = directed(i)
    if not mode:
        return formula.format(*operands)
    if ty == "f64":
        raise e.unsupported(f"only .rn is emulated for {i.op[0]}.f64")
    wide = formula.format(*(f"{name}.astype('f8')" for name in operands))
    return f"N.narrow({wide}, np.float32, '{mode}')"


def half(e: Emitter, i: Instruction, ty: str, formula: str) -> None:
    """An instruction on float16 or bfloat16, single or in pairs. ``formula`` is written with
    {0}, {1}, {2} for float64 operands: one rounding, at the end."""
    operands = i.operands[1:]
    count = len(operands)
    if ty in PACKED:
        kind = "np.float16" if ty == "f16x2" else "np.uint16"
        raw = [e.read(operand, "b32") for operand in operands]
        parts = [e.let(f"N.halves({name}, {kind})") for name in raw]
        scalar = " and ".join(f"np.ndim({name}) == 0" for name in raw)
    else:
        parts = [e.read(operand, ty) for operand in operands]
        scalar = ""
    if ty.startswith("bf16"):
        parts = [f"N.from_bf16({name})" for name in parts]
    wide = [e.let(f"{name}.astype('f8')") for name in parts]
    out = formula.format(*wide[:count])
    if "relu" in i.op:
        out = f"N.maximum({out}, np.float64(0), True)"
    if "sat" in i.op:
        out = f"N.saturate({out})"
    out = f"N.to_bf16({out})" if ty.startswith("bf16") else f"N.to_f16({out})"
    if ty in PACKED:
        e.write(i.operands[0], f"N.packed({out}, {scalar})", "b32")
    else:
        e.write(i.operands[0], out, ty)


_HALF = {
    "add": "N.add_to_odd({0}, {1})", "sub": "N.add_to_odd({0}, -{1})", "mul": "{0} * {1}",
    "fma": "N.add_to_odd({0} * {1}, {2})",
    "neg": "-{0}", "abs": "np.abs({0})", "min": "N.minimum({0}, {1}, %s)",
    "max": "N.maximum({0}, {1}, %s)", "ex2": "np.exp2({0})", "tanh": "np.tanh({0})",
}  # fmt: skip


def _half_rule(e: Emitter, i: Instruction, ty: str) -> None:
    formula = _HALF[i.op[0]]
    if "%s" in formula:
        formula = formula % ("NaN" in i.op)
    half(e, i, ty, formula)


@rule("add", "sub")
def add(e: Emitter, i: Instruction) -> None:
    ty, sign = i.op[-1], "+" if i.op[0] == "add" else "-"
    if ty in FLOATS[2:]:
        return _half_rule(e, i, ty)
    a, b = sources(e, i, ty)
    if "cc" in i.op:
        return _carry(e, i, a, b, ty, None)
    if "sat" in i.op and ty == "s32":
        return e.write(i.operands[0], f"N.saturated_add({a}, {b}, {sign}1)", ty)
    mode = directed(i)
    if mode:
        exact = f"{a}.astype('f8'), {sign}{b}.astype('f8')"
        return finish(e, i, f"N.add_directed({exact}, '{ty}', '{mode}')", ty)
    return finish(e, i, f"{a} {sign} {b}", ty)


@rule("addc", "subc")
def add_with_carry(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, b = (e.read(operand, ty) for operand in i.operands[1:])
    _carry(e, i, a, b, ty, e.read("%cc", "u32"))


def _carry(e: Emitter, i: Instruction, a: str, b: str, ty: str, carry: str | None) -> None:
    """Unsigned sum or difference with the carry flag in the pseudo-register %cc."""
    unsigned = f"u{WIDTHS[ty]}"
    x, y = e.let(f"{a}.view('{unsigned}')"), e.let(f"{b}.view('{unsigned}')")
    c = e.let(f"{carry}.astype('{unsigned}')") if carry else e.constant(0, unsigned)
    if i.op[0] in ("add", "addc"):
        part = e.let(f"{x} + {y}")
        total = e.let(f"{part} + {c}")
        out = f"(({part} < {x}) | ({total} < {part})).astype('u4')"
    else:
        part = e.let(f"{x} - {y}")
        total = e.let(f"{part} - {c}")
        out = f"(({x} < {y}) | ({part} < {c})).astype('u4')"
    flag = e.let(out) if "cc" in i.op else ""
    e.write(i.operands[0], total, f"u{8 * WIDTHS[ty]}")
    if flag:
        e.write("%cc", flag, "u32")


@rule("mul", "mad", "mul24", "mad24")
def multiply(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    if ty in FLOATS:
        if i.op[0] == "mad":
            return fused(e, i)
        if ty not in ("f32", "f64"):
            return _half_rule(e, i, ty)
        a, b = sources(e, i, ty)
        return finish(e, i, nearest_or_directed(e, i, ty, "{0} * {1}", a, b), ty)
    a, b = e.read(i.operands[1], ty), e.read(i.operands[2], ty)
    out, result = f"{a} * {b}", ty
    if "wide" in i.op:
        result = f"{ty[0]}{2 * int(ty[1:])}"
        wide = f"{ty[0].replace('s', 'i')}{int(ty[1:]) // 4}"
        out = f"{a}.astype('{wide}') * {b}.astype('{wide}')"
    elif "hi" in i.op:
        out = f"N.multiply_high({a}, {b})"
    elif i.op[0].endswith("24"):
        out = f"({a} << np.{_numpy(ty)}(8) >> np.{_numpy(ty)}(8)) * " + (
            f"({b} << np.{_numpy(ty)}(8) >> np.{_numpy(ty)}(8))"
        )
    if i.op[0].startswith("mad"):
        out = f"{out} + {e.read(i.operands[3], result)}"
    return e.write(i.operands[0], out, result)


@rule("madc")
def multiply_with_carry(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, b, c = (e.read(operand, ty) for operand in i.operands[1:])
    product = e.let(f"N.multiply_high({a}, {b})" if "hi" in i.op else f"{a} * {b}")
    i = Instruction(("addc", *i.op[1:]), i.operands, i.guard, i.negated, i.location, i.line)
    _carry(e, i, product, c, ty, e.read("%cc", "u32"))


def _numpy(ty: str) -> str:
    return ("int" if ty[0] == "s" else "uint") + ty[1:]


@rule("fma")
def fused(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    if ty not in ("f32", "f64"):
        return _half_rule(e, i, ty)
    a, b, c = sources(e, i, ty)
    mode = directed(i)
    if mode and ty == "f64":
        raise e.unsupported("only .rn is emulated for fma.f64")
    if mode:
        exact = f"{a}.astype('f8') * {b}, {c}.astype('f8')"
        return finish(e, i, f"N.add_directed({exact}, 'f32', '{mode}')", ty)
    return finish(e, i, f"N.fma{ty[1:]}({a}, {b}, {c})", ty)


@rule("div", "rem")
def divide(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, b = sources(e, i, ty)
    if ty == "f32" and "approx" in i.op:
        return finish(e, i, f"N.divide_approx({a}, {b})", ty)
    if ty in ("f32", "f64"):
        return finish(e, i, nearest_or_directed(e, i, ty, "{0} / {1}", a, b), ty)
    name = "divide" if i.op[0] == "div" else "remainder"
    return e.write(i.operands[0], f"N.{name}({a}, {b})", ty)


@rule("neg", "abs")
def sign(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    if ty in FLOATS[2:]:
        return _half_rule(e, i, ty)
    (a,) = sources(e, i, ty)
    return finish(e, i, f"-{a}" if i.op[0] == "neg" else f"np.abs({a})", ty)


@rule("min", "max")
def extremum(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    if ty in FLOATS[2:]:
        return _half_rule(e, i, ty)
    a, *others = sources(e, i, ty)
    name = "minimum" if i.op[0] == "min" else "maximum"
    for b in others:
        call = f"np.{name}({a}, {b})"
        if ty in ("f32", "f64"):
            call = f"N.{name}({a}, {b}, {'NaN' in i.op})"
        a = e.let(call)
    return finish(e, i, a, ty)


_UNARY = {
    "sqrt": "np.sqrt({0})", "rsqrt": "1 / np.sqrt({0})", "rcp": "{1} / {0}", "sin": "np.sin({0})",
    "cos": "np.cos({0})", "lg2": "np.log2({0})", "ex2": "np.exp2({0})", "tanh": "np.tanh({0})",
}  # fmt: skip


@rule(*_UNARY)
def unary(e: Emitter, i: Instruction) -> None:
    """Approximate forms are computed to within a rounding or two; the GPU's own errors differ."""
    ty = i.op[-1]
    if ty in FLOATS[2:]:
        return _half_rule(e, i, ty)
    (a,) = sources(e, i, ty)
    if i.op[0] == "rsqrt" and ty == "f32":
        a = e.let(f"{a}.astype('f8')")
    one = e.constant(1.0, "f4" if ty == "f32" else "f8")
    out = nearest_or_directed(e, i, ty, _UNARY[i.op[0]], a, one)
    return finish(e, i, f"({out}).astype('{'f4' if ty == 'f32' else 'f8'}')", ty)


@rule("copysign")
def copy_sign(e: Emitter, i: Instruction) -> None:
    a, b = sources(e, i, i.op[-1])
    e.write(i.operands[0], f"np.copysign({b}, {a})", i.op[-1])


@rule("testp")
def test_property(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    (a,) = (e.read(operand, ty) for operand in i.operands[1:])
    tiny = f"np.finfo({a}.dtype).tiny"
    out = {
        "finite": f"np.isfinite({a})", "infinite": f"np.isinf({a})", "number": f"~np.isnan({a})",
        "notanumber": f"np.isnan({a})", "normal": f"np.isfinite({a}) & (np.abs({a}) >= {tiny})",
        "subnormal": f"(np.abs({a}) < {tiny}) & ({a} != 0)",
    }[i.op[1]]  # fmt: skip
    e.write(i.operands[0], out, "pred")


# ---- logic and bits

_LOGIC = {"and": "&", "or": "|", "xor": "^"}


@rule("and", "or", "xor")
def logic(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a, b = (e.read(operand, ty) for operand in i.operands[1:])
    e.write(i.operands[0], f"{a} {_LOGIC[i.op[0]]} {b}", ty)


@rule("not", "cnot")
def complement(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    a = e.read(i.operands[1], ty)
    e.write(i.operands[0], f"~{a}" if i.op[0] == "not" else f"({a} == 0).astype({a}.dtype)", ty)


@rule("shl", "shr")
def shift(e: Emitter, i: Instruction) -> None:
    ty, amount = i.op[-1], i.operands[2]
    a = e.read(i.operands[1], ty)
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", amount) and int(amount, 0) < 8 * WIDTHS[ty]:
        sign = "<<" if i.op[0] == "shl" else ">>"
        return e.write(i.operands[0], f"{a} {sign} {e.read(amount, ty)}", ty)
    name = "shift_left" if i.op[0] == "shl" else "shift_right"
    return e.write(i.operands[0], f"N.{name}({a}, {e.read(amount, 'u32')})", ty)


@rule("shf")
def funnel(e: Emitter, i: Instruction) -> None:
    a, b, n = (e.read(operand, "b32") for operand in i.operands[1:])
    e.write(
        i.operands[0], f"N.funnel_shift({a}, {b}, {n}, {i.op[1] == 'l'}, {'wrap' in i.op})", "b32"
    )


_BITS = {
    "popc": "N.population_count({0})", "clz": "N.leading_zeros({0})",
    "brev": "N.reverse_bits({0})", "bfind": "N.find_leading({0}, %s)",
}  # fmt: skip


@rule(*_BITS)
def bits(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    formula = _BITS[i.op[0]]
    if "%s" in formula:
        formula = formula % ("shiftamt" in i.op)
    result = ty if i.op[0] == "brev" else "u32"
    e.write(i.operands[0], formula.format(e.read(i.operands[1], ty)), result)


@rule("bfe")
def extract(e: Emitter, i: Instruction) -> None:
    a = e.read(i.operands[1], i.op[-1])
    start, length = (e.read(operand, "u32") for operand in i.operands[2:])
    e.write(i.operands[0], f"N.extract_bits({a}, {start}, {length})", i.op[-1])


@rule("bfi")
def insert(e: Emitter, i: Instruction) -> None:
    a, b = (e.read(operand, i.op[-1]) for operand in i.operands[1:3])
    start, length = (e.read(operand, "u32") for operand in i.operands[3:])
    e.write(i.operands[0], f"N.insert_bits({a}, {b}, {start}, {length})", i.op[-1])


@rule("bmsk")
def mask(e: Emitter, i: Instruction) -> None:
    start, length = (e.read(operand, "u32") for operand in i.operands[1:])
    ones, zero = e.constant(0xFFFFFFFF, "u4"), e.constant(0, "u4")
    e.write(i.operands[0], f"N.insert_bits({ones}, {zero}, {start}, {length})", "b32")


@rule("prmt")
def permute(e: Emitter, i: Instruction) -> None:
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:])
    mode = i.op[-1] if i.op[-1] != "b32" else ""
    e.write(i.operands[0], f"N.permute_bytes({a}, {b}, {c}, '{mode}')", "b32")


@rule("lop3")
def logic3(e: Emitter, i: Instruction) -> None:
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:4])
    e.write(i.operands[0], f"N.logic3({a}, {b}, {c}, {int(i.operands[4], 0)})", "b32")


@rule("sad")
def absolute_difference(e: Emitter, i: Instruction) -> None:
    a, b, c = (e.read(operand, i.op[-1]) for operand in i.operands[1:])
    e.write(i.operands[0], f"np.where({a} < {b}, {b} - {a}, {a} - {b}) + {c}", i.op[-1])


@rule("dp4a", "dp2a")
def dot_product(e: Emitter, i: Instruction) -> None:
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:])
    c = e.read(i.operands[3], "s32" if "s32" in i.op[-2:] else "u32")
    signs = f"{i.op[-2] == 's32'}, {i.op[-1] == 's32'}"
    if i.op[0] == "dp2a":
        return e.write(i.operands[0], f"N.dot2({a}, {b}, {c}, {signs}, {'hi' in i.op})", "b32")
    return e.write(i.operands[0], f"N.dot4({a}, {b}, {c}, {signs})", "b32")


def watch_product(e: Emitter, i: Instruction) -> None:
    """Before a 32-bit product that becomes an index: report where it leaves 32 bits."""
    e.instruction = i
    e.guard = "None"
    if i.guard:
        e.guard = e.read(f"!{i.guard}" if i.negated else i.guard, "pred")
    a = e.read(i.operands[1], "s32")
    if i.op[0] == "shl":
        exact = f"{a}.astype('i8') << np.minimum({e.read(i.operands[2], 'u32')}, 32).astype('i8')"
    else:
        exact = f"{a}.astype('i8') * {e.read(i.operands[2], 's32')}"
        if i.op[0] == "mad":
            exact += f" + {e.read(i.operands[3], 's32')}"
    e.line(f"S.index_overflow({e.operation()}, {exact}, A, {e.guard})")
