#include <cmath>
#include <cstdint>
#include <vector>

static void total(const float* x, const uint8_t* mask, int64_t tokens, int64_t D, float* sum) {
  if (tokens > 16) {
    std::vector<float> right(D);
    const int64_t half = tokens / 2;
    total(x, mask, half, D, sum);
    total(x + half * D, mask + half, tokens - half, D, right.data());
    for (int64_t d = 0; d < D; ++d) sum[d] += right[d];
    return;
  }
  for (int64_t d = 0; d < D; ++d) sum[d] = 0.0f;
  for (int64_t s = 0; s < tokens; ++s)
    if (mask[s])
      for (int64_t d = 0; d < D; ++d) sum[d] += x[s * D + d];
}

extern "C" void masked_mean(const float* x, const uint8_t* mask, float* y, int64_t B, int64_t S,
                            int64_t D) {
#pragma omp parallel for
  for (int64_t b = 0; b < B; ++b) {
    total(x + b * S * D, mask + b * S, S, D, y + b * D);
    int64_t kept = 0;
    for (int64_t s = 0; s < S; ++s) kept += mask[b * S + s];
    const float share = 1.0f / static_cast<float>(kept > 0 ? kept : 1);
    for (int64_t d = 0; d < D; ++d) y[b * D + d] *= share;
  }
}
