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

constexpr int kLanes = 16;

static float joined(float* lane) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

extern "C" void layernorm(const float* x, const float* w, const float* b, float* y, float* mean,
                          float* rstd, int64_t rows, int64_t columns, float eps) {
  const float share = 1.0f / static_cast<float>(columns);
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    float sum[kLanes] = {}, squares[kLanes] = {};
    for (int64_t c = 0; c < columns; ++c) sum[c % kLanes] += row[c];
    mean[r] = joined(sum) * share;
    for (int64_t c = 0; c < columns; ++c) {
      const float off = row[c] - mean[r];
      squares[c % kLanes] += off * off;
    }
    rstd[r] = inverse_root(joined(squares) * share + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[r * columns + c] = (row[c] - mean[r]) * rstd[r] * w[c] + b[c];
  }
}
