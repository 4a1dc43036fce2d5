"""Clean kernels of sm_90a, and bugs that changing one thing in them plants; as `emulate_corpus`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from emulate_corpus import FOLDER, Bug, Launch

from kernelproof import emulate
from kernelproof.emulate import Buffer, TensorMap

HOPPER = FOLDER / "hopper"


def _floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _rows(array: Any, name: str, box: tuple[int, int], initialised: bool = True) -> TensorMap:
    rows, columns = array.shape
    buffer = Buffer(array, name, initialised)
    return TensorMap(buffer, (columns, rows), (2 * columns,), box, 128)


def _gemm() -> Launch:
    """Two tiles along each axis; odd sizes, so that tensor copies leave elements out."""
    m, n, k = 200, 104, 200
    a, b = (_floats(rows, k).astype(np.float16) for rows in (m, n))
    c = np.zeros((m, n), np.float16)
    maps = [_rows(a, "a", (64, 128)), _rows(b, "b", (64, 64)), _rows(c, "c", (64, 64), False)]
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    return Launch((2, 2), 384, [*maps, 4], [(2, want)], shared=64 * 1024)


def _fragments() -> Launch:
    steps = 5
    x = _floats(64, 16 * steps).astype(np.float16)
    w = _floats(16 * steps, 64).astype(np.float16)
    want = x.astype(np.float64) @ w.astype(np.float64)
    words = [array.view(np.uint32) for array in (x, w)]
    return Launch(1, 128, [*words, np.zeros((64, 64), np.float32), steps], [(2, want)],
                  uninitialised=("y",))  # fmt: skip


def _cluster_sum() -> Launch:
    x = _floats(6 * 128)
    want = x.astype(np.float64).reshape(3, -1).sum(1)
    return Launch(6, 128, [x, np.zeros(3, np.float32)], [(1, want)], uninitialised=("y",))


def _exchange() -> Launch:
    x = _floats(5, 2, 64)
    return Launch(2, 64, [x, np.zeros_like(x), 5], [(1, x[:, ::-1, ::-1])], uninitialised=("y",))


def _stream() -> Launch:
    x = _floats(5, 256)
    return Launch(1, 64, [x, np.zeros_like(x), 5], [(1, 2 * x)], uninitialised=("y",))


CLEAN: dict[str, Callable[[], Launch]] = {
    "gemm": _gemm, "fragments": _fragments, "cluster_sum": _cluster_sum, "exchange": _exchange,
    "stream": _stream,
}  # fmt: skip

BUGS = (
    # products under way
    Bug("gemm", "wait_products<0>();  // of the stage", "", "wgmma in flight", "cvt.rn.f16x2"),
    Bug("gemm", "wait_products<0>();  // of the stage", "", "race", "load(ta + s"),
    Bug("gemm", "commit();\n", "\n", "wgmma in flight", "cvt.rn.f16x2"),
    Bug("gemm", "      fence();\n", "\n", "missing wgmma.fence", "multiply(d, rows_of"),
    Bug("fragments", "wait_products<0>();  // the last step", "", "wgmma in flight",
        "// the result"),
    Bug("fragments", "wait_products<1>();  // the step before", "", "race", "] = w[k * 512 + i];"),
    Bug("fragments", "wait_products<1>();  // the step before", "", "wgmma in flight",
        "a[k & 1][i] = row["),
    Bug("fragments", "    fence();\n", "\n", "missing wgmma.fence", "multiply(d, a[k & 1]"),
    # the async proxy
    Bug("gemm", "fence_async();  // the tile is stored", "", "missing proxy fence", "store(&mc"),
    Bug("fragments", "fence_async();  // the tile is stored", "", "missing proxy fence",
        "multiply(d, a[k & 1]"),
    Bug("stream", "fence_async();  // the row is stored", "", "missing proxy fence",
        "cp.async.bulk.global"),
    # descriptors and maps
    Bug("gemm", "rows_of_128(at(tb + s * B) + 32 * i)",
        "rows_of_128(at(tb + s * B) + 32 * i, 8192)",
        "uninitialised", "multiply(d, rows_of"),
    Bug("gemm", "rows_of_128(at(tb + s * B) + 32 * i)",
        "rows_of_128(at(tb + s * B) + 32 * i, 32768)",
        "out of bounds", "multiply(d, rows_of"),
    Bug("gemm", "load(ta + s * A, &ma", "load(ta + s * A + 8, &ma", "misaligned", "load(ta + s"),
    # mbarriers
    Bug("gemm", "wait(&full[s], k / STAGES & 1);  // the stage is filled", "", "race",
        "multiply(d, rows_of"),
    Bug("gemm", "wait(&full[s], k / STAGES & 1)", "wait(&full[s], ~(k / STAGES) & 1)",
        "deadlock", "wait(&full[s]"),
    Bug("gemm", "if (k >= STAGES) wait(&empty[s], (k / STAGES - 1) & 1);", "", "race",
        "load(ta + s"),
    Bug("gemm", "wait(&empty[s], (k / STAGES - 1) & 1)", "wait(&empty[s], k / STAGES & 1)", "race",
        "load(ta + s"),
    Bug("gemm", "expect(&full[s], 2 * (A + B))", "expect(&full[s], 2 * A)", "race",
        "multiply(d, rows_of"),
    Bug("gemm", "expect(&full[s], 2 * (A + B))", "expect(&full[s], 2 * (A + B) + 16)", "deadlock",
        "wait(&full[s]"),
    Bug("gemm", "if (t % 128 == 0) arrive(&empty[s]);", "", "deadlock", "wait(&empty[s]"),
    Bug("gemm",
        "      wait_products<0>();  // of the stage\n      if (t % 128 == 0) arrive(&empty[s]);",
        "      if (t % 128 == 0) arrive(&empty[s]);\n      wait_products<0>();", "race",
        "load(ta + s"),
    Bug("stream", "wait(&full[r & 1], r / 2 & 1);  // the row is there", "", "race",
        "2 * in[r & 1][i]"),
    # bulk copies out
    Bug("gemm", "wait_store();  // before the block ends", "", "copy in flight", "store(&mc"),
    Bug("gemm",
        'asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory");  // all have stored', "",
        "race", "store(&mc"),
    Bug("stream", 'if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");', "",
        "race", "out[r & 1][i] = 2"),
    Bug("stream", "if (t == 0) wait_store();  // before", "// before", "copy in flight",
        "cp.async.bulk.global"),
    Bug("stream", "__syncthreads();  // all have stored", "", "race", "cp.async.bulk.global"),
    # named barriers, registers
    Bug("gemm", "bar.sync %0, 128;", "bar.sync %0, 100;", "divergent barrier", "all have stored"),
    Bug("gemm", "setmaxnreg.dec.sync.aligned.u32 40", "setmaxnreg.dec.sync.aligned.u32 44",
        "register count", "// the loader"),
    Bug("gemm", "setmaxnreg.inc.sync.aligned.u32 232", "setmaxnreg.inc.sync.aligned.u32 248",
        "register count", "setmaxnreg"),
    # clusters
    Bug("cluster_sum",
        "  arrive_cluster();  // the sums are there\n  wait_cluster();  // for the sums\n",
        "  __syncthreads();\n", "race", "// both parts"),
    Bug("cluster_sum",
        "  arrive_cluster();  // the sums are read\n  wait_cluster();  // until they are\n",
        "", "ended block", "// both parts"),
    Bug("cluster_sum", "get(peer(&part, 1))", "get(peer(&part, 2))", "out of bounds",
        "// both parts"),
    Bug("cluster_sum", "  arrive_cluster();  // the sums are read\n",
        "  if (rank() == 0) arrive_cluster();\n", "divergent barrier", "wait_cluster();  // until"),
    Bug("exchange",
        "  arrive_cluster();  // the barriers are there\n  wait_cluster();  // for the barriers\n",
        "", "race", "send(peer"),
    Bug("exchange", "wait(&came[s], i / 2 & 1);", "", "race", "row[s][t];  // take it"),
    Bug("exchange", "&row[s][63 - t], other", "&row[0][63 - t], other", "uninitialised",
        "row[s][t];  // take it"),
    Bug("exchange", "expect(&came[s], 256)", "expect(&came[s], 260)", "deadlock", "wait(&came[s]"),
)  # fmt: skip


def run(kernel: str, source: str, seed: int | None = None) -> tuple[emulate.Result, Launch]:
    """Launch ``source`` as the clean kernel is launched."""
    launch = CLEAN[kernel]()
    result = emulate.launch(
        source, kernel, launch.grid, launch.block, launch.args, shared=launch.shared,
        uninitialised=launch.uninitialised, seed=seed, options=(f"-I{HOPPER}",),
        limits=emulate.Limits(idle=3000),
    )  # fmt: skip
    return result, launch


def value(argument: Any) -> Any:
    """The array behind an argument."""
    return argument.tensor.array if isinstance(argument, TensorMap) else argument


def text(kernel: str) -> str:
    return (HOPPER / f"{kernel}.cu").read_text()


def planted(bug: Bug) -> tuple[str, list[int]]:
    """The changed source, and the numbers of the lines that hold ``at``."""
    source = text(bug.kernel)
    assert source.count(bug.old) >= 1, f"{bug.kernel}.cu has no {bug.old!r}"
    changed = source.replace(bug.old, bug.new)
    lines = [n for n, line in enumerate(changed.splitlines(), 1) if bug.at in line]
    assert lines, f"no line holds {bug.at!r}"
    return changed, lines


def places(finding: emulate.Finding) -> list[int]:
    """Lines of the kernel that a finding names: its own, the other side's, and those from which
    the function it stands in was called."""
    own = [int(call.rsplit(":", 1)[1]) for call in finding.calls]
    if not finding.file.endswith(".cuh"):
        own.append(finding.line)
    return [*own, *([finding.other_line] if not finding.other_file.endswith(".cuh") else [])]
