#include <cmath>
#include <cstdint>

extern "C" void rms_norm(const float* x, const float* w, float* y, int64_t rows, int64_t columns,
                         float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    double squares = 0.0;
    for (int64_t c = 0; c < columns; ++c) squares += static_cast<double>(row[c]) * row[c];
    const float scale = 1.0f / std::sqrt(static_cast<float>((squares + eps) / columns));
    for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = row[c] * scale * w[c];
  }
}
