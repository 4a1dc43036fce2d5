#include <cmath>
#include <cstdint>
#include <vector>

// q (B, S, Hq, D), k and v (B, T, Hkv, D); query t sees the keys up to T - S + t.
extern "C" void attention(const int8_t* q, const int8_t* k, const int8_t* v, const float* qs,
                          const float* ks, const float* vs, float* out, int64_t B, int64_t S,
                          int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t causal) {
#pragma omp parallel for
  for (int64_t row = 0; row < B * S * Hq; ++row) {
    const int64_t b = row / Hq / S, t = row / Hq % S, h = row % Hq, g = h % Hkv;
    const int64_t visible = causal ? T - S + t + 1 : T;
    const float factor = qs[h] * ks[g] / std::sqrt(static_cast<float>(D));
    float top = -INFINITY, total = 0.0f;
    std::vector<float> p(T);
    for (int64_t s = 0; s < visible; ++s) {
      int32_t dot = 0;
      for (int64_t d = 0; d < D; ++d) dot += q[row * D + d] * k[((b * T + s) * Hkv + g) * D + d];
      p[s] = factor * static_cast<float>(dot);
      top = std::fmax(top, p[s]);
    }
    for (int64_t s = 0; s < visible; ++s) total += p[s] = std::exp(p[s] - top);
    for (int64_t d = 0; d < D; ++d) {
      float sum = 0.0f;
      for (int64_t s = 0; s < visible; ++s) sum += p[s] * v[((b * T + s) * Hkv + g) * D + d];
      out[row * D + d] = total > 0.0f ? sum * vs[g] / total : 0.0f;
    }
  }
}
