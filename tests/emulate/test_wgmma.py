"""wgmma beside plain formulas: where each element of an operand lies in shared memory, and of an
accumulator in the registers, written out from the PTX ISA (9.7.15.5.1) element by element."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_case
import ptx_wgmma as hopper

SHAPES = [
    # d, a, b, n, bytes of a row of the pattern, how
    ("f32", "f16", "f16", 64, 16, {}),
    ("f32", "f16", "f16", 24, 32, {}),
    ("f16", "f16", "f16", 40, 64, {"carried": True}),
    ("f32", "bf16", "bf16", 256, 128, {"negate": True, "carried": True}),
    ("f32", "tf32", "tf32", 64, 64, {}),
    ("s32", "u8", "s8", 64, 32, {"registers": True}),
    ("s32", "s8", "u8", 16, 16, {"carried": True}),
    ("f32", "e4m3", "e5m2", 64, 128, {}),
    ("f32", "f16", "f16", 64, 128, {"registers": True}),
    ("f32", "tf32", "tf32", 8, 128, {"registers": True, "carried": True}),
    ("f32", "f16", "f16", 128, 16, {"b_transposed": True}),
    ("f32", "bf16", "bf16", 128, 32, {"b_transposed": True}),
    ("f32", "f16", "f16", 192, 64, {"b_transposed": True}),
    ("f32", "f16", "f16", 128, 128, {"b_transposed": True, "registers": True}),
    ("f32", "f16", "f16", 64, 16, {"a_transposed": True}),
    ("f32", "bf16", "bf16", 64, 64, {"a_transposed": True}),
    ("f32", "f16", "f16", 64, 128, {"a_transposed": True, "b_transposed": True}),
    ("f32", "f16", "f16", 32, 128, {"step": 96}),
    ("f32", "f16", "f16", 32, 128, {"base": 3}),
]


def element(kind: str, data: bytes) -> float:
    """The value of one element; fp8 by the definition of its bits."""
    if kind == "bf16":
        data, kind = b"\0\0" + data, "tf32"
    if kind in ("f16", "tf32"):
        return float(np.frombuffer(data, np.float16 if kind == "f16" else np.float32)[0])
    if kind in ("s8", "u8"):
        return int.from_bytes(data, "little", signed=kind == "s8")
    bits, m = data[0], 3 if kind == "e4m3" else 2
    exponent, fraction, bias = (bits & 127) >> m, bits & ((1 << m) - 1), 7 if m == 3 else 15
    lead = 1 if exponent else 0
    value = (lead + fraction / (1 << m)) * 2.0 ** (max(exponent, 1) - bias)
    return -value if bits & 128 else value


def operand(memory: bytes, kind: str, rows: int, span: int, transposed: bool, start: int,
            base: int) -> Any:  # fmt: skip
    """(rows, k) of an operand whose patterns of 8 rows of ``span`` bytes lie one behind the
    other: along K then along the rows, or, transposed, along the rows and then along K."""
    size = {"f16": 2, "bf16": 2, "tf32": 4}.get(kind, 1)
    k = 32 // size
    out = np.zeros((rows, k))
    row_patterns = -(-rows * size // span)
    for r in range(rows):
        for c in range(k):
            line, inner = (c, r * size) if transposed else (r, c * size)
            if span == 16:
                # Cores of 8 lines of 16 bytes.
                cores = rows // 8 if transposed else 2
                at = (line // 8 * cores + inner // 16) * 128 + line % 8 * 16 + inner % 16
            elif transposed:
                pattern = line // 8 * row_patterns + inner // span
                at = pattern * 8 * span + line % 8 * span + inner % span
            else:
                at = line * span + inner
            at += start
            piece = (at >> 7) - base & (span // 16 - 1)
            at ^= piece << 4
            out[r, c] = element(kind, memory[at : at + size])
    return out


def fragment(words: Any, kind: str) -> Any:
    """(64, k) of A in registers, from the fragment figures: two halves of 8 rows, two of K."""
    size = {"f16": 2, "bf16": 2, "tf32": 4}.get(kind, 1)
    per, out = 4 // size, np.zeros((64, 32 // size))
    for t in range(128):
        for n in range(4):
            data = words[n * 128 + t : n * 128 + t + 1].tobytes()
            for e in range(per):
                row = 16 * (t // 32) + t % 32 // 4 + (8 if n in (1, 3) else 0)
                column = per * (t % 4) + e + (16 // size if n >= 2 else 0)
                out[row, column] = element(kind, data[e * size : (e + 1) * size])
    return out


def expected(d: str, a: str, b: str, n: int, span: int, how: dict[str, Any], arrays: Any) -> Any:
    start = how.get("base", 0) * 128 + how.get("step", 0)
    base = how.get("base", 0)
    left = (
        fragment(arrays[0], a) if how.get("registers")
        else operand(arrays[0].tobytes(), a, 64, span, how.get("a_transposed", False), start, base)
    )  # fmt: skip
    right = operand(arrays[1].tobytes(), b, n, span, how.get("b_transposed", False), start, base)
    product = left @ right.T * (-1 if how.get("negate") else 1)
    count = n // (4 if d == "f16" else 2)
    cells = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[d]
    registers = np.zeros((n // 2, 128))
    for t in range(128):
        for i in range(n // 2):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (i % 4 // 2)
            registers[i, t] = product[row, 8 * (i // 4) + 2 * (t % 4) + i % 2]
    if how.get("carried"):
        given = arrays[2].view(np.float16 if d == "f16" else arrays[2].dtype)
        if d == "f16":
            given = given.reshape(count, 128, 2).transpose(0, 2, 1)
        registers += given.reshape(n // 2, 128)
    if d == "f16":
        return np.ascontiguousarray(
            registers.reshape(count, 2, 128).transpose(0, 2, 1).astype(cells)
        ).view(np.uint32).reshape(-1)  # fmt: skip
    return registers.astype(cells).reshape(-1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, (*s[:5], *s[5]))))
def test_a_product_is_that_of_the_formulas(shape: Any) -> None:
    d, a, b, n, span, how = shape
    case = hopper.product(d, a, b, n, span, **how)
    arrays, _ = case.arrays()
    np.testing.assert_array_equal(ptx_case.emulated(case), expected(d, a, b, n, span, how, arrays))
