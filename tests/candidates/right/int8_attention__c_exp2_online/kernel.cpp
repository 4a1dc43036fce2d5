#include <cmath>
#include <cstdint>
#include <vector>

// q (B, S, Hq, D), k and v (B, T, Hkv, D); query t sees the keys up to T - S + t.
extern "C" void attention(const int8_t* q, const int8_t* k, const int8_t* v, const float* qs,
                          const float* ks, const float* vs, float* out, int64_t B, int64_t S,
                          int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t causal) {
#pragma omp parallel for
  for (int64_t row = 0; row < B * S * Hq; ++row) {
    const int64_t b = row / Hq / S, t = row / Hq % S, h = row % Hq, g = h / (Hq / Hkv);
    const int64_t visible = causal ? T - S + t + 1 : T;
    const float factor = qs[h] * ks[g] / std::sqrt(static_cast<float>(D)) * 1.44269504f;
    float top = -INFINITY, total = 0.0f;
    std::vector<float> sum(D, 0.0f);
    for (int64_t s = 0; s < visible; ++s) {
      const int64_t at = ((b * T + s) * Hkv + g) * D;
      int32_t dot = 0;
      for (int64_t d = 0; d < D; ++d) dot += q[row * D + d] * k[at + d];
      const float score = factor * static_cast<float>(dot), next = std::fmax(top, score);
      const float shrink = std::exp2(top - next), p = std::exp2(score - next);
      total = total * shrink + p;
      for (int64_t d = 0; d < D; ++d) sum[d] = sum[d] * shrink + p * static_cast<float>(v[at + d]);
      top = next;
    }
    for (int64_t d = 0; d < D; ++d)
      out[row * D + d] = total > 0.0f ? sum[d] * (vs[g] / total) : 0.0f;
  }
}
