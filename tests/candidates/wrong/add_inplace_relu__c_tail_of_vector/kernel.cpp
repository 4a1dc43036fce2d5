#include <cmath>
#include <cstdint>

extern "C" void add_relu(const float* x, const float* z, float* y, int64_t n) {
#pragma omp parallel for
  for (int64_t i = 0; i < n / 8; ++i)
    for (int64_t j = 8 * i; j < 8 * i + 8; ++j) y[j] = std::fmax(x[j] + z[j], 0.0f);
}
