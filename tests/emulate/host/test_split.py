"""Host code and device code out of one source, every line in its place."""

from __future__ import annotations

import pytest

from kernelproof.emulate.host.signature import kernel_name
from kernelproof.emulate.host.split import host_only, line_of, split
from kernelproof.emulate.host.tokens import items, tokens
from kernelproof.errors import UnsupportedError

SOURCE = """
#include <torch/extension.h>
#include <cuda_fp16.h>
namespace {
constexpr int TILE = 16;
__constant__ float weights[5];
__device__ float twice(float x) { return __fmaf_rn(x, 2.0f, 0.0f); }
struct Add {
  int n;
  Add(int n) : n{n} {}
  __device__ float operator()(float x) const { return __expf(x) + n; }
};
template <typename T, int N = 4>
__global__ void __launch_bounds__(128)
    scale(const T* __restrict__ x, T* y, Add add, const float, T values[N]) {
  __shared__ float tile[TILE];
  y[threadIdx.x] = add(twice(x[threadIdx.x]));
}
}  // namespace
torch::Tensor run(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "no <<<CUDA>>> tensor; is_cuda() is false");
  auto y = torch::empty(x.sizes(), x.options().device(torch::kCUDA));
  const char* text = R"(k<<<1, 2>>>(3))";
  if (x.numel() > 0)
    scale<float, 8><<<dim3(x.size(0), (4 + 3) / 2), 128,
                      sizeof(float) * 3>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), Add(1), 2.0f, nullptr);
  return y;
}
"""


def test_both_sides_keep_their_lines() -> None:
    sides = split(SOURCE, "file.cu")
    assert sides.host.count("\n") == SOURCE.count("\n") == sides.device.count("\n")
    number = next(n for n, line in enumerate(SOURCE.splitlines()) if "return y;" in line)
    assert "return y;" in sides.host.splitlines()[number]
    number = next(n for n, line in enumerate(SOURCE.splitlines()) if "add(twice" in line)
    assert "add(twice" in sides.device.splitlines()[number]


def test_the_device_has_no_host_code_and_the_host_no_device_code() -> None:
    sides = split(SOURCE, "file.cu")
    for word in ("torch", "TORCH_CHECK", "run("):
        assert word not in sides.device
    for word in ("cuda_fp16.h", "TILE = 16", "__expf", "twice(float", "weights[5]", "Add(int n)"):
        assert word in sides.device
    for word in ("threadIdx", "__expf", "__fmaf_rn", "__shared__"):
        assert word not in sides.host
    assert "Add(int n) : n{n} {}" in sides.host


def test_a_kernel_becomes_a_stub_and_a_launch_a_call() -> None:
    host = " ".join(split(SOURCE, "file.cu").host.split())
    assert "const float unnamed_3, T values[N]) { ::kernelproof::enter(" in host
    assert '"x, y, add, unnamed_3, values", "T, N", x, y, add, unnamed_3, values);' in host
    assert "(::kernelproof::configure(25, dim3(x.size(0), (4 + 3) / 2), 128," in host
    assert "), scale<float, 8>( x.data_ptr<float>()" in host and "nullptr));" in host
    assert '("weights", &weights' not in host
    assert 'KERNELPROOF_UNIT, "weights", &weights, sizeof(weights)' in host


def test_the_device_is_the_cpu_but_for_text() -> None:
    host = split(SOURCE, "file.cu").host
    assert "x.is_cpu()" in host and "torch::kCPU" in host
    assert '"no <<<CUDA>>> tensor; is_cuda() is false"' in host
    assert 'R"(k<<<1, 2>>>(3))"' in host
    assert host_only("TORCH_LIBRARY_IMPL(ns, CUDA, m) {}") == "TORCH_LIBRARY_IMPL(ns, CPU, m) {}"
    assert host_only('auto d = torch::Device("cuda:0");') == 'auto d = torch::Device("cpu");'


def test_launches_with_spaces_in_their_brackets() -> None:
    host = split("void f() { k<int> << <g(1, 2), 3 >> > (x); }", "a.cu").host
    assert "(::kernelproof::configure(1, g(1, 2), 3 ), k<int> (x));" in host


def test_launches_in_macros() -> None:
    macro = "#define RUN(K, n) \\\n  K<n><<<1, n>>>(x)\nvoid f() { RUN(k, 2); }\n"
    assert "(::kernelproof::configure(2, 1, n), K<n>(x))" in split(macro, "a.cu").host


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n#include <cublas_v2.h>\n", "a.cu:2: cublas_v2 is not emulated"),
        ("void f() {\n  auto g = [] __device__ (int i) {};\n}", "a.cu:2: device lambdas"),
        ("__global__ void k() {\n\n  other<<<1, 1>>>();\n}", "a.cu:3: launches by kernels"),
        ('#line 40 "b.py"\n\n#include <cudnn.h>\n', "a.cu:41: cudnn is not emulated"),
    ],
)
def test_what_is_not_taken_over_is_named_with_its_line(source: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        split(source, "a.cu")


@pytest.mark.parametrize(
    ("signature", "templates", "name"),
    [
        ("void scale(const float*, int)", "", "scale"),
        ("void ns::scale(T*) [with T = float]", "T", "ns::scale<float>"),
        ("void {anonymous}::k(T*, int64_t) [with T = c10::Half; int N = 4; int64_t = long int]",
         "T, N", "k<c10::Half, 4>"),
        ("void k(F, Ts ...) [with F = {anonymous}::Add<int, 3>; Ts = {float*, int}]", "F, Ts",
         "k<Add<int, 3>, float*, int>"),
        ("void k(void (*)(int)) [with bool B = true]", "B", "k<true>"),
    ],
)  # fmt: skip
def test_kernel_names_come_from_signatures(signature: str, templates: str, name: str) -> None:
    assert kernel_name(signature, templates) == name


def test_tokens_are_the_whole_text() -> None:
    code = tokens(SOURCE)
    assert "".join(t.text for t in code) == SOURCE
    kinds = [(i.kind, i.head[0].text.split("<")[0]) for i in items(code, 0, len(code))]
    assert [k for k, _ in kinds] == ["directive", "directive", "namespace", "function"]


def test_lines_follow_the_directive() -> None:
    assert line_of("a\nb\nc", 4) == 3
    assert line_of('a\n#line 9 "f"\nb\nc', 16) == 10
