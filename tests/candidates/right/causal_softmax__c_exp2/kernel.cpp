#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* p, int64_t B, int64_t S, int64_t T, float scale) {
  const float factor = scale * 1.44269504f;
#pragma omp parallel for
  for (int64_t r = 0; r < B * S; ++r) {
    const float* row = x + r * T;
    float* out = p + r * T;
    const int64_t last = r % S + T - S;
    float top = -INFINITY, total = 0.0f;
    for (int64_t j = 0; j <= last; ++j) top = std::fmax(top, row[j]);
    for (int64_t j = T - 1; j >= 0; --j) {
      out[j] = j > last ? 0.0f : std::exp2(std::fma(row[j], factor, -top * factor));
      total += out[j];
    }
    const float share = 1.0f / total;
    for (int64_t j = 0; j < T; ++j) out[j] *= share;
  }
}
