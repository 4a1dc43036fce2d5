#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void topk(const float* x, int64_t* out, int64_t rows, int64_t columns, int64_t k) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    int64_t *best = out + r * k, count = 0;
    for (int64_t c = 0; c < columns; ++c) {
      int64_t at = count;
      while (at > 0 && row[c] > row[best[at - 1]]) --at;
      if (at >= k) continue;
      count += count < k;
      for (int64_t i = count - 1; i > at; --i) best[i] = best[i - 1];
      best[at] = c;
    }
  }
}
