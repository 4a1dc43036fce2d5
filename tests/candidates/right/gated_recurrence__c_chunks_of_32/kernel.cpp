#include <cmath>
#include <cstdint>
#include <vector>

constexpr int64_t kChunk = 32;

extern "C" void recurrence(const float* q, const float* k, const float* v, const float* gate,
                           float* y, int64_t B, int64_t S, int64_t H, int64_t I, int64_t J) {
#pragma omp parallel for
  for (int64_t lane = 0; lane < B * H; ++lane) {
    const auto at = [&](int64_t t) { return (lane / H * S + t) * H + lane % H; };
    std::vector<float> state(I * J, 0.0f), since(J), decayed(kChunk * J);
    for (int64_t start = 0; start < S; start += kChunk) {
      const int64_t end = start + kChunk < S ? start + kChunk : S;
      for (float& product : since) product = 1.0f;
      for (int64_t t = start; t < end; ++t) {
        const float *qt = q + at(t) * I, *vt = v + at(t) * J, *gt = gate + at(t) * J;
        float* yt = y + at(t) * J;
        for (int64_t j = 0; j < J; ++j) {
          since[j] *= gt[j];
          for (int64_t s = 0; s < t - start; ++s) decayed[s * J + j] *= gt[j];
          decayed[(t - start) * J + j] = vt[j];
          float carried = 0.0f;
          for (int64_t i = 0; i < I; ++i) carried += qt[i] * state[i * J + j];
          yt[j] = since[j] * carried;
        }
        for (int64_t s = start; s <= t; ++s) {
          float score = 0.0f;
          for (int64_t i = 0; i < I; ++i) score += qt[i] * k[at(s) * I + i];
          for (int64_t j = 0; j < J; ++j) yt[j] += score * decayed[(s - start) * J + j];
        }
      }
      for (int64_t i = 0; i < I; ++i)
        for (int64_t j = 0; j < J; ++j) {
          state[i * J + j] *= since[j];
          for (int64_t s = start; s < end; ++s)
            state[i * J + j] += k[at(s) * I + i] * decayed[(s - start) * J + j];
        }
    }
  }
}
