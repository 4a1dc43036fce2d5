"""Candidates whose host code is C++, built and judged on a machine without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.build.cache import build_root
from kernelproof.build.inline import Inline
from kernelproof.emulate.host.taking import take_inline
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.errors import UnsupportedError
from kernelproof.pipeline import Options, judge

FIXTURES = Path(__file__).parents[2] / "candidates" / "gpu"


def judged(problem: str, name: str, **options):
    return judge(problem, FIXTURES / name, options=Options(device="cpu", seed=1, **options))


def test_an_operator_of_the_stable_abi() -> None:
    record = judged("cumsum", "cumsum__cuda_stable", cases=("default", "odd"))
    assert record.status == "pass", record.verdict.detail
    assert record.verdict.evidence == "emulated"


def test_a_race_in_it_has_the_line_of_the_source(tmp_path: Path) -> None:
    folder = FIXTURES / "cumsum__cuda_stable"
    (tmp_path / "candidate.py").write_text((folder / "candidate.py").read_text())
    text = (folder / "kernel.cu").read_text().replace("if (t < length) y[t]", "y[0]")
    (tmp_path / "kernel.cu").write_text(text)
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "y[0] =" in words)
    record = judge("cumsum", tmp_path, options=Options(device="cpu", seed=1, cases=("one_row",)))
    assert record.status == "wrong"
    told = "\n".join(c.message for c in record.verdict.checks)
    assert f"kernel.cu:{line}: race: " in told


INLINE = r"""
__constant__ float factor;
__device__ int calls;
struct Job { const float* x; float* y; int n; };
template <int N>
__global__ void scale(Job job) {
  extern __shared__ float part[];
  const int i = blockIdx.x * N + threadIdx.x;
  part[threadIdx.x] = i < job.n ? job.x[i] : 0.0f;
  if (i < job.n) job.y[i] = factor * part[threadIdx.x];
  if (i == 0) atomicAdd(&calls, 1);
}
torch::Tensor twice(torch::Tensor x, int64_t shared) {
  TORCH_CHECK(x.is_cuda(), "not on a GPU");
  const float two = 2.0f;
  cudaMemcpyToSymbol(factor, &two, sizeof(two));
  auto y = torch::empty_like(x);
  Job job{x.data_ptr<float>(), y.data_ptr<float>(), static_cast<int>(x.numel())};
  if (shared > 50000 && shared % 2 == 0)
    cudaFuncSetAttribute(scale<32>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  scale<32><<<(x.numel() + 31) / 32, 32, shared>>>(job);
  return y;
}
__global__ void both(Job job) {
  __shared__ float kept[5000];
  extern __shared__ float part[];
  for (int i = threadIdx.x; i < 5000; i += 32) kept[i] = job.x[i % job.n];
  part[threadIdx.x] = job.x[threadIdx.x];
  __syncthreads();
  job.y[threadIdx.x] = part[threadIdx.x] + kept[job.n + 31 - threadIdx.x];
}
void beside(torch::Tensor x, torch::Tensor y, int64_t shared, int64_t asked) {
  Job job{x.data_ptr<float>(), y.data_ptr<float>(), static_cast<int>(x.numel())};
  if (asked)
    cudaFuncSetAttribute(both, cudaFuncAttributeMaxDynamicSharedMemorySize, asked);
  both<<<1, 32, shared>>>(job);
}
int64_t count() {
  int found = 0;
  cudaMemcpyFromSymbol(&found, calls, sizeof(found));
  return found;
}
"""


@pytest.mark.slow
def test_host_code_of_load_inline(tmp_path: Path) -> None:
    recorder = Recorder()
    given = Inline(
        tmp_path / "mine.py", "kp_test_host", [], [f'#line 7 "{tmp_path}/mine.py"\n{INLINE}'],
        {"twice": "", "beside": "", "count": ""}, [], [], [], [],
    )  # fmt: skip
    module = take_inline(recorder.host, given)
    x = torch.randn(100)
    with standing_in(recorder):
        y = module.twice(x, 128)
        assert torch.equal(y, 2 * x)
        assert module.count() == 1
        # A view: the kernel may not leave it, though the storage goes on.
        assert torch.equal(module.twice(x[10:50], 128), 2 * x[10:50])
    assert [r.kernel for r in recorder.taken()] == ["scale<32>", "scale<32>"]
    with standing_in(recorder):
        module.twice(x, 60_001)
        assert module.count() == 2
        module.twice(x, 60_002)
        assert module.count() == 3
    refused, taken = recorder.taken()
    line = 7 + next(n for n, t in enumerate(INLINE.splitlines()) if "scale<32><<<" in t)
    assert re.match(rf"mine.py:{line}: launch refused: 60001 bytes", str(refused.errors[0]))
    assert not taken.errors
    with standing_in(recorder), pytest.raises(UnsupportedError, match="163 KiB"):
        module.twice(x, 200_000)
    x, y = torch.randn(32), torch.zeros(32)
    with standing_in(recorder):
        module.beside(x, y, 29_153, 0)
        assert not y.any()
        module.beside(x, y, 29_152, 0)
        assert torch.equal(y, x + x.flip(0))
        module.beside(x, y, 40_000, 39_999)
        module.beside(x, y, 40_000, 40_000)
        module.beside(x, y, 16_384, 8192)  # it lowers the limit too
        module.beside(x, y, 8192, 0)
    found = [len(r.errors) for r in recorder.taken()]
    assert found == [1, 0, 1, 0, 1, 0]
    assert any(build_root().iterdir())


HOPPER = r"""
#include <cuda.h>
static __device__ unsigned place(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// Each block of a pair loads half of a tile, by its map, and takes the sum from the other's half.
__global__ void pairs(const __grid_constant__ CUtensorMap map, float* y) {
  __shared__ alignas(128) float tile[4 * 32];
  __shared__ unsigned long long full;
  unsigned rank, other;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(place(&full)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(place(&full)) :
        "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :: "r"(place(tile)), "l"(&map), "r"(place(&full)), "r"(0), "r"(4 *
                     (int)blockIdx.x) : "memory");
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; "
                 "@!p bra L; }"
                 :: "r"(place(&full)) : "memory");
  }
  __syncthreads();
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(place(tile)), "r"(rank ^
      1));
  float sum = 0, x;
  for (int i = 0; i < 4; ++i) {
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(other + 4 * (32 * i +
        threadIdx.x)) : "memory");
    sum += x;
  }
  y[32 * blockIdx.x + threadIdx.x] = sum;
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// Every block waits for all others, and then takes what the next one has stored.
__global__ void around(float* stored, float* y, int* count) {
  if (threadIdx.x == 0) {
    stored[blockIdx.x] = blockIdx.x + 1.0f;
    __threadfence();
    atomicAdd(count, 1);
    while (atomicAdd(count, 0) < (int)gridDim.x) {}
    y[blockIdx.x] = ((volatile float*)stored)[(blockIdx.x + 1) % gridDim.x];
  }
}
torch::Tensor together(int64_t blocks) {
  auto stored = torch::empty({blocks}), y = torch::empty({blocks});
  auto count = torch::zeros({1}, torch::kInt32);
  float *a = stored.data_ptr<float>(), *b = y.data_ptr<float>();
  int* c = count.data_ptr<int>();
  void* given[] = {&a, &b, &c};
  TORCH_CHECK(cudaLaunchCooperativeKernel(around, dim3(blocks), dim3(32), given) == cudaSuccess,
              "no launch");
  return y;
}
torch::Tensor sums(torch::Tensor x) {
  auto y = torch::empty({x.size(0) / 4, 32}, x.options());
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
      &status);
  auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  CUtensorMap map;
  cuuint64_t sizes[] = {32, (cuuint64_t)x.size(0)}, strides[] = {128};
  cuuint32_t box[] = {32, 4}, steps[] = {1, 1};
  CUresult made = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x.data_ptr(), sizes, strides,
      box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(made == CUDA_SUCCESS, "the map was refused");
  box[0] = 30;
  TORCH_CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x.data_ptr(), sizes, strides, box,
      steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                     CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
              == CUDA_ERROR_INVALID_VALUE, "30 floats were taken");
  cudaLaunchConfig_t how = {};
  how.gridDim = dim3(x.size(0) / 4);
  how.blockDim = dim3(32);
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim = {2, 1, 1};
  how.attrs = attribute;
  how.numAttrs = 1;
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  TORCH_CHECK(properties.major == 9, "not on an sm_90");
  TORCH_CHECK(cudaLaunchKernelEx(&how, pairs, map, y.data_ptr<float>()) == cudaSuccess,
      "no launch");
  return y;
}
"""


@pytest.mark.slow
def test_host_code_makes_tensor_maps_and_launches_clusters(tmp_path: Path) -> None:
    recorder = Recorder()
    given = Inline(
        tmp_path / "mine.py", "kp_test_hopper", [], [f'#line 7 "{tmp_path}/mine.py"\n{HOPPER}'],
        {"sums": "", "together": ""}, [], [], [], [],
    )  # fmt: skip
    module = take_inline(recorder.host, given)
    x = torch.randn(16, 32)
    with standing_in(recorder):
        y = module.sums(x)
        assert module.together(4).tolist() == [2, 3, 4, 1]
    torch.testing.assert_close(y, x.reshape(4, 4, 32).sum(1)[[1, 0, 3, 2]])
    assert [str(f) for r in recorder.taken() for f in r.findings] == []


FILES = {
    "candidate.py": """
from pathlib import Path
import torch, torch.nn as nn
from torch.utils.cpp_extension import load
here = Path(__file__).parent
extension = load(name="axpby_files", sources=[str(here / "bind.cpp"), str(here / "kernel.cu")])
class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        return extension.axpby(x.contiguous(), z.contiguous(), alpha, beta, valid)
""",
    "bind.cpp": """
#include <torch/extension.h>
torch::Tensor axpby(torch::Tensor x, torch::Tensor z, double alpha, double beta, int64_t valid);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("axpby", &axpby); }
""",
    "kernel.cu": """
#include <torch/extension.h>
#include "step.cuh"
__global__ void scaled(const float* x, const float* z, float* y, float a, float b, int valid,
                       int n) {
  const int at = blockIdx.x * n + threadIdx.x;
  if (threadIdx.x < n) y[at] = threadIdx.x < valid ? step(a, x[at], b, z[at]) : x[at];
}
torch::Tensor axpby(torch::Tensor x, torch::Tensor z, double alpha, double beta, int64_t valid) {
  auto y = torch::empty_like(x);
  const int n = x.size(1);
  scaled<<<x.size(0), (n + 31) / 32 * 32>>>(x.data_ptr<float>(), z.data_ptr<float>(),
                                            y.data_ptr<float>(), alpha, beta, valid, n);
  return y;
}
""",
    "step.cuh": """
__device__ inline float step(float a, float x, float b, float z) { return a * x + b * z; }
""",
}


def test_files_that_load_compiles(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    options = Options(device="cpu", seed=1, cases=("default", "one_valid"))
    record = judge("axpby", tmp_path, options=options)
    assert record.status == "pass", record.verdict.detail
    assert record.verdict.evidence == "emulated"
    wrong = FILES["kernel.cu"].replace("if (threadIdx.x < n)", "")
    (tmp_path / "kernel.cu").write_text(wrong)
    record = judge("axpby", tmp_path, options=options)
    assert record.status == "wrong" and any(
        "kernel.cu:7: " in check.message for check in record.verdict.checks
    )
