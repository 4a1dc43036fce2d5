#include <cmath>
#include <cstdint>

extern "C" void bag_sum(const float* table, const int64_t* indices, const int64_t* offsets,
                        float* y, int64_t lookups, int64_t bags, int64_t D) {
#pragma omp parallel for
  for (int64_t b = 0; b < bags; ++b) {
    const int64_t end = b + 1 < bags ? offsets[b + 1] : lookups;
    for (int64_t d = 0; d < D; ++d) y[b * D + d] = 0.0f;
    for (int64_t i = offsets[b]; i < end; ++i) {
      const uint16_t entry = static_cast<uint16_t>(indices[i]);
      for (int64_t d = 0; d < D; ++d) y[b * D + d] += table[entry * D + d];
    }
  }
}
