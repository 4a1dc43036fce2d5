"""Moves and conversions (ISA 9.7.9: mov, cvt, cvta, isspacep)."""

from __future__ import annotations

from kernelproof.emulate.emitter import DTYPES, Emitter
from kernelproof.emulate.memory.layout import WINDOWS
from kernelproof.emulate.ptx import WIDTHS, Instruction
from kernelproof.emulate.semantics.table import rule

_HALVES = {"f16": "f2", "bf16": "u2"}


@rule("mov")
def move(e: Emitter, i: Instruction) -> None:
    ty = i.op[-1]
    to, source = i.operands
    if isinstance(to, tuple):
        bits = 8 * WIDTHS[ty] // len(to)
        whole = e.read(source, f"b{8 * WIDTHS[ty]}")
        for n, part in enumerate(to):
            if part != "_":
                shifted = f"({whole} >> np.{_numpy(ty)}({n * bits}))" if n else whole
                e.write(part, f"{shifted}.astype('u{bits // 8}')", f"b{bits}")
    elif isinstance(source, tuple):
        bits = 8 * WIDTHS[ty] // len(source)
        parts = []
        for n, part in enumerate(source):
            wide = f"{e.read(part, f'b{bits}')}.astype('u{WIDTHS[ty]}')"
            parts.append(f"({wide} << np.{_numpy(ty)}({n * bits}))" if n else wide)
        e.write(to, " | ".join(parts), f"b{8 * WIDTHS[ty]}")
    else:
        e.write(to, e.read(source, ty), ty)


def _numpy(ty: str) -> str:
    return f"uint{8 * WIDTHS[ty]}"


@rule("cvta")
def convert_address(e: Emitter, i: Instruction) -> None:
    """Generic addresses of shared and local memory lie in windows of their own."""
    ty = i.op[-1]
    space = next(s for s in i.op if s.split("::")[0] in WINDOWS).split("::")[0]
    value = e.read(i.operands[1], "u64")
    window = e.env["parameters_at"] if space == "param" else WINDOWS[space]
    start = e.constant(window, "u8")
    sign = "-" if "to" in i.op else "+"
    out = f"{value} {sign} {start}" if window else value
    e.write(i.operands[0], out, ty.replace("s", "u"))


@rule("isspacep")
def is_space(e: Emitter, i: Instruction) -> None:
    space = i.op[1].split("::")[0]
    e.write(i.operands[0], f"S.in_space('{space}', {e.read(i.operands[1], 'u64')})", "pred")


@rule("cvt")
def convert(e: Emitter, i: Instruction) -> None:
    if "pack" in i.op:
        return _pack_integers(e, i)
    if any(part.removesuffix("x2") in ("e4m3", "e5m2") for part in i.op):
        return _eight_bits(e, i)
    to, source = [part for part in i.op[1:] if part in WIDTHS][:2]
    if to in ("f16x2", "bf16x2"):
        return _pack(e, i, to)
    mode = next((m for m in ("rni", "rzi", "rmi", "rpi") if m in i.op), "")
    rounding = next((m for m in ("rn", "rz", "rm", "rp", "rna") if m in i.op), "rn")
    x = e.read(i.operands[1], source)
    if source == "bf16":
        x = e.let(f"N.from_bf16({x})")
    floating = source[0] in "fb"
    if "ftz" in i.op and source == "f32":
        x = e.let(f"N.flush({x})")
    out = x
    if to == "tf32":
        out = f"N.to_tf32({x}, '{rounding}')"
        return e.write(i.operands[0], f"{out}.view('u4')", "b32")
    if to[0] in "fb":
        out = _to_float(x, to, source, mode, rounding)
        if "relu" in i.op:
            out = f"N.maximum({x}, np.float32(0), True)"
            out = _to_float(out, to, source, "", rounding)
        if "sat" in i.op:
            out = f"N.saturate({out})"
        if "ftz" in i.op and to == "f32":
            out = f"N.flush({out})"
    elif floating:
        out = f"N.float_to_int({x}, '{DTYPES[to]}', '{mode}')"
    elif "sat" in i.op:
        low, high = _range(to)
        wide = f"{x}.astype('i8')" if source != "u64" else f"np.minimum({x}, {high})"
        out = f"np.clip({wide}, {low}, {high}).astype('{DTYPES[to]}')"
    else:
        out = f"{x}.astype('{DTYPES[to]}')"
    return e.write(i.operands[0], out, to)


def _to_float(x: str, to: str, source: str, mode: str, rounding: str) -> str:
    if mode:
        x = f"N.rounded_integer({x}, '{mode}')"
    if to == "bf16":
        x = x if source in ("f32", "f64", "bf16") else f"({x}).astype('f4')"
        return f"N.to_bf16({x}, '{rounding}')"
    if source == "bf16" and to == "f32":
        return x
    if to == "f16" and source in ("f32", "f64"):
        return f"N.to_f16({x}, '{'rn' if mode else rounding}')"
    order = ("f16", "f32", "f64")
    widens = source in order and order.index(source) <= order.index(to)
    if rounding == "rn" or mode or widens:
        return f"({x}).astype('{DTYPES[to]}')"
    name = {"f16": "np.float16", "f32": "np.float32", "f64": "np.float64"}[to]
    return f"N.narrow({x}, {name}, '{rounding}')"


def _pack(e: Emitter, i: Instruction, to: str) -> None:
    """Two values into one register; the first operand becomes the upper half."""
    rounding = "rz" if "rz" in i.op else "rn"
    parts = []
    for operand in i.operands[1:]:
        x = e.read(operand, i.op[-1])
        if "relu" in i.op:
            x = e.let(f"N.maximum({x}, np.float32(0), True)")
        if to == "bf16x2":
            parts.append(f"N.to_bf16({x}, '{rounding}')")
        else:
            parts.append(f"N.to_f16({x}, '{rounding}').view('u2')")
    high, low = (f"{part}.astype('u4')" for part in parts)
    e.write(i.operands[0], f"({high} << np.uint32(16)) | {low}", "b32")


def _pack_integers(e: Emitter, i: Instruction) -> None:
    """Two saturated integers into the lower half of a register, or into all of it."""
    to = i.op[3]
    if to not in ("s16", "u16", "s8", "u8") or i.op[4] != "s32":
        raise e.unsupported()
    bits, (low, high) = 8 * WIDTHS[to], _range(to)
    a, b = (
        e.let(f"(np.clip({e.read(x, 's32')}, {low}, {high}) & {(1 << bits) - 1}).astype('u4')")
        for x in i.operands[1:3]
    )
    out = f"{a} << np.uint32({bits}) | {b}"
    if len(i.operands) > 3:
        out = f"{e.read(i.operands[3], 'b32')} << np.uint32({2 * bits}) | {out}"
    e.write(i.operands[0], out, "b32")


def _eight_bits(e: Emitter, i: Instruction) -> None:
    """Pairs of 8-bit floats from fp32 or halves, and to halves."""
    to, source = i.op[-2], i.op[-1]
    if source in ("e4m3x2", "e5m2x2") and to == "f16x2":
        word = e.read(i.operands[1], "b16")
        table = f"E.halves('{source[:4]}')"
        halves = [f"{table}[({word} >> np.uint16({n})) & np.uint16(255)].astype('u4')"
                  for n in (0, 8)]  # fmt: skip
        return e.write(i.operands[0], f"{halves[0]} | {halves[1]} << np.uint32(16)", "b32")
    if to not in ("e4m3x2", "e5m2x2") or "satfinite" not in i.op or source not in ("f32", "f16x2"):
        raise e.unsupported()
    if source == "f32":
        high, low = (e.read(x, "f32") for x in i.operands[1:3])
    else:
        word = e.read(i.operands[1], "b32")
        high, low = (e.let(f"({word} >> np.uint32({n})).astype('u2').view('f2')") for n in (16, 0))
    if "relu" in i.op:
        high, low = (e.let(f"N.maximum({x}, {x}.dtype.type(0), True)") for x in (high, low))
    codes = [f"E.rounded(A.spread({x}), '{to[:4]}').astype('u2')" for x in (high, low)]
    return e.write(i.operands[0], f"{codes[0]} << np.uint16(8) | {codes[1]}", "b16")


def _range(to: str) -> tuple[int, int]:
    bits = 8 * WIDTHS[to]
    if to[0] == "s":
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, min((1 << bits) - 1, (1 << 63) - 1)


@rule("pragma", "nanosleep", "prefetch", "prefetchu", "discard", "applypriority")
@rule("griddepcontrol", "createpolicy")
def nothing(e: Emitter, i: Instruction) -> None:
    """Hints; they change no value."""
    if i.op[0] == "createpolicy":
        e.write(i.operands[0], e.constant(0, "u8"), "b64")
