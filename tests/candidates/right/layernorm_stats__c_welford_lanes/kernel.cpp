#include <cmath>
#include <cstdint>

constexpr int kLanes = 32;

extern "C" void layernorm(const float* x, const float* w, const float* b, float* y, float* mean,
                          float* rstd, int64_t rows, int64_t columns, float eps) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    float count[kLanes] = {}, centre[kLanes] = {}, squares[kLanes] = {};
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = c % kLanes;
      const float off = row[c] - centre[i];
      centre[i] += off / ++count[i];
      squares[i] += off * (row[c] - centre[i]);
    }
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) {
        const float n = count[i] + count[i + half], off = centre[i + half] - centre[i];
        if (n == 0.0f) continue;
        const float share = count[i + half] / n;
        centre[i] += off * share;
        squares[i] += squares[i + half] + off * off * share * count[i];
        count[i] = n;
      }
    mean[r] = centre[0];
    rstd[r] = 1.0f / std::sqrt(squares[0] / static_cast<float>(columns) + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[r * columns + c] = (row[c] - mean[r]) * rstd[r] * w[c] + b[c];
  }
}
