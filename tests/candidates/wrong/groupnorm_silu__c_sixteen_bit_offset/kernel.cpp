#include <cmath>
#include <cstdint>

// x (B, C, L): a group is C / G neighbouring channels.
extern "C" void groupnorm_silu(const float* x, const float* w, const float* b, float* y, int64_t B,
                               int64_t C, int64_t L, int64_t G, float eps) {
  const int64_t size = C / G * L;
#pragma omp parallel for
  for (int64_t g = 0; g < B * G; ++g) {
    const uint16_t offset = static_cast<uint16_t>(g * size);
    const float* in = x + offset;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < size; ++i) sum += in[i];
    const double mean = sum / size;
    for (int64_t i = 0; i < size; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double rstd = 1.0 / std::sqrt(squares / size + eps);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t c = g % G * (C / G) + i / L;
      const float z = static_cast<float>((in[i] - mean) * rstd) * w[c] + b[c];
      y[g * size + i] = z / (1.0f + std::exp(-z));
    }
  }
}
