#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void softmax(const float* x, float* p, float* lse, int64_t rows, int64_t columns) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t padded = (columns + 31) / 32 * 32;
    std::vector<float> row(padded, 0.0f);
    for (int64_t c = 0; c < columns; ++c) row[c] = x[r * columns + c];
    float top = 0.0f, total = 0.0f;
    for (float value : row) top = std::fmax(top, value);
    for (float value : row) total += std::exp(value - top);
    lse[r] = top + std::log(total);
    for (int64_t c = 0; c < columns; ++c) p[r * columns + c] = std::exp(row[c] - lse[r]);
  }
}
