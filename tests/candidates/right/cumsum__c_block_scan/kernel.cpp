#include <cmath>
#include <cstdint>
#include <vector>

constexpr int64_t kBlock = 64;

static void serial(float* y, int64_t n) {
  for (int64_t t = 1; t < n; ++t) y[t] += y[t - 1];
}

static void blocked(float* y, int64_t n) {
  if (n <= kBlock) return serial(y, n);
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<float> total(blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t size = b + 1 < blocks ? kBlock : n - b * kBlock;
    serial(y + b * kBlock, size);
    total[b] = y[b * kBlock + size - 1];
  }
  blocked(total.data(), blocks);
  for (int64_t t = kBlock; t < n; ++t) y[t] += total[t / kBlock - 1];
}

extern "C" void scan(const float* x, float* y, int64_t rows, int64_t length) {
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = 0; t < length; ++t) y[row * length + t] = x[row * length + t];
    blocked(y + row * length, length);
  }
}
