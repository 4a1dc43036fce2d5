#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* p, int64_t B, int64_t S, int64_t T, float scale,
                        int64_t stride_b, int64_t stride_s, int64_t stride_t) {
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < S; ++i) {
      const float* row = x + b * stride_b + i * stride_s;
      float* out = p + (b * S + i) * T;
      const int64_t visible = i + T - S + 1;
      float top = -INFINITY, total = 0.0f;
      for (int64_t j = 0; j < visible; ++j) top = std::fmax(top, row[j * stride_t] * scale);
      for (int64_t j = 0; j < visible; ++j)
        total += out[j] = std::exp(row[j * stride_t] * scale - top);
      for (int64_t j = 0; j < visible; ++j) out[j] /= total;
      for (int64_t j = visible; j < T; ++j) out[j] = 0.0f;
    }
}
