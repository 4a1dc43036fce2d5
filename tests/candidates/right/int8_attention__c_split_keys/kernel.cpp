#include <cmath>
#include <cstdint>
#include <vector>

// q (B, S, Hq, D), k and v (B, T, Hkv, D); query t sees the keys up to T - S + t.
extern "C" void attention(const int8_t* q, const int8_t* k, const int8_t* v, const float* qs,
                          const float* ks, const float* vs, float* out, int64_t B, int64_t S,
                          int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t causal) {
  constexpr int64_t kParts = 3;
#pragma omp parallel for
  for (int64_t row = 0; row < B * S * Hq; ++row) {
    const int64_t b = row / Hq / S, t = row / Hq % S, h = row % Hq, g = h / (Hq / Hkv);
    const int64_t visible = causal ? T - S + t + 1 : T;
    const float factor = qs[h] * ks[g] / std::sqrt(static_cast<float>(D));
    float top[kParts], total[kParts] = {}, highest = -INFINITY, all = 0.0f;
    std::vector<float> score(T), sum(kParts * D, 0.0f);
    for (int64_t part = 0; part < kParts; ++part) {
      top[part] = -INFINITY;
      for (int64_t s = part * T / kParts; s < (part + 1) * T / kParts && s < visible; ++s) {
        int32_t dot = 0;
        for (int64_t d = 0; d < D; ++d)
          dot += q[row * D + d] * k[((b * T + s) * Hkv + g) * D + d];
        score[s] = factor * static_cast<float>(dot);
        top[part] = std::fmax(top[part], score[s]);
      }
      for (int64_t s = part * T / kParts; s < (part + 1) * T / kParts && s < visible; ++s) {
        const float p = std::exp(score[s] - top[part]);
        total[part] += p;
        for (int64_t d = 0; d < D; ++d)
          sum[part * D + d] += p * static_cast<float>(v[((b * T + s) * Hkv + g) * D + d]);
      }
      highest = std::fmax(highest, top[part]);
    }
    for (int64_t d = 0; d < D; ++d) out[row * D + d] = 0.0f;
    if (visible <= 0) continue;
    for (int64_t part = 0; part < kParts; ++part)
      all += total[part] * std::exp(top[part] - highest);
    for (int64_t part = 0; part < kParts; ++part)
      for (int64_t d = 0; d < D; ++d)
        out[row * D + d] += sum[part * D + d] * std::exp(top[part] - highest) / all * vs[g];
  }
}
