"""Which 32-bit products become addresses: their wrapping is a defect, in hashes it is the purpose.

A signed product that is widened to 64 bits afterwards, with nothing between but sums, moves and
further products, was meant as an index: had it been computed in 64 bits, it would not have wrapped.
A remainder, a mask or a shift to the right between the two ends the search.
"""

from __future__ import annotations

from collections import defaultdict

from kernelproof.emulate.lower import Block
from kernelproof.emulate.ptx import Instruction

_LINEAR = {("mul", "lo", "s32"), ("mad", "lo", "s32"), ("add", "s32"), ("sub", "s32"),
           ("shl", "b32"), ("mov", "u32"), ("mov", "b32")}  # fmt: skip
_PRODUCTS = ("mul", "mad", "shl")


def index_products(blocks: list[Block]) -> set[int]:
    """`id` of the multiplications and left shifts whose result is used as an index."""
    makers: dict[str, list[Instruction]] = defaultdict(list)
    roots: list[str] = []
    for block in blocks:
        for i in block.code:
            if i.operands and isinstance(i.operands[0], str):
                makers[i.operands[0]].append(i)
            if i.op == ("cvt", "s64", "s32"):
                roots.append(i.operands[1])
            elif i.op in (("mul", "wide", "s32"), ("mad", "wide", "s32")):
                roots += i.operands[1:3]
    found: set[int] = set()
    seen: set[str] = set()
    while roots:
        register = roots.pop()
        if register in seen or not isinstance(register, str):
            continue
        seen.add(register)
        for i in makers.get(register, ()):
            if i.op in _LINEAR:
                if i.op[0] in _PRODUCTS:
                    found.add(id(i))
                roots += i.operands[1:2] if i.op[0] == "shl" else i.operands[1:]
    return found
