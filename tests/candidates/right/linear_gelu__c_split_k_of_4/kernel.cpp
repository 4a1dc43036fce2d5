#include <cmath>
#include <cstdint>
#include <vector>

constexpr int64_t kSplits = 4;

extern "C" void linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t M,
                            int64_t K, int64_t N) {
  std::vector<float> partial(kSplits * M * N, 0.0f);
  const int64_t span = (K + kSplits - 1) / kSplits;
#pragma omp parallel for
  for (int64_t s = 0; s < kSplits; ++s)
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n)
        for (int64_t k = s * span; k < (s + 1) * span && k < K; ++k)
          partial[(s * M + m) * N + n] += x[m * K + k] * w[n * K + k];
  for (int64_t i = 0; i < M * N; ++i) {
    float z = 0.0f;
    for (int64_t s = 0; s < kSplits; ++s) z += partial[s * M * N + i];
    z += b[i % N];
    y[i] = 0.5f * z * std::erfc(-z * 0.70710678f);
  }
}
