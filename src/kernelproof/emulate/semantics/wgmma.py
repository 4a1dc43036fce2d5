"""Products of warpgroups: wgmma and setmaxnreg (ISA 9.7.15, 9.7.19.5)."""

from __future__ import annotations

import re

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.ptx import Instruction
from kernelproof.emulate.semantics.table import rule
from kernelproof.emulate.wgmma_flow import Checks, Product

# d and the elements that a and b may have beside it (ISA table of wgmma.mma_async types).
_TYPES = {
    ("f32", "f16"): ("f16",), ("f16", "f16"): ("f16",), ("f32", "bf16"): ("bf16",),
    ("f32", "tf32"): ("tf32",), ("s32", "s8"): ("s8", "u8"), ("s32", "u8"): ("s8", "u8"),
    ("f32", "e4m3"): ("e4m3", "e5m2"), ("f32", "e5m2"): ("e4m3", "e5m2"),
    ("f16", "e4m3"): ("e4m3", "e5m2"), ("f16", "e5m2"): ("e4m3", "e5m2"),
}  # fmt: skip


@rule("wgmma")
def wgmma(e: Emitter, i: Instruction) -> None:
    what, operation = i.op[1], e.operation()
    if what == "fence":
        return e.line(f"S.wgmma_fence({operation}, A, {e.guard})")
    if what == "commit_group":
        return e.line(f"S.wgmma_commit({operation}, A, {e.guard})")
    if what == "wait_group":
        keep = int(i.operands[0], 0)
        return e.line(f"S.wgmma_wait({operation}, {keep}, A, {e.guard})")
    return _product(e, i)


def _product(e: Emitter, i: Instruction) -> None:
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", i.op[4]) if len(i.op) > 4 else None
    if i.op[1] != "mma_async" or shape is None or "satfinite" in i.op:
        raise e.unsupported()
    types = i.op[5:8]
    if types[2] not in _TYPES.get((types[0], types[1]), ()):
        raise e.unsupported(f"types {'.'.join(types)}")
    d, a, b, scale, *signs = i.operands
    in_registers = isinstance(a, tuple)
    numbers = [int(x, 0) for x in signs]
    # imm-scale-a, imm-scale-b, then imm-trans-a (of shared memory only), imm-trans-b.
    negate = numbers[:2].count(-1) == 1
    transposed = [bool(n) for n in numbers[2:]]
    if in_registers:
        transposed = [False, *transposed]
    transposed += [False] * (2 - len(transposed))
    if any(transposed) and types[1] not in ("f16", "bf16"):
        raise e.unsupported("transposed operands of other than 16-bit elements")
    product = Product(
        e.operation(), e.env["wgmma_numbers"][id(i)], int(shape[1]), (types[0], types[1], types[2]),
        negate, transposed[0], transposed[1],
    )  # fmt: skip
    if product.k != int(shape[2]) or len(d) != product.n // (4 if types[0] == "f16" else 2):
        raise e.unsupported("its shape does not fit its operands")
    ty = "b32" if types[0] == "f16" else types[0]
    left = "(" + ", ".join(e.read(x, "b32") for x in a) + ",)" if in_registers else e.read(a, "b64")
    keeps = e.constant(int(scale, 0), "?") if re.fullmatch(r"\d+", scale) else e.read(scale, "pred")
    old = ", ".join(e.read(x, ty) for x in d)
    source = e.share("M", Access(e.operation(), "load", "shared", "u1", 16))
    call = (
        f"S.wgmma({e.share('W', product)}, {source}, ({old},), {left}, {e.read(b, 'b64')}, "
        f"{keeps}, A, {e.guard})"
    )
    e.result(call, d, ty)


@rule("setmaxnreg")
def set_registers(e: Emitter, i: Instruction) -> None:
    count = int(i.operands[0], 0)
    e.line(f"S.set_registers({e.operation()}, {count}, A, {e.guard})")


def watch_registers(e: Emitter, i: Instruction, checks: Checks) -> None:
    """Before an instruction that `wgmma_flow` suspects: look whether it is so."""
    e.instruction = i
    guard = e.read(f"!{i.guard}" if i.negated else i.guard, "pred") if i.guard else "None"
    operation = e.operation()
    for numbers, words in checks.used:
        e.line(f"S.register_used({operation}, {numbers}, {words!r}, A, {guard})")
    if checks.touches >= 0:
        e.line(f"S.register_touched({operation}, {checks.touches}, A, {guard})")
    if checks.unfenced or checks.first:
        e.line(f"S.fence_needed({operation}, {checks.unfenced}, {checks.first}, A, {guard})")
