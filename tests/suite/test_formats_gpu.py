"""Solutions in CUDA of flashinfer-bench's form, which bind to tvm-ffi: built, judged and timed."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelproof.errors import UnsupportedError
from kernelproof.pipeline import Options, judge
from kernelproof.suite import formats
from kernelproof.suite.model import Item
from kernelproof.types import Record

HERE = Path(__file__).parent / "formats" / "flashinfer"
# As solutions of flashinfer-bench launch: on the stream that tvm-ffi has from PyTorch.
SOURCE = r"""
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "rows.h"

__global__ void gather_rows(const float* table, const int64_t* index, float* out, int64_t rows,
                            int64_t picked) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= picked * D) return;
  const int64_t row = (index[i / D] % rows + rows) % rows;
  out[i] = table[row * D + i % D];
}

void gather(tvm::ffi::TensorView table, tvm::ffi::TensorView index, tvm::ffi::TensorView out) {
  TVM_FFI_ICHECK_EQ(table.size(1), D) << "rows of another length";
  TVM_FFI_ICHECK(table.IsContiguous() && index.IsContiguous() && out.IsContiguous());
  const DLDevice device = table.device();
  TVM_FFI_ICHECK_EQ(device.device_type, kDLCUDA) << "not on a GPU";
  const int64_t picked = index.size(0), count = picked * D;
  if (count == 0) return;
  auto stream = static_cast<cudaStream_t>(
      TVMFFIEnvGetStream(device.device_type, device.device_id));
  gather_rows<<<static_cast<unsigned>((count + 127) / 128), 128, 0, stream>>>(
      static_cast<const float*>(table.data_ptr()), static_cast<const int64_t*>(index.data_ptr()),
      static_cast<float*>(out.data_ptr()), table.size(0), picked);
  TVM_FFI_ICHECK_EQ(cudaGetLastError(), cudaSuccess) << "no launch";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather, gather);
"""
# What a change of the text makes of it.
CHANGES = {
    "right": ("", "", "pass"),
    "last_row_missing": ("i >= picked * D)", "i >= (picked - 1) * D)", "wrong"),
    "negative_index": ("(index[i / D] % rows + rows) % rows", "abs(index[i / D]) % rows", "wrong"),
    "does_not_compile": ("return;\n  const int64_t row", "return\n  const int64_t row",
                         "compile_error"),
    "refuses": ("TVM_FFI_ICHECK_EQ(table.size(1), D)", "TVM_FFI_ICHECK_EQ(table.size(1), D + 1)",
                "crash"),
}  # fmt: skip

needs_tvm = pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None, reason="needs tvm-ffi (extra `tvm`)"
)


def text(change: str) -> str:
    before, after, _ = CHANGES[change]
    assert not before or SOURCE.count(before) == 1
    return SOURCE.replace(before, after) if before else SOURCE


def dataset(folder: Path, language: str = "cuda") -> Path:
    """Definition and workloads of a gather, with a solution for each change."""
    for part in ("definitions/gather", "workloads/gather"):
        shutil.copytree(HERE / part, folder / part)
    there = folder / "solutions/us/gather/gather_d16"
    there.mkdir(parents=True)
    for name in CHANGES:
        spec = {
            "language": language, "target_hardware": ["NVIDIA_H200"], "binding": "tvm-ffi",
            "entry_point": "kernel.cu::gather", "destination_passing_style": True,
        }  # fmt: skip
        sources = [
            {"path": "rows.h", "content": "constexpr int D = 16;\n"},
            {"path": "kernel.cu", "content": text(name)},
        ]
        one = {"name": name, "definition": "gather_d16", "author": "us", "spec": spec,
               "sources": sources}  # fmt: skip
        (there / f"{name}.json").write_text(json.dumps(one))
    return folder


def judged(item: Item, **more: Any) -> Record:
    own = {k: v for k, v in item.options.items() if k != "compat"}
    assert item.candidate is not None
    return judge(item.problem, item.candidate, options=Options(**{**own, **more}))


@needs_tvm
@pytest.mark.slow
def test_the_sources_compile(tmp_path: Path) -> None:
    from tvm_ffi import libinfo

    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    (tmp_path / "rows.h").write_text("constexpr int D = 16;\n")
    for name, (_, _, status) in CHANGES.items():
        file = tmp_path / f"{name}.cu"
        file.write_text(text(name))
        made = subprocess.run(
            [nvcc, "-std=c++17", "-arch=sm_90", f"-I{libinfo.find_include_path()}",
             f"-I{libinfo.find_dlpack_include_path()}", "-cubin", "-o", str(tmp_path / "a.cubin"),
             str(file)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (made.returncode == 0) == (status != "compile_error"), made.stderr


def test_without_a_gpu_it_is_said(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    item = formats.load(dataset(tmp_path)).items[0]
    record = judged(item, device="cpu", level="quick", seeds=1)
    assert record.status == UnsupportedError.status
    wanted = "CUDA sources" if importlib.util.find_spec("tvm_ffi") else "apache-tvm-ffi"
    assert wanted in record.verdict.message


@pytest.mark.gpu
@needs_tvm
@pytest.mark.parametrize("change", CHANGES)
def test_solutions_in_cuda(tmp_path: Path, change: str) -> None:
    (item,) = (i for i in formats.load(dataset(tmp_path)).items if i.name.endswith(f"/{change}"))
    record = judged(item, device="cuda", level="quick", seeds=2)
    assert record.status == CHANGES[change][2], record.verdict.message
    told = f"{record.verdict.message}\n{record.verdict.detail}"
    if change == "refuses":
        assert "rows of another length" in told
    if change == "does_not_compile":
        assert re.search(r"kernel\.cu\(\d+\): error", told), told


@pytest.mark.gpu
@needs_tvm
def test_a_solution_in_cuda_is_timed(tmp_path: Path) -> None:
    from kernelproof.suite import runs

    folder = dataset(tmp_path / "data", "cuda_cpp")
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(folder / "solutions/us/gather/gather_d16/right.json", only)
    state = runs.start(
        folder, only, options={"level": "quick", "seeds": 1, "baselines": ["eager"], "rounds": 5},
        means=runs.Means(gpus="0", limit=240.0), store=f"sqlite:///{tmp_path / 's'}",
    )  # fmt: skip
    (result,) = state.results
    assert result.status == "pass", result.message
    assert result.time is not None and 0 < result.time[1] <= result.time[0] <= result.time[2]
