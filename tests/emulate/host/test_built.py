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
        {"twice": "", "count": ""}, [], [], [], [],
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
    assert any(build_root().iterdir())
