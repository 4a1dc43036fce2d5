#include <cmath>
#include <cstdint>

extern "C" void masked_mean(const float* x, const uint8_t* mask, float* y, int64_t B, int64_t S,
                            int64_t D) {
#pragma omp parallel for
  for (int64_t b = 0; b < B; ++b)
    for (int64_t d = 0; d < D; ++d) {
      double sum = 0.0;
      int64_t kept = 0;
      for (int64_t s = 0; s < S; ++s)
        if (mask[s]) {
          sum += x[(b * S + s) * D + d];
          ++kept;
        }
      y[b * D + d] = static_cast<float>(sum / (kept > 0 ? kept : 1));
    }
}
