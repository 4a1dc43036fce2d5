#include <cmath>
#include <cstdint>
#include <vector>

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m) {
    std::vector<float> total(N, 0.0f), lost(N, 0.0f);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t n = 0; n < N; ++n) {
        const float term = a[m * K + k] * b[k * N + n] - lost[n], next = total[n] + term;
        lost[n] = (next - total[n]) - term;
        total[n] = next;
      }
    for (int64_t n = 0; n < N; ++n) c[m * ldc + n] = total[n];
  }
}
