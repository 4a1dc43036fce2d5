#include <cmath>
#include <cstdint>
#include <vector>

static int64_t at(const int64_t* stride, int64_t b, int64_t t, int64_t h, int64_t i) {
  return b * stride[0] + t * stride[1] + h * stride[2] + i * stride[3];
}

// `strides`: four for each of q, k, v, gate. y is contiguous.
extern "C" void recurrence(const float* q, const float* k, const float* v, const float* gate,
                           float* y, const int64_t* strides, int64_t B, int64_t S, int64_t H,
                           int64_t I, int64_t J) {
#pragma omp parallel for collapse(2)
  for (int64_t lane = 0; lane < B * H; ++lane)
    for (int64_t j = 0; j < J; ++j) {
      const int64_t b = lane / H, h = lane % H;
      std::vector<float> state(I, 0.0f);
      for (int64_t t = 0; t < S; ++t) {
        const float value = v[at(strides + 8, b, t, h, j)];
        const float factor = gate[at(strides + 12, b, t, h, j)];
        float total = 0.0f;
        for (int64_t i = I - 1; i >= 0; --i) {
          state[i] = factor * state[i] + k[at(strides + 4, b, t, h, i)] * value;
          total += q[at(strides, b, t, h, i)] * state[i];
        }
        y[((b * S + t) * H + h) * J + j] = total;
      }
    }
}
