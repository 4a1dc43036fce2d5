"""Launches: arguments, buffers, module variables, limits, printing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof import emulate
from kernelproof.errors import CompileError, UnsupportedError

ADD = """
template <class T> __global__ void add(const T* x, T* y, int n, T c) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + c;
}
extern "C" __global__ void one(int* out) { out[0] = 1; }
"""


def test_tensors_arrays_and_templates() -> None:
    x = torch.arange(10, dtype=torch.float32)
    y = torch.zeros(10)
    emulate.launch(
        ADD,
        "add<float>",
        1,
        32,
        [x, y, 10, 0.5],
    )
    assert torch.equal(y, x + 0.5)
    a, b = np.arange(4.0), np.zeros(4)
    emulate.launch(ADD, "add<double>", 1, 32, [a, b, 4, 1.0])
    assert b.tolist() == [1, 2, 3, 4]


def test_a_view_is_bounded_by_itself_not_by_its_storage() -> None:
    whole = torch.zeros(20)
    x, y = torch.ones(10), whole[3:13]
    result = emulate.launch(ADD, "add<float>", 1, 32, [x, y, 10, 1.0])
    assert not result.errors and whole.sum() == 20 and whole[:3].sum() == 0
    result = emulate.launch(ADD, "add<float>", 1, 32, [torch.ones(11), y, 11, 1.0])
    assert "4 bytes past the end of the 40 bytes of y" in str(result.errors[0])


def test_module_variables_last_and_can_be_set() -> None:
    source = '__constant__ float c[2];\nextern "C" __global__ void k(float* y) { y[0] += c[1]; }'
    kernel = emulate.load(source, "k")
    y = np.zeros(1, np.float32)
    kernel.launch(1, 1, [y], constants={"c": np.array([1, 2], np.float32)})
    kernel.launch(1, 1, [y])
    assert y[0] == 4
    with pytest.raises(TypeError, match="no variable 'd'"):
        kernel.launch(1, 1, [y], constants={"d": np.zeros(1)})


def test_wrong_arguments_are_named() -> None:
    kernel = emulate.load(ADD, "one")
    with pytest.raises(TypeError, match="takes 1 arguments, 2 given"):
        kernel.launch(1, 1, [np.zeros(1, np.int32), 3])
    with pytest.raises(TypeError, match="cannot pass dict"):
        kernel.launch(1, 1, [{}])
    with pytest.raises(ValueError, match="grid 0"):
        kernel.launch(0, 1, [np.zeros(1, np.int32)])
    with pytest.raises(CompileError, match="has no kernel 'nothing'; it has add, one"):
        emulate.load(ADD, "nothing")


def test_a_changed_file_is_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    y = np.zeros(1, np.float32)
    for value in (1, 2):
        path.write_text(f'extern "C" __global__ void k(float* y) {{ y[0] = {value}; }}')
        emulate.launch(path, "k", 1, 1, [y])
        assert y[0] == value


def test_printf_and_assert() -> None:
    source = """
extern "C" __global__ void k(const float* x) {
  if (threadIdx.x < 2) printf("%d: %5.2f %s\\n", (int)threadIdx.x, x[threadIdx.x], "units");
  assert(x[threadIdx.x] < 2);
}
"""
    result = emulate.launch(source, "k", 1, 4, [np.arange(4, dtype=np.float32)])
    assert result.output == "0:  0.00 units\n1:  1.00 units\n"
    assert [(f.kind, f.line) for f in result.errors] == [("assertion", 4)]


def test_calls_of_device_functions_and_local_arrays() -> None:
    source = """
__device__ __noinline__ float pick(const float* a, int i) { return a[i]; }
extern "C" __global__ void k(float* y, int s) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[i] = i * s;
  y[threadIdx.x] = pick(a, threadIdx.x % 8);
}
"""
    y = np.zeros(20, np.float32)
    result = emulate.launch(source, "k", 1, 20, [y, 3])
    assert not result.findings
    assert y.tolist() == [3 * (i % 8) for i in range(20)]


def test_what_is_read_of_a_local_array_without_a_value_is_a_note_and_nan() -> None:
    """No error: compilers load local arrays ahead, as in the ladder's int8_attention/01."""
    source = """
__device__ __noinline__ float pick(const float* a, int i) { return a[i]; }
extern "C" __global__ void k(float* y, int n) {
  float a[8];
  for (int i = 0; i < n; ++i) a[i] = i;
  y[threadIdx.x] = pick(a, threadIdx.x);
}
"""
    y = np.zeros(8, np.float32)
    result = emulate.launch(source, "k", 1, 8, [y, 5])
    assert [f.kind for f in result.notes] == ["uninitialised local"]
    assert not result.errors
    assert y[:5].tolist() == [0, 1, 2, 3, 4] and np.isnan(y[5:]).all()


def test_limits() -> None:
    source = 'extern "C" __global__ void k(int* x) { while (true) x[threadIdx.x] += 1; }'
    with pytest.raises(UnsupportedError, match="has taken 500 steps"):
        emulate.launch(
            source, "k", 1, 32, [np.zeros(32, np.int32)], limits=emulate.Limits(steps=500)
        )


def test_reads_before_a_later_write_of_another_block_are_seen() -> None:
    """Reads of a buffer are recorded only once it turns out to be written too."""
    source = """
extern "C" __global__ void k(volatile int* x, int* y) {
  if (blockIdx.x == 0) y[threadIdx.x] = ((int*)x)[threadIdx.x];
  if (blockIdx.x == 1) ((int*)x)[threadIdx.x] = 5;
}
"""
    x, y = np.zeros(32, np.int32), np.zeros(32, np.int32)
    result = emulate.launch(source, "k", 2, 32, [x, y])
    (found,) = result.errors
    assert (found.kind, {found.line, found.other_line}) == ("race", {3, 4})


def test_stores_of_one_value_are_a_note() -> None:
    source = 'extern "C" __global__ void k(int* x, int c) { x[0] = c; }'
    result = emulate.launch(source, "k", 2, 32, [np.zeros(1, np.int32), 7])
    assert not result.errors
    assert {f.kind for f in result.notes} == {"same value"}


def test_an_early_return_is_a_note_and_going_on_an_error() -> None:
    early = """
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  if (t >= n) return;
  s[t] = x[t];
  __syncthreads();
  y[t] = s[n - 1 - t];
}
"""
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    result = emulate.launch(early, "k", 1, 64, [x, y, 50])
    assert not result.errors and [f.kind for f in result.notes] == ["early exit"]
    assert y[:50].tolist() == list(range(49, -1, -1))


def test_blocks_that_wait_for_each_other_run_together() -> None:
    source = """
extern "C" __global__ void k(int* arrived, int* y, int blocks) {
  if (threadIdx.x == 0) {
    y[blockIdx.x] = blockIdx.x;
    __threadfence();
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) < blocks) {}
    __threadfence();
    y[blocks + blockIdx.x] = y[(blockIdx.x + 1) % blocks];
  }
}
"""
    blocks = 40  # more than one batch of 1024 threads each
    arrived, y = np.zeros(1, np.int32), np.zeros(2 * blocks, np.int32)
    result = emulate.launch(source, "k", blocks, 1024, [arrived, y, blocks])
    assert not result.errors, str(result.errors[0])
    assert y[blocks:].tolist() == [(b + 1) % blocks for b in range(blocks)]


def test_a_diverged_shuffle_waits_for_the_rest_of_its_warp() -> None:
    source = """
extern "C" __global__ void k(int* y) {
  const int t = threadIdx.x;
  int v = t, turns = t % 3;
  for (int i = 0; i < turns; ++i) v += 10;
  v = __shfl_xor_sync(0xffffffffu, v, 1);
  y[t] = v;
}
"""
    y = np.zeros(32, np.int32)
    result = emulate.launch(source, "k", 1, 32, [y])
    assert not result.findings
    assert y.tolist() == [(t ^ 1) + 10 * ((t ^ 1) % 3) for t in range(32)]


def test_an_index_that_wraps_is_found_though_it_lands_inside() -> None:
    source = """
extern "C" __global__ void k(const int* x, int* y, int row, int pitch) {
  const int i = row * pitch + threadIdx.x;
  y[threadIdx.x] = x[i];
}
extern "C" __global__ void hash(const int* x, int* y, int a) {
  const int h = (threadIdx.x + 7) * a;
  y[threadIdx.x] = x[h & 31];
}
"""
    x, y = np.arange(64, dtype=np.int32), np.zeros(32, np.int32)
    result = emulate.launch(source, "k", 1, 32, [x, y, 65536, 65536])
    assert [(f.kind, f.line) for f in result.errors] == [("index overflow", 3)]
    assert not emulate.launch(source, "k", 1, 32, [x, y, 2, 16]).findings
    assert not emulate.launch(source, "hash", 1, 32, [x, y, 0x7FFFFFF1]).findings


def test_sums_that_differ_in_the_last_place_are_one_value_and_thread_numbers_are_not() -> None:
    source = """
extern "C" __global__ void k(const float* x, float* y, int* z) {
  y[0] = x[threadIdx.x];
  z[0] = threadIdx.x;
}
"""
    x = np.nextafter(np.full(2, 3, np.float32), np.float32([3, 4]))
    args = [x, np.zeros(1, np.float32), np.zeros(1, np.int32)]
    result = emulate.launch(source, "k", 1, 2, args)
    assert [(f.kind, f.line) for f in result.findings] == [("race", 4), ("same value", 3)]


def test_a_changed_header_is_compiled_again(tmp_path: Path) -> None:
    source, header = tmp_path / "fill.cu", tmp_path / "value.cuh"
    source.write_text(
        '#include "value.cuh"\n'
        'extern "C" __global__ void fill(int* y) { y[threadIdx.x] = VALUE; }\n'
    )
    for value in (3, 4):
        header.write_text(f"#define VALUE {value}\n")
        y = np.zeros(8, np.int32)
        emulate.launch(source, "fill", 1, 8, [y])
        assert (y == value).all()
