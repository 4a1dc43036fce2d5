"""Clean kernels, and bugs that changing one thing in them plants.

`CLEAN` says how each kernel of ``kernels/`` is launched and what it must give. `BUGS` replaces a
piece of text and names the kind of finding and a piece of the line that must be reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kernelproof import emulate

FOLDER = Path(__file__).parent / "kernels"


@dataclasses.dataclass
class Launch:
    """``expected``: (index of an argument, its value afterwards)."""

    grid: Any
    block: Any
    args: list[Any]
    expected: list[tuple[int, Any]]
    shared: int = 0
    uninitialised: tuple[str, ...] = ()


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.full(shape, 0, dtype)


def _block_sum() -> Launch:
    x = _floats(300)
    want = np.add.reduceat(x.astype(np.float64), [0, 128, 256])
    return Launch(3, 128, [x, _zeros(3), 300], [(1, want)], uninitialised=("y",))


def _transpose() -> Launch:
    x = _floats(20, 30)
    return Launch((2, 2), (16, 16), [x, _zeros(30, 20), 20, 30], [(1, x.T)], uninitialised=("y",))


def _scan() -> Launch:
    x = np.arange(100, dtype=np.int32) % 7 - 3
    return Launch(1, 128, [x, _zeros(100, dtype=np.int32), 100], [(1, np.cumsum(x))])


def _stencil() -> Launch:
    x = _floats(192)
    padded = np.pad(x.astype(np.float64), 1)
    want = padded[:-2] + padded[1:-1] + padded[2:]
    return Launch(3, 64, [x, _zeros(192), 192], [(1, want)], uninitialised=("y",))


def _histogram() -> Launch:
    x = np.random.default_rng(1).integers(0, 256, 1000).astype(np.uint8)
    want = np.bincount(x & 63, minlength=64)
    return Launch(2, 128, [x, _zeros(64, dtype=np.uint32), 1000], [(1, want)])


def _matmul() -> Launch:
    a, b = _floats(32, 32), _floats(32, 32) + 1
    return Launch((2, 2), (16, 16), [a, b, _zeros(32, 32), 32], [(2, a.astype(np.float64) @ b)],
                  uninitialised=("c",))  # fmt: skip


def _softmax() -> Launch:
    x = _floats(5, 40)
    e = np.exp(x.astype(np.float64))
    return Launch(2, 128, [x, _zeros(5, 40), 5, 40], [(1, e / e.sum(1, keepdims=True))])


def _last_block() -> Launch:
    x = _floats(230)
    return Launch(4, 64, [x, _zeros(4), _zeros(1), 230], [(2, [x.sum(dtype=np.float64)])])


def _lock() -> Launch:
    x = _floats(40)
    want = [2 * x.sum(dtype=np.float64), 80]
    return Launch(2, 40, [_zeros(1, dtype=np.int32), _zeros(2), x], [(1, want)])


def _pipeline() -> Launch:
    x = _floats(1024)
    return Launch(1, 64, [x, _zeros(1024), 4], [(1, 2 * x)], uninitialised=("y",))


def _tensor_core() -> Launch:
    a, b = _floats(16, 16).astype(np.float16), _floats(8, 16).astype(np.float16)
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    return Launch(1, 32, [a, b, _zeros(16, 8)], [(2, want)], uninitialised=("c",))


def _vector_copy() -> Launch:
    x = _floats(203)
    return Launch(2, 32, [x, _zeros(203), 203], [(1, x)], uninitialised=("y",))


def _producer() -> Launch:
    x = _floats(3, 32)
    return Launch(1, 64, [x, _zeros(3, 32), 3], [(1, x[:, ::-1])], uninitialised=("y",))


def _layernorm() -> Launch:
    x = _floats(3, 200)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    return Launch(3, 96, [x, _zeros(3, 200), 200], [(1, want)], shared=16, uninitialised=("y",))


def _flags() -> Launch:
    x = _floats(6)
    return Launch(6, 32, [x, _zeros(6), _zeros(6, dtype=np.int32)], [(1, np.cumsum(x))])


CLEAN: dict[str, Callable[[], Launch]] = {
    "block_sum": _block_sum, "transpose": _transpose, "scan": _scan, "stencil": _stencil,
    "histogram": _histogram, "matmul": _matmul, "softmax": _softmax, "last_block": _last_block,
    "lock": _lock, "pipeline": _pipeline, "tensor_core": _tensor_core,
    "vector_copy": _vector_copy, "producer": _producer, "layernorm": _layernorm, "flags": _flags,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bug:
    """``old`` becomes ``new``; the finding is of ``kind`` and on a line that holds ``at``."""

    kernel: str
    old: str
    new: str
    kind: str
    at: str


BUGS = (
    # races in shared memory
    Bug("block_sum", "__syncthreads();  // filled", "", "race", "s[t] += s[t + d]"),
    Bug("block_sum", "__syncthreads();  // level", "", "race", "s[t] += s[t + d]"),
    Bug("block_sum", "__syncwarp();  // written", "", "race", "other = s[t + d]"),
    Bug("transpose", "__syncthreads();", "", "race", "tile[tx][ty]"),
    Bug("scan", "__syncthreads();  // filled", "", "race", "buffer[now][t - d]"),
    Bug("scan", "__syncthreads();  // step", "", "race", "buffer[now][t - d]"),
    Bug("scan", "buffer[now ^ 1][t] = t >= d", "buffer[now][t] = t >= d", "race", "buffer[now]"),
    Bug("stencil", "__syncthreads();", "", "race", "y[i] = s[t]"),
    Bug("stencil", "if (t == 63) s[65]", "if (t >= 62) s[65]", "race", "s[65]"),
    Bug("histogram", "__syncthreads();  // cleared", "", "race", "atomicAdd(&local"),
    Bug("histogram", "__syncthreads();  // counted", "", "race", "atomicAdd(&bins[t], local[t])"),
    Bug("histogram", "atomicAdd(&local[x[i] & 63], 1u)", "local[x[i] & 63] += 1u", "race",
        "local[x[i] & 63]"),
    Bug("matmul", "__syncthreads();  // tiles are there", "", "race", "sum += ta[ty][i]"),
    Bug("matmul", "__syncthreads();  // tiles are done with", "", "race", "= a[row * n + k + tx]"),
    Bug("last_block", "__syncthreads();  // level", "", "race", "s[t] += s[t + d]"),
    Bug("last_block", "__syncthreads();  // ticket", "", "race", "if (last"),
    Bug("layernorm", "__syncthreads();  // parts", "", "race", "all += part[w]"),
    Bug("layernorm", "__syncthreads();  // result", "", "race", "stats[pass] = part[warps]"),
    Bug("layernorm", "if (lane == 0) part[warp]", "if (lane < 2) part[warp]", "race",
        "part[warp] = sum"),
    Bug("pipeline", "__syncthreads();  // tile is there", "", "race", "2.0f * buffer"),
    Bug("pipeline", "__syncthreads();  // tile is done with", "", "race", "cp.async.cg"),
    Bug("tensor_core", "__syncwarp();", "", "race", "ldmatrix"),
    Bug("producer", 'asm volatile("bar.sync 1, 64;" ::: "memory");  // wait until full', "", "race",
        "slot[31 - lane]"),
    # races in global memory
    Bug("histogram", "atomicAdd(&bins[t], local[t])", "bins[t] += local[t]", "race", "bins[t] +="),
    Bug("block_sum", "y[blockIdx.x] = s[0]", "y[0] = s[0]", "race", "y[0] = s[0]"),
    Bug("last_block", "__threadfence();", "", "race", "sum += ((float*)parts)[b]"),
    Bug("last_block", "last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;", "last = true;",
        "race", "((float*)parts)[b"),
    Bug("lock", "__threadfence();", "", "race", "total[0] +="),
    Bug("lock", "if (atomicCAS(held, 0, 1) == 0) {", "if (true) {", "race", "total[0] +="),
    Bug("flags", "__threadfence();\n    atomicExch", "atomicExch", "race", "before = carried"),
    Bug("flags", "while (atomicAdd(&ready[b - 1], 0) == 0) {}", "", "race", "before = carried"),
    # bounds
    Bug("block_sum", "i < n ? x[i]", "i <= n ? x[i]", "out of bounds", "x[i]"),
    Bug("stencil", "i + 1 < n ? x[i + 1]", "i < n ? x[i + 1]", "out of bounds", "x[i + 1]"),
    Bug("stencil", "i > 0 ? x[i - 1]", "i >= 0 ? x[i - 1]", "out of bounds", "x[i - 1]"),
    Bug("stencil", "float s[66]", "float s[65]", "out of bounds", "s["),
    Bug("transpose", "if (row < columns && column < rows)", "if (row < columns)", "out of bounds",
        "y[row * rows + column]"),
    Bug("transpose", "float tile[16][17]", "float tile[15][17]", "out of bounds", "tile["),
    Bug("vector_copy", "if (i < quads)", "if (i <= quads)", "out of bounds", "float4"),
    Bug("softmax", "if (row >= rows) return;", "", "out of bounds", "x[row * columns"),
    Bug("histogram", "if (t < 64) atomicAdd(&bins", "if (t < 65) atomicAdd(&bins", "out of bounds",
        "atomicAdd(&bins"),
    Bug("layernorm", "part[warps] = all", "part[warps + 1] = all", "out of bounds", "part[warps"),
    # alignment, initialisation
    Bug("vector_copy", "float4*>(x)[i]", "float4*>(x + 1)[i]", "misaligned", "float4"),
    Bug("pipeline", "x + (i + 1) * 256 + 4 * t", "x + (i + 1) * 255 + 4 * t", "misaligned",
        "cp.async.cg"),
    Bug("transpose", "if (r < rows && c < columns) tile", "if (r < rows && c < 20) tile",
        "uninitialised", "tile[tx][ty]"),
    Bug("histogram", "if (t < 64) local[t] = 0;", "if (t < 60) local[t] = 0;", "uninitialised",
        "atomicAdd(&local"),
    Bug("matmul", "c[row * n + column] = sum", "c[row * n + column] += sum", "uninitialised",
        "c[row * n + column]"),
    Bug("scan", "buffer[0][t] = t < n ? x[t] : 0;", "if (t < n) buffer[0][t] = x[t];",
        "uninitialised", "buffer[now]"),
    # cp.async
    Bug("pipeline", 'asm volatile("cp.async.wait_group 1;" ::: "memory");', "", "race",
        "buffer[i & 1]"),
    Bug("pipeline", "wait_group 1", "wait_group 2", "race", "buffer[i & 1]"),
    # warps and barriers
    Bug("softmax", "if (row >= rows) return;", "if (row >= rows || lane >= columns - 10) return;",
        "absent lanes", "top = fmaxf(top, __shfl"),
    Bug("softmax", "__shfl_xor_sync(0xffffffffu, sum, d)",
        "(lane < 16 ? __shfl_xor_sync(0xffffffffu, sum, d) : 0.0f)", "absent lanes", "lane < 16"),
    Bug("layernorm", "__shfl_down_sync(0xffffffffu", "__shfl_down_sync(0x0000ffffu", "absent lanes",
        "__shfl_down_sync"),
    Bug("scan", "__syncthreads();  // step", "if (t >= d) __syncthreads();", "divergent barrier",
        "if (t >= d)"),
    Bug("producer", 'asm volatile("bar.sync 2, 64;" ::: "memory");  // wait until empty', "",
        "deadlock", "bar.sync 1"),
    Bug("producer", 'if (i + 1 < rounds) asm volatile("bar.arrive 2, 64;" ::: "memory");', "",
        "deadlock", "bar.sync"),
    Bug("lock", "atomicExch(held, 0);", "", "deadlock", "while (!done)"),
)  # fmt: skip


def run(kernel: str, source: str, seed: int | None = None) -> tuple[emulate.Result, Launch]:
    """Launch ``source`` as the clean kernel is launched."""
    launch = CLEAN[kernel]()
    result = emulate.launch(
        source, kernel, launch.grid, launch.block, launch.args, shared=launch.shared,
        uninitialised=launch.uninitialised, seed=seed,
    )  # fmt: skip
    return result, launch


def text(kernel: str) -> str:
    return (FOLDER / f"{kernel}.cu").read_text()


def planted(bug: Bug) -> tuple[str, list[int]]:
    """The changed source, and the numbers of the lines that hold ``at``."""
    source = text(bug.kernel)
    assert source.count(bug.old) >= 1, f"{bug.kernel}.cu has no {bug.old!r}"
    changed = source.replace(bug.old, bug.new)
    lines = [n for n, line in enumerate(changed.splitlines(), 1) if bug.at in line]
    assert lines, f"no line holds {bug.at!r}"
    return changed, lines


def places(finding: emulate.Finding) -> list[int]:
    """Lines that a finding names: its own, and the other side's."""
    return [finding.line, finding.other_line]
