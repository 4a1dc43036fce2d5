// state[i, j] = gate[j] * state[i, j] + k[i] * v[j];  y[j] = sum_i q[i] * state[i, j]
// q, k (B, S, H, K), v, gate and y (B, S, H, V), all contiguous float32.
#include <cstdint>
#include <vector>

extern "C" void gated_recurrence(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int64_t batch, int64_t steps, int64_t heads,
                                 int64_t key_dim, int64_t value_dim) {
// Heads do not depend on each other; a head's state stays in the cache of its core.
#pragma omp parallel for
  for (int64_t bh = 0; bh < batch * heads; ++bh) {
    std::vector<float> state(key_dim * value_dim, 0.0f);
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t row = (bh / heads * steps + t) * heads + bh % heads;
      float* out = y + row * value_dim;
      for (int64_t j = 0; j < value_dim; ++j) out[j] = 0.0f;
      for (int64_t i = 0; i < key_dim; ++i) {
        const float ki = k[row * key_dim + i], qi = q[row * key_dim + i];
        float* s = state.data() + i * value_dim;
#pragma omp simd
        for (int64_t j = 0; j < value_dim; ++j) {
          s[j] = gate[row * value_dim + j] * s[j] + ki * v[row * value_dim + j];
          out[j] += qi * s[j];
        }
      }
    }
  }
}
