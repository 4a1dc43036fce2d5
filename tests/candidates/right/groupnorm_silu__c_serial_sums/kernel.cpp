#include <cmath>
#include <cstdint>

// x (B, C, L): a group is C / G neighbouring channels.
extern "C" void groupnorm_silu(const float* x, const float* w, const float* b, float* y, int64_t B,
                               int64_t C, int64_t L, int64_t G, float eps) {
  const int64_t size = C / G * L;
#pragma omp parallel for
  for (int64_t g = 0; g < B * G; ++g) {
    const float* in = x + g * size;
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = 0; i < size; ++i) sum += in[i];
    const float mean = sum / static_cast<float>(size);
    for (int64_t i = 0; i < size; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t c = g % G * (C / G) + i / L;
      const float z = (in[i] - mean) * rstd * w[c] + b[c];
      y[g * size + i] = z / (1.0f + std::exp(-z));
    }
  }
}
