#include <cmath>
#include <cstdint>
#include <vector>

// out (N) = a (K) b (K, N)
static void row_product(const float* a, const float* b, float* out, int64_t K, int64_t N) {
  if (K > 8) {
    const int64_t half = K / 2;
    std::vector<float> right(N);
    row_product(a, b, out, half, N);
    row_product(a + half, b + half * N, right.data(), K - half, N);
    for (int64_t n = 0; n < N; ++n) out[n] += right[n];
    return;
  }
  for (int64_t n = 0; n < N; ++n) out[n] = 0.0f;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t n = 0; n < N; ++n) out[n] += a[k] * b[k * N + n];
}

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m) row_product(a + m * K, b, c + m * ldc, K, N);
}
