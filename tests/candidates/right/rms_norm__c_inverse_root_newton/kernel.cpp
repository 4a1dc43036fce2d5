#include <cmath>
#include <cstdint>
#include <cstring>

// 12 bits from a table, say, and one Newton step.
static inline float inverse_root(float x) {
  float y = 1.0f / std::sqrt(x);
  uint32_t bits;
  std::memcpy(&bits, &y, 4);
  bits &= 0xfffff800u;
  std::memcpy(&y, &bits, 4);
  return y * (1.5f - 0.5f * x * y * y);
}

extern "C" void rms_norm(const float* x, const float* w, float* y, int64_t rows, int64_t columns,
                         float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    float squares = 0.0f;
    for (int64_t c = 0; c < columns; ++c) squares += x[r * columns + c] * x[r * columns + c];
    const float scale = inverse_root(squares / static_cast<float>(columns) + eps);
    for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = x[r * columns + c] * (scale * w[c]);
  }
}
