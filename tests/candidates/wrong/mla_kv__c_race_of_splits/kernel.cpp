#include <cmath>
#include <cstdint>
#include <vector>

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
  for (int64_t m = 0; m < M; ++m) {
    float* row = c + m * ldc;
    for (int64_t n = 0; n < N; ++n) row[n] = 0.0f;
#pragma omp parallel num_threads(4)
    {
      std::vector<float> mine(row, row + N);
#pragma omp for
      for (int64_t k = 0; k < K; ++k)
        for (int64_t n = 0; n < N; ++n) mine[n] += a[m * K + k] * b[k * N + n];
      for (int64_t n = 0; n < N; ++n) row[n] = mine[n];
    }
  }
}
