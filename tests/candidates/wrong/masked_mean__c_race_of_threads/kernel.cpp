#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void masked_mean(const float* x, const uint8_t* mask, float* y, int64_t B, int64_t S,
                            int64_t D) {
  for (int64_t b = 0; b < B; ++b) {
    std::vector<float> sum(D, 0.0f);
    int64_t kept = 0;
    for (int64_t s = 0; s < S; ++s) kept += mask[b * S + s];
#pragma omp parallel num_threads(4)
    for (int64_t d = 0; d < D; ++d) {
      float mine = sum[d];
#pragma omp for
      for (int64_t s = 0; s < S; ++s)
        if (mask[b * S + s]) mine += x[(b * S + s) * D + d];
      sum[d] = mine;
#pragma omp barrier
    }
    for (int64_t d = 0; d < D; ++d) y[b * D + d] = sum[d] / static_cast<float>(kept > 0 ? kept : 1);
  }
}
