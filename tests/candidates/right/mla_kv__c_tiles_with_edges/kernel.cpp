#include <cmath>
#include <cstdint>
#include <algorithm>

// c (M, N; rows ldc apart) = a (M, K) b (K, N).
extern "C" void product(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N,
                        int64_t ldc) {
  constexpr int64_t kTile = 16, kDepth = 32;
#pragma omp parallel for
  for (int64_t m0 = 0; m0 < M; m0 += kTile)
    for (int64_t n0 = 0; n0 < N; n0 += kTile) {
      float total[kTile][kTile] = {};
      for (int64_t k0 = 0; k0 < K; k0 += kDepth) {
        float left[kTile][kDepth] = {}, right[kDepth][kTile] = {}, part[kTile][kTile] = {};
        for (int64_t i = 0; i < std::min(kTile, M - m0); ++i)
          for (int64_t k = 0; k < std::min(kDepth, K - k0); ++k)
            left[i][k] = a[(m0 + i) * K + k0 + k];
        for (int64_t k = 0; k < std::min(kDepth, K - k0); ++k)
          for (int64_t j = 0; j < std::min(kTile, N - n0); ++j)
            right[k][j] = b[(k0 + k) * N + n0 + j];
        for (int64_t i = 0; i < kTile; ++i)
          for (int64_t k = 0; k < kDepth; ++k)
            for (int64_t j = 0; j < kTile; ++j) part[i][j] += left[i][k] * right[k][j];
        for (int64_t i = 0; i < kTile; ++i)
          for (int64_t j = 0; j < kTile; ++j) total[i][j] += part[i][j];
      }
      for (int64_t i = 0; i < std::min(kTile, M - m0); ++i)
        for (int64_t j = 0; j < std::min(kTile, N - n0); ++j)
          c[(m0 + i) * ldc + n0 + j] = total[i][j];
    }
}
