#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void scan(const float* x, float* y, int64_t rows, int64_t length) {
  int64_t size = 1;
  while (size < length) size *= 2;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> node(size, 0.0f);
    for (int64_t t = 0; t < length; ++t) node[t] = x[row * length + t];
    for (int64_t step = 1; step < size; step *= 2)
      for (int64_t i = 2 * step - 1; i < size; i += 2 * step) node[i] += node[i - step];
    for (int64_t step = size / 2; step > 0; step /= 2)
      for (int64_t i = 3 * step - 1; i < size; i += 2 * step) node[i] += node[i - step];
    for (int64_t t = 0; t < length; ++t) y[row * length + t] = node[t];
  }
}
