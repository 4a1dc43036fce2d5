#include <cmath>
#include <cstdint>

// x (B, S, H, D); pairs are (i, i + D / 2).
extern "C" void rotate(const float* x, const int64_t* positions, float* y, int64_t B, int64_t S,
                       int64_t H, int64_t D, float base) {
#pragma omp parallel for
  for (int64_t row = 0; row < B * S * H; ++row)
    for (int64_t i = 0; i < D / 2; ++i) {
      const float frequency = 1.0f / std::pow(base, 2.0f * static_cast<float>(i) / D);
      const float angle = static_cast<float>(positions[row / 4 % S]) * frequency;
      const float c = std::cos(angle), s = std::sin(angle);
      const float low = x[row * D + i], high = x[row * D + i + D / 2];
      y[row * D + i] = low * c - high * s;
      y[row * D + i + D / 2] = high * c + low * s;
    }
}
