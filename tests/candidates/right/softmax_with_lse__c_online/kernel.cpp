#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* p, float* lse, int64_t rows, int64_t columns) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    float top = -INFINITY, total = 0.0f;
    for (int64_t c = 0; c < columns; ++c) {
      const float value = x[r * columns + c];
      if (value > top) {
        total *= std::exp(top - value);
        top = value;
      }
      total += std::exp(value - top);
    }
    lse[r] = top + std::log(total);
    for (int64_t c = 0; c < columns; ++c)
      p[r * columns + c] = std::exp(x[r * columns + c] - top) / total;
  }
}
