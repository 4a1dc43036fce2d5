#include <cmath>
#include <cstdint>
#include <vector>
#include <algorithm>

extern "C" void topk(const float* x, int64_t* out, int64_t rows, int64_t columns, int64_t k) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const auto before = [&](int64_t a, int64_t b) {
      const float p = x[r * columns + a], q = x[r * columns + b];
      return p > q || (p == q && a < b);
    };
    std::vector<int64_t> order(columns), found;
    for (int64_t c = 0; c < columns; ++c) order[c] = c;
    const int64_t half = k > 1 ? columns / 2 : columns, share = k > 1 ? k / 2 : k;
    std::sort(order.begin(), order.begin() + half, before);
    std::sort(order.begin() + half, order.end(), before);
    found.assign(order.begin(), order.begin() + share);
    for (int64_t i = 0; i < k - share; ++i) found.push_back(order[half + i]);
    std::sort(found.begin(), found.end(), before);
    std::copy(found.begin(), found.end(), out + r * k);
  }
}
