"""mbarrier objects, copies that arrive on them, and what goes wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_microtests as micro

from kernelproof import emulate

HEAD = """
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(u64* b, unsigned n) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ u64 arrive(u64* b) {
  u64 s;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(s) : "r"(at(b)) : "memory");
  return s;
}
__device__ void wait(u64* b, u64 s) {
  int done = 0;
  while (!done) {
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2;"
                 " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(b)), "l"(s) : "memory");
  }
}
__device__ void wait_parity(u64* b, unsigned parity) {
  int done = 0;
  while (!done) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                 " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
  }
}
"""
REVERSE = (
    HEAD
    + """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ u64 barrier;
  __shared__ float tile[64];
  const int t = threadIdx.x;
  if (t == 0) init(&barrier, 64);
  __syncthreads();
  for (int round = 0; round < 3; ++round) {
    tile[t] = x[64 * round + t];
    const u64 filled = arrive(&barrier);
    wait(&barrier, filled);
    y[64 * round + t] = tile[63 - t];
    wait(&barrier, arrive(&barrier));
  }
}
"""
)
COPIES = (
    HEAD
    + """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ u64 barrier;
  __shared__ __align__(16) float tile[64][4];
  const int t = threadIdx.x;
  if (t == 0) init(&barrier, 64);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(at(tile[t])), "l"(x + 4 * t));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&barrier)) : "memory");
  wait_parity(&barrier, 0);
  y[t] = tile[63 - t][0];
}
"""
)
BULK = (
    HEAD
    + """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ u64 barrier;
  __shared__ __align__(128) float tile[256];
  const int t = threadIdx.x;
  if (t == 0) init(&barrier, 1);
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;"
                 :: "r"(at(&barrier)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], 1024, [%2];"
                 :: "r"(at(tile)), "l"(x), "r"(at(&barrier)) : "memory");
  }
  wait_parity(&barrier, 0);
  y[t] = tile[4 * (63 - t)];
}
"""
)


def run(source: str, arch: str = "") -> tuple[emulate.Result, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    y = np.zeros(192, np.float32)
    return emulate.launch(source, "k", 1, 64, [x, y]), x, y


def test_arrivals_of_all_threads_order_what_they_did() -> None:
    result, x, y = run(REVERSE)
    assert [str(f) for f in result.findings] == []
    np.testing.assert_array_equal(y.reshape(3, 64), x[:192].reshape(3, 64)[:, ::-1])


def test_copies_arrive_when_they_have_landed() -> None:
    result, x, y = run(COPIES)
    assert [str(f) for f in result.findings] == []
    np.testing.assert_array_equal(y[:64], x.reshape(64, 4)[::-1, 0])


def test_a_bulk_copy_completes_the_phase() -> None:
    result, x, y = run(BULK)
    assert [str(f) for f in result.findings] == []
    np.testing.assert_array_equal(y[:64], x.reshape(64, 4)[::-1, 0])


@pytest.mark.parametrize(
    ("source", "old", "new", "kind", "line"),
    [
        (REVERSE, "    wait(&barrier, filled);\n", "\n", "race", "tile[63 - t];"),
        (REVERSE, "    wait(&barrier, arrive(&barrier));\n", "\n", "race", "tile[t] = x"),
        (REVERSE, "  __syncthreads();\n", "\n", "race", "mbarrier.arrive"),
        (REVERSE, "init(&barrier, 64)", "init(&barrier, 65)", "deadlock", ""),
        (REVERSE, "  if (t == 0) init(&barrier, 64);\n", "\n", "uninitialised", "mbarrier.arrive"),
        (COPIES, "  wait_parity(&barrier, 0);\n", "\n", "race", "tile[63 - t]"),
        (COPIES, "wait_parity(&barrier, 0)", "wait_parity(&barrier, 1)", "deadlock", ""),
        (BULK, "  wait_parity(&barrier, 0);\n", "\n", "race", "tile[4 * (63 - t)]"),
        (BULK, "[%0], 1024;", "[%0], 2048;", "deadlock", ""),
        (BULK, '"l"(x)', '"l"(x + 1)', "misaligned", "complete_tx"),
        (BULK, '"l"(x)', '"l"(x + 4)', "out of bounds", "complete_tx"),
    ],
)
def test_what_goes_wrong_is_found(source: str, old: str, new: str, kind: str, line: str) -> None:
    changed = source.replace(old, new)
    assert changed != source
    result, _, _ = run(changed)
    lines = changed.splitlines()
    found = [f for f in result.errors if f.kind == kind]
    near = [f for f in found if any(line in t for t in lines[max(0, f.line - 2) : f.line + 1])]
    assert near if line else found, [str(f) for f in result.findings]


@pytest.mark.parametrize("case", micro.barriers(), ids=lambda c: c.name)
def test_each_form_hands_the_data_over(case: micro.Case) -> None:
    (given,), _ = case.arrays()
    np.testing.assert_array_equal(micro.emulated(case), given[::-1])
