#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* p, int64_t B, int64_t S, int64_t T, float scale) {
#pragma omp parallel for
  for (int64_t r = 0; r < B * S; ++r) {
    const float* row = x + r * T;
    float *out = p + r * T, top = -INFINITY, total = 0.0f;
    const int64_t visible = r % S + T - S + 1;
    for (int64_t j = 0; j < visible; ++j) top = std::fmax(top, row[j] * scale);
    for (int64_t j = 0; j < visible; ++j) total += out[j] = std::exp(row[j] * scale - top);
    for (int64_t j = 0; j < visible; ++j) out[j] /= total;
  }
}
