"""The toolchains: what they build, what they say when they cannot, and the cache."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelproof.build import c_library, compile_library, prepare, torch_op
from kernelproof.build.cache import build_root, cached, content_key
from kernelproof.build.inline import _declaration, _missing_declarations
from kernelproof.cuda import Kernel
from kernelproof.errors import CompileError, UnsupportedError

OP = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
static Tensor twice(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  const float* p = x.const_data_ptr<float>();
  float* q = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) q[i] = FACTOR * p[i];
  return y;
}
STABLE_TORCH_LIBRARY(kp_test_twice, m) { m.def("twice(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(kp_test_twice, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
"""

CUDA_OP = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
__global__ void twice_kernel(const float* x, float* y, long n) {
  long i = blockIdx.x * long(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
static torch::stable::Tensor twice(const torch::stable::Tensor& x) {
  auto y = torch::stable::empty_like(x);
  void* stream = nullptr;
  aoti_torch_get_current_cuda_stream(x.get_device(), &stream);
  twice_kernel<<<(x.numel() + 255) / 256, 256, 0, (cudaStream_t)stream>>>(
      x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel());
  return y;
}
STABLE_TORCH_LIBRARY(kp_test_cuda_twice, m) { m.def("twice(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(kp_test_cuda_twice, CUDA, m) { m.impl("twice", TORCH_BOX(&twice)); }
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_stable_abi_op_builds_and_runs(tmp_path: Path) -> None:
    op = torch_op("kp_test_twice", [write(tmp_path / "op.cpp", OP)], cflags=["-DFACTOR=2"])
    x = torch.randn(5)
    assert torch.equal(op.twice(x), 2 * x)


def test_a_flag_or_a_header_changes_the_build(tmp_path: Path) -> None:
    header = write(tmp_path / "factor.h", "#define FACTOR 2\n")
    source = write(tmp_path / "op.cpp", '#include "factor.h"\n' + OP)
    first = compile_library("kp_test_twice", [source])
    assert compile_library("kp_test_twice", [source]) == first
    assert compile_library("kp_test_twice", [source], cflags=["-DOTHER"]) != first
    header.write_text("#define FACTOR 3\n")
    assert compile_library("kp_test_twice", [source]) != first


def test_a_compile_error_has_the_compilers_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "bad.cpp", 'extern "C" int f() {\n  return undeclared_name;\n}\n')
    for build in (lambda: c_library([source]), lambda: compile_library("bad", [source])):
        with pytest.raises(CompileError) as caught:
            build()
        assert (
            "bad.cpp:2:10: error: 'undeclared_name' was not declared"
            in caught.value.detail.replace("\u2018", "'").replace("\u2019", "'")
        )
    with pytest.raises(CompileError, match="does not exist"):
        c_library([tmp_path / "none.cpp"])


def test_c_library_uses_all_threads_of_torch(tmp_path: Path) -> None:
    source = write(
        tmp_path / "threads.cpp",
        '#include <omp.h>\nextern "C" int threads() { int n = 0;\n'
        "#pragma omp parallel\n#pragma omp single\nn = omp_get_num_threads();\nreturn n; }\n",
    )
    library = c_library([source])
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert library.threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_compiles_without_a_gpu(arch: str) -> None:
    source = "template <class T, int N> __global__ void f(T* x) { x[threadIdx.x] *= N; }"
    code = Kernel(source, "f<float, 3>").compile(arch)
    assert code[:4] == b"\x7fELF"


def test_nvrtc_errors_name_the_users_file(tmp_path: Path) -> None:
    source = write(tmp_path / "mine.cu", "__global__ void f() {\n  int x = y;\n}\n")
    with pytest.raises(CompileError) as caught:
        Kernel(source, "f").compile("sm_90a")
    assert "mine.cu(2): error" in caught.value.detail


def test_a_cuda_launch_without_a_gpu_is_unsupported() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    kernel = Kernel('extern "C" __global__ void f(float* x) {}', "f")
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        kernel(torch.zeros(1), grid=1, block=1)


def test_cuda_through_the_stable_abi_compiles_where_nvcc_is(tmp_path: Path) -> None:
    source = write(tmp_path / "op.cu", CUDA_OP)
    try:
        library = compile_library("kp_test_cuda_twice", [source], arch="sm_90")
    except UnsupportedError as error:
        assert "nvcc" in str(error)  # the machine has no toolkit, and that is what is said
        return
    assert library.is_file()


def test_cuda_through_the_stable_abi_needs_a_gpu_to_run(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UnsupportedError, match=r"nvcc|GPU"):
        torch_op("kp_test_cuda_twice", [write(tmp_path / "op.cu", CUDA_OP)])


@pytest.mark.gpu
def test_cuda_through_the_stable_abi_runs(tmp_path: Path) -> None:
    op = torch_op("kp_test_cuda_twice", [write(tmp_path / "op.cu", CUDA_OP)])
    x = torch.randn(1000, device="cuda")
    assert torch.equal(op.twice(x), 2 * x)


def test_keys_keep_their_parts_apart() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("a", b"b") == content_key("a", "b")


def test_a_failed_build_leaves_nothing_behind() -> None:
    key = content_key("test", "fails")

    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached(key, fill)
    assert not [p for p in build_root().iterdir() if key in p.name and p.is_dir()]
    folder, was_there = cached(key, lambda f: (f / "whole").write_text("x") and None)
    assert not was_there and (folder / "whole").is_file()


def _compete(key: str) -> bool:
    import os
    import time

    def fill(folder: Path) -> None:
        (folder / "by").write_text(str(os.getpid()))
        time.sleep(0.2)

    return cached(key, fill)[1]


def test_concurrent_builds_build_once() -> None:
    key = content_key("test", "race")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(_compete, [key] * 4)
    assert sorted(found) == [False, True, True, True]


def test_missing_declarations_are_written_out() -> None:
    cuda = (
        "__global__ void k() {}\n\ntorch::Tensor scale(torch::Tensor x,\n   double f) { return x; }"
    )
    assert _declaration("scale", [cuda]) == "torch::Tensor scale(torch::Tensor x, double f);"
    assert "must declare" in _missing_declarations(["scale"], [cuda])


def test_an_unknown_language_is_a_fault() -> None:
    with pytest.raises(KeyError):
        prepare("cobol")


def test_triton_is_asked_for_where_it_is_missing() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import importlib.util as u; u.find_spec = lambda name: None\n"
        "from kernelproof.build import prepare\nfrom kernelproof.errors import UnsupportedError\n"
        "try: prepare('triton')\nexcept UnsupportedError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "kernelproof[triton]" in out.stdout
