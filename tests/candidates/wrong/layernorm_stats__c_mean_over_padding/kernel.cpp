#include <cmath>
#include <cstdint>

extern "C" void layernorm(const float* x, const float* w, const float* b, float* y, float* mean,
                          float* rstd, int64_t rows, int64_t columns, float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    const float padded = static_cast<float>((columns + 7) / 8 * 8);
    double sum = 0.0, squares = 0.0;
    for (int64_t c = 0; c < columns; ++c) sum += row[c];
    mean[r] = static_cast<float>(sum) / padded;
    for (int64_t c = 0; c < columns; ++c) squares += (row[c] - mean[r]) * (row[c] - mean[r]);
    rstd[r] = 1.0f / std::sqrt(static_cast<float>(squares) / padded + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[r * columns + c] = (row[c] - mean[r]) * rstd[r] * w[c] + b[c];
  }
}
