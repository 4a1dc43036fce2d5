#include <cmath>
#include <cstdint>

extern "C" void axpby(const float* x, const float* z, float* y, int64_t rows, int64_t columns,
                      int64_t valid, float alpha, float beta, int64_t xr, int64_t xc, int64_t zr,
                      int64_t zc) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const float value = x[r * xr + c * xc];
      y[r * columns + c] =
          c < valid ? std::fma(alpha, value, beta * z[r * zr + c * zc]) : value;
    }
}
