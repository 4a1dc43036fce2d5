// Products of key gates within a chunk of 16 steps, without a division and without a logarithm.
//
// For steps s < t of a chunk whose numbers differ first, from the top, in bit b, the gates between
// them are P(t) * U(s): P the product from the start of t's block of 2^b steps to t, U that of the
// steps after s to the end of its block. So with one matrix E_b for each bit, whose row t is q_t * P
// where bit b of t is set and k_t * U where it is not, the products q_t k_s with their gates are
// elements of E_b E_b^T. They are picked from the product by the highest bit of t xor s.

#pragma once

#include "tensor_core.cuh"

constexpr int LEVEL_ROW = 144;  // bytes: 64 bfloat16, padded against bank conflicts
constexpr int LEVEL = 16 * LEVEL_ROW;

// Sums of a lane over pairs (t, s): sums[0,1] of t = lane / 4, sums[4,5] of t + 8 with s also in
// that half of the chunk, and sums[2,3] of t + 8 with s in the first half. s = lane % 4 * 2 + {0,1}.
// `a`: products of rows 0-15 of E_b with rows 0-7 (a[0]) and 8-15 (a[1]).
template <int BIT>
__device__ __forceinline__ void pick_level(float (&sums)[6], const float (&a)[2][4], int lane) {
  const int t = lane / 4, s = lane % 4 * 2;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const int differ = t ^ (s + x);
    const bool on = s + x < t && differ >= BIT && differ < 2 * BIT;
    sums[x] += on ? a[0][x] : 0.0f;
    sums[4 + x] += on ? a[1][2 + x] : 0.0f;
  }
}
__device__ __forceinline__ void pick_diagonal(float (&sums)[6], const float (&a)[2][4], int lane) {
  const int t = lane / 4, s = lane % 4 * 2;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    sums[x] = t == s + x ? a[0][x] : 0.0f;
    sums[4 + x] = t == s + x ? a[1][2 + x] : 0.0f;
  }
  sums[2] = sums[3] = 0.0f;
}

// Two levels' products at once; of bit 3 only the first half's steps are asked for.
template <bool LAST>
__device__ __forceinline__ void level_products(float (&a)[2][4], float (&b)[2][4], u32 tiles,
                                               int lane) {
  const u32 at = tiles + lane % 16 * LEVEL_ROW + lane / 16 * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 e[4], f[4];
    load_matrices(e, at + i * 32);
    load_matrices(f, at + i * 32 + LEVEL);
    multiply(a[0], e, e[0], e[2]), multiply(a[1], e, e[1], e[3]);
    multiply(b[0], f, f[0], f[2]);
    if (!LAST) multiply(b[1], f, f[1], f[3]);
  }
}

// A lane's two columns of q, k (packed) and gates of 16 steps. Adds the off-diagonal products to
// `sums`; hands q times the gates up to and with its step to `put_q`, k times those after it to
// `put_k`; returns the product of all gates. `tiles`: two LEVELs of the warp's own, which it
// may write again after a __syncwarp().
template <class PutQ, class PutK>
__device__ __forceinline__ float2 gated_products(float (&sums)[6], const u32 (&q)[16],
                                                 const u32 (&k)[16], const float2 (&g)[16],
                                                 u32 tiles, int lane, PutQ put_q, PutK put_k) {
  const u32 column = tiles + lane * 4;
  auto raw = [&](int level, int t, u32 x) { store32(column + level * LEVEL + t * LEVEL_ROW, x); };
  auto put = [&](int level, int t, float2 x) { raw(level, t, pack(x)); };
  auto Q = [&](int t) { return unpack(q[t]); };
  auto K = [&](int t) { return unpack(k[t]); };
  float2 g2[8], g4[4], g8[2];  // products of 2, 4 and 8 gates in a row
#pragma unroll
  for (int i = 0; i < 8; ++i) g2[i] = g[2 * i] * g[2 * i + 1];
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // bit 0
    raw(0, 2 * i, k[2 * i]);
    put(0, 2 * i + 1, Q(2 * i + 1) * g[2 * i + 1]);
  }
#pragma unroll
  for (int i = 0; i < 16; i += 4) {  // bit 1
    put(1, i, K(i) * g[i + 1]);
    raw(1, i + 1, k[i + 1]);
    put(1, i + 2, Q(i + 2) * g[i + 2]);
    put(1, i + 3, Q(i + 3) * g2[i / 2 + 1]);
  }
  __syncwarp();
  {
    float a[2][4] = {}, b[2][4] = {};
    level_products<false>(a, b, tiles, lane);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 8) {  // bit 2, written while the products are on their way
      const int j = i / 2;
      put(0, i, K(i) * (g[i + 1] * g2[j + 1]));
      put(0, i + 1, K(i + 1) * g2[j + 1]);
      put(0, i + 2, K(i + 2) * g[i + 3]);
      raw(0, i + 3, k[i + 3]);
      put(0, i + 4, Q(i + 4) * g[i + 4]);
      put(0, i + 5, Q(i + 5) * g2[j + 2]);
      put(0, i + 6, Q(i + 6) * (g2[j + 2] * g[i + 6]));
      put(0, i + 7, Q(i + 7) * (g2[j + 2] * g2[j + 3]));
    }
    pick_level<1>(sums, a, lane), pick_level<2>(sums, b, lane);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) g4[i] = g2[2 * i] * g2[2 * i + 1];
  g8[0] = g4[0] * g4[1], g8[1] = g4[2] * g4[3];
  const float2 one = make_float2(1.0f, 1.0f);
  // After step i of the first half to its end; from the start of the second half to step 8 + i.
  const float2 u8[8] = {g[1] * (g2[1] * g4[1]), g2[1] * g4[1], g[3] * g4[1], g4[1],
                        g[5] * g2[3],           g2[3],         g[7],         one};
  const float2 p8[8] = {g[8],          g2[4],         g2[4] * g[10],           g4[2],
                        g4[2] * g[12], g4[2] * g2[6], (g4[2] * g2[6]) * g[14], g8[1]};
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // bit 3
    const float2 x = K(i) * u8[i], y = Q(8 + i) * p8[i];
    put(1, i, x), put(1, 8 + i, y);
    put_k(i, x * g8[1]), put_q(8 + i, y * g8[0]);
  }
  __syncwarp();
  {
    float a[2][4] = {}, b[2][4] = {};
    level_products<true>(a, b, tiles, lane);
    const float2 p0[8] = {g[0],         g2[0],         g2[0] * g[2],           g4[0],
                          g4[0] * g[4], g4[0] * g2[2], (g4[0] * g2[2]) * g[6], g8[0]};
    const float2 u0[8] = {g[9] * (g2[5] * g4[3]), g2[5] * g4[3], g[11] * g4[3], g4[3],
                          g[13] * g2[7],          g2[7],         g[15],         one};
#pragma unroll
    for (int i = 0; i < 8; ++i) put_q(i, Q(i) * p0[i]), put_k(8 + i, K(8 + i) * u0[i]);
    pick_level<4>(sums, a, lane);
    sums[2] += b[0][2], sums[3] += b[0][3];
  }
  return g8[0] * g8[1];
}
