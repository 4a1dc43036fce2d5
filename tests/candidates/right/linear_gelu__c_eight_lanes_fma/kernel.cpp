#include <cmath>
#include <cstdint>

extern "C" void linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t M,
                            int64_t K, int64_t N) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float lane[8] = {};
      for (int64_t k = 0; k < K; ++k)
        lane[k % 8] = std::fma(x[m * K + k], w[n * K + k], lane[k % 8]);
      for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
      const float z = lane[0] + b[n];
      y[m * N + n] = 0.5f * z * (1.0f + std::erf(z * 0.70710678f));
    }
}
