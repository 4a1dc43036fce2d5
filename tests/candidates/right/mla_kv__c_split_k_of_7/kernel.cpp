#include <cmath>
#include <cstdint>
#include <vector>

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
  constexpr int64_t kSplits = 7;
  std::vector<float> partial(kSplits * M * N, 0.0f);
#pragma omp parallel for
  for (int64_t s = 0; s < kSplits; ++s)
    for (int64_t k = K * s / kSplits; k < K * (s + 1) / kSplits; ++k)
      for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n)
          partial[(s * M + m) * N + n] += a[m * K + k] * b[k * N + n];
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float total = partial[m * N + n];
      for (int64_t s = 1; s < kSplits; ++s) total += partial[(s * M + m) * N + n];
      c[m * ldc + n] = total;
    }
}
