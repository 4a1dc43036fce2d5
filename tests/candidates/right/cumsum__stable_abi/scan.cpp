#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>

using torch::stable::Tensor;

constexpr int64_t kBlock = 128;

Tensor scan(const Tensor& input) {
  const Tensor x = torch::stable::contiguous(input);
  Tensor y = torch::stable::empty_like(x);
  const int64_t length = x.size(x.dim() - 1);
  const int64_t rows = length == 0 ? 0 : x.numel() / length;
  const auto* px = static_cast<const float*>(x.const_data_ptr());
  auto* py = static_cast<float*>(y.mutable_data_ptr());
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    double carry = 0.0;
    for (int64_t start = 0; start < length; start += kBlock) {
      const int64_t end = std::min(start + kBlock, length);
      double running = 0.0;
      for (int64_t t = start; t < end; ++t) {
        running += px[row * length + t];
        py[row * length + t] = static_cast<float>(carry + running);
      }
      carry += running;
    }
  }
  return y;
}

STABLE_TORCH_LIBRARY(kernelproof_fixture_scan, m) { m.def("scan(Tensor x) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(kernelproof_fixture_scan, CPU, m) { m.impl("scan", TORCH_BOX(&scan)); }
