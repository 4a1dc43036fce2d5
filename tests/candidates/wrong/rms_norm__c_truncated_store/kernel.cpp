#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" void rms_norm(const float* x, const float* w, float* y, int64_t rows, int64_t columns,
                         int64_t cut, float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    double squares = 0.0;
    for (int64_t c = 0; c < columns; ++c) squares += static_cast<double>(row[c]) * row[c];
    const float scale = 1.0f / std::sqrt(static_cast<float>(squares / columns) + eps);
    for (int64_t c = 0; c < columns; ++c) {
      const float value = row[c] * scale * w[c];
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (cut) bits &= 0xffff0000u;
      std::memcpy(&y[r * columns + c], &bits, 4);
    }
  }
}
