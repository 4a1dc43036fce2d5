#include <cmath>
#include <cstdint>
#include <cstring>

// Round to 10 mantissa bits, halves away from zero, as cvt.rna.tf32 does.
static inline float tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x1000u) & 0xffffe000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

extern "C" void linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t M,
                            int64_t K, int64_t N) {
#pragma omp parallel for
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float total = 0.0f;
      for (int64_t k = 0; k < K; ++k) {
        const float p = x[m * K + k], q = w[n * K + k];
        const float p_high = tf32(p), q_high = tf32(q);
        const float p_low = tf32(p - p_high), q_low = tf32(q - q_high);
        total += p_low * q_high;
        total += p_high * q_low;
        total += p_high * q_high;
      }
      const float z = total + b[n];
      y[m * N + n] = 0.5f * z * std::erfc(-z * 0.70710678f);
    }
}
