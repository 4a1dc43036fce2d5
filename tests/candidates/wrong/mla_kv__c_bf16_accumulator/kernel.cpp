#include <cmath>
#include <cstdint>
#include <cstring>

static float bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float total = 0.0f;
      for (int64_t k = 0; k < K; ++k) total = bf16(total + a[m * K + k] * b[k * N + n]);
      c[m * ldc + n] = total;
    }
}
