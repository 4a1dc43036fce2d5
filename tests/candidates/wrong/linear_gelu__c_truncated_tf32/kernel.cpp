#include <cmath>
#include <cstdint>
#include <cstring>

static float tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits &= 0xffffe000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// x (M, K), w (N, K), y (M, N).
extern "C" void linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t M,
                            int64_t K, int64_t N) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float z = b[n];
      for (int64_t k = 0; k < K; ++k) z += tf32(x[m * K + k]) * tf32(w[n * K + k]);
      y[m * N + n] = 0.5f * z * std::erfc(-z * 0.70710678f);
    }
}
