#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* p, float* lse, int64_t rows, int64_t columns) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    float top = -INFINITY, total = 0.0f;
    for (int64_t c = 0; c < columns; ++c) {
      top = std::fmax(top, x[r * columns + c]);
      total += std::exp(x[r * columns + c] - top);
    }
    lse[r] = top + std::log(total);
    for (int64_t c = 0; c < columns; ++c)
      p[r * columns + c] = std::exp(x[r * columns + c] - lse[r]);
  }
}
