#include <cmath>
#include <cstdint>

extern "C" void layernorm(const float* x, const float* w, const float* b, float* y, float* mean,
                          float* rstd, int64_t rows, int64_t columns, float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    float centre = 0.0f, squares = 0.0f;
    for (int64_t c = 0; c < columns; ++c) {
      const float off = row[c] - centre;
      centre += off * (1.0f / static_cast<float>(c + 1));
      squares += off * (row[c] - centre);
    }
    mean[r] = centre;
    rstd[r] = 1.0f / std::sqrt(squares / static_cast<float>(columns) + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[r * columns + c] = (row[c] - centre) * rstd[r] * w[c] + b[c];
  }
}
