#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void scan(const float* x, float* y, int64_t rows, int64_t length) {
  const int64_t blocks = (length + 63) / 64;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> carry(blocks + 1, 0.0f);
#pragma omp parallel for schedule(static, 1) num_threads(4)
    for (int64_t b = 0; b < blocks; ++b) {
      double running = carry[b];
      for (int64_t t = b * 64; t < (b + 1) * 64 && t < length; ++t) {
        running += x[row * length + t];
        y[row * length + t] = static_cast<float>(running);
      }
      carry[b + 1] = static_cast<float>(running);
    }
  }
}
