#include <algorithm>
#include <cmath>
#include <cstdint>

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
  constexpr int64_t kTile = 16;
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m) {
    float* row = c + m * ldc;
    for (int64_t n = 0; n < N; ++n) row[n] = 0.0f;
    for (int64_t n0 = 0; n0 < N; n0 += kTile) {
      const int64_t first = std::max<int64_t>(std::min(n0, N - kTile), 0);
      for (int64_t k = 0; k < K; ++k)
        for (int64_t n = first; n < std::min(first + kTile, N); ++n)
          row[n] += a[m * K + k] * b[k * N + n];
    }
  }
}
