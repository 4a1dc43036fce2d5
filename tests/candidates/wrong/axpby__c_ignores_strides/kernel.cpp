#include <cmath>
#include <cstdint>

extern "C" void axpby(const float* x, const float* z, float* y, int64_t rows, int64_t columns,
                      int64_t valid, float alpha, float beta) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const float value = x[r * columns + c];
      y[r * columns + c] = c < valid ? alpha * value + beta * z[r * columns + c] : value;
    }
}
