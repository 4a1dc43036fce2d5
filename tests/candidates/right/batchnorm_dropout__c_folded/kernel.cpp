#include <cmath>
#include <cstdint>

extern "C" void batchnorm_relu(const float* x, const float* mean, const float* var, const float* w,
                               const float* b, float* y, int64_t B, int64_t C, int64_t L,
                               float eps) {
#pragma omp parallel for
  for (int64_t lane = 0; lane < B * C; ++lane) {
    const int64_t c = lane % C;
    const float scale = w[c] / std::sqrt(var[c] + eps), shift = b[c] - mean[c] * scale;
    for (int64_t l = 0; l < L; ++l)
      y[lane * L + l] = std::fmax(std::fma(x[lane * L + l], scale, shift), 0.0f);
  }
}
