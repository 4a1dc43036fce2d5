#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void topk(const float* x, int64_t* out, int64_t rows, int64_t columns, int64_t k) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<bool> taken(columns, false);
    for (int64_t place = 0; place < k; ++place) {
      float best = 0.0f;
      int64_t index = 0;
      for (int64_t c = 0; c < columns; ++c)
        if (!taken[c] && x[r * columns + c] > best) {
          best = x[r * columns + c];
          index = c;
        }
      taken[index] = true;
      out[r * k + place] = index;
    }
  }
}
