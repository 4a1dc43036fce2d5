"""Compiles the kernels below to PTX, without a GPU; the files beside this one are what it writes.

python tests/emulate/triton_ptx/make_ptx.py
"""

from __future__ import annotations

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * columns + c, v / tl.sum(v, 0), mask=c < columns)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + (first + k)[None, :], mask=m[:, None] < M, other=0.0)
        w = tl.load(b + (first + k)[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
        total += tl.dot(x, w)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


F32, F16, INT, FIXED = "*fp32", "*fp16", "i32", "constexpr"
KERNELS = {
    add: ([F32, F32, F32, INT, FIXED], {4: 512}, (0, 1, 2)),
    softmax: ([F32, F32, INT, FIXED], {3: 256}, ()),
    matmul: ([F16, F16, F32, INT, INT, INT, FIXED, FIXED, FIXED], {6: 64, 7: 64, 8: 32}, range(6)),
}


def main() -> None:
    for kernel, (kinds, fixed, aligned) in KERNELS.items():
        source = ASTSource(
            kernel,
            signature=dict(zip(kernel.arg_names, kinds, strict=True)),
            constexprs={(i,): value for i, value in fixed.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4})
        ptx = re.sub(r'(\.file\s+\d+\s+)"(?:.*/)?([^/"]+)"', r'\1"\2"', made.asm["ptx"])
        ptx = re.sub(r"^\s*\.section\s+\.debug.*?^\s*\}\s*$", "", ptx, flags=re.M | re.S)
        ptx = re.sub(r"[ \t]*//[^\n]*", "", ptx)
        text = f"// shared memory: {made.metadata.shared}\n" + re.sub(r"\n\s*\n+", "\n", ptx)
        Path(__file__).with_name(f"{kernel.__name__}.ptx").write_text(text)


if __name__ == "__main__":
    main()
