// Elements beyond bfloat16 in products of bfloat16: planes, whose sum a number is, and what cannot be
// split; and the products of a chunk in float, for q and k of float16 and float.

#pragma once

#include "levels.cuh"

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

constexpr float LARGEST = 3.38e38f;  // what rounds to no infinity in bfloat16
constexpr int ALL_SAFE = 16;
constexpr int ADDENDS = 64 * 128;  // bytes: 64 products, each as the addends of 32 lanes

__device__ __forceinline__ float2 unpack_half(u32 x) {
  float2 y;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(y.x), "=f"(y.y)
      : "r"(x));
  return y;
}
__device__ __forceinline__ u32 pack_half(float low, float high) {
  u32 x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
// NaN in a half of `sum` once that half of an x was not finite.
__device__ __forceinline__ u32 watch_half(u32 sum, u32 x) {
  u32 y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0u), "r"(sum));
  return y;
}

// The leading plane of two numbers, which become what it leaves.
__device__ __forceinline__ u32 next_plane(float2& x) {
  const u32 plane = pack(x);
  x = make_float2(x.x - low(plane), x.y - high(plane));
  return plane;
}
// The same for a lane's sums (see `pick_level`) as they are stored.
__device__ __forceinline__ uint4 products_plane(float (&sums)[6], int unsafe) {
  u32 out[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    float2 x = make_float2(sums[2 * i], sums[2 * i + 1]);
    out[i] = next_plane(x);
    sums[2 * i] = x.x, sums[2 * i + 1] = x.y;
  }
  return make_uint4(out[0], out[1], out[2], unsafe);
}

// c += a b over planes; all terms but the leading one to `rest`, because a tensor core cuts off what is
// below the last bit of the largest addend, in every product anew.
template <int TERMS, int LEFT, int RIGHT>
__device__ __forceinline__ void multiply_planes(float (&c)[4], float (&rest)[4], const u32 (&a)[LEFT][4],
                                                const u32 (&b0)[RIGHT], const u32 (&b1)[RIGHT]) {
#pragma unroll
  for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
    for (int i = 0; i < LEFT; ++i)
      if (sum >= i && sum - i < RIGHT) multiply(sum ? rest : c, a[i], b0[sum - i], b1[sum - i]);
}
// The same with the columns `first` and 8 more of a, and masked rows of b.
template <int TERMS, int LEFT, int RIGHT>
__device__ __forceinline__ void multiply_planes8(float (&c)[4], float (&rest)[4],
                                                 const u32 (&a)[LEFT][4], int first,
                                                 const u32 (&b)[RIGHT], u32 mask) {
#pragma unroll
  for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
    for (int i = 0; i < LEFT; ++i)
      if (sum >= i && sum - i < RIGHT)
        multiply8(sum ? rest : c, a[i][first], a[i][first + 1], b[sum - i] & mask);
}

// The first step whose product of q and k is not finite, so that neither may be split.
__device__ __forceinline__ int unsafe_diagonal(const float (&sums)[6], int lane) {
  const int t = lane / 4, s = lane % 4 * 2;
  int unsafe = ALL_SAFE;
#pragma unroll
  for (int x = 0; x < 2; ++x)
    if (t == s + x) {
      if (!(fabsf(sums[4 + x]) <= LARGEST)) unsafe = t + 8;
      if (!(fabsf(sums[x]) <= LARGEST)) unsafe = t;
    }
  return __any_sync(~0u, unsafe < ALL_SAFE) ? __reduce_min_sync(~0u, unsafe) : ALL_SAFE;
}

// Sums over the lanes of what they have written for two pairs (t, s) = (lane / 4, lane % 4 * 2 + x).
__device__ __forceinline__ void add_lanes(float& a, float& b, u32 addends, int lane, bool lower) {
  __syncwarp();
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    float sum[4] = {};
    if (!lower || lane % 4 * 2 + x <= lane / 4)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4 y = load128(addends + (lane * 2 + x) * 128 + ((i + lane & 7) << 4));
        sum[0] += __uint_as_float(y.x), sum[1] += __uint_as_float(y.y);
        sum[2] += __uint_as_float(y.z), sum[3] += __uint_as_float(y.w);
      }
    (x ? b : a) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  __syncwarp();
}

// `gated_products` in float, the diagonal included. `addends`: ADDENDS bytes of the warp's own.
template <class PutQ, class PutK>
__device__ __forceinline__ float2 fine_products(float (&sums)[6], const float2 (&q)[16],
                                                const float2 (&k)[16], const float2 (&g)[16],
                                                u32 addends, int lane, PutQ put_q, PutK put_k) {
  auto add = [&](int t, int s, float2 a, float2 b) {
    store32(addends + (t * 8 + s) * 128 + lane * 4, __float_as_uint(fmaf(a.x, b.x, a.y * b.y)));
  };
  float2 g2[8], g4[4], g8[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) g2[i] = g[2 * i] * g[2 * i + 1];
#pragma unroll
  for (int i = 0; i < 4; ++i) g4[i] = g2[2 * i] * g2[2 * i + 1];
  g8[0] = g4[0] * g4[1], g8[1] = g4[2] * g4[3];
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // bits 0 to 2, and the diagonal
    const int z = half * 8, j = z / 2;
    const float2 later[4] = {q[z + 4] * g[z + 4], q[z + 5] * g2[j + 2],
                             q[z + 6] * (g2[j + 2] * g[z + 6]), q[z + 7] * g4[j / 2 + 1]};
    const float2 earlier[4] = {k[z] * (g[z + 1] * g2[j + 1]), k[z + 1] * g2[j + 1],
                               k[z + 2] * g[z + 3], k[z + 3]};
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int s = 0; s < 4; ++s) add(4 + t, s, later[t], earlier[s]);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const int y = z + i;
      const float2 second = q[y + 2] * g[y + 2], third = q[y + 3] * g2[y / 2 + 1];
      const float2 first = k[y] * g[y + 1];
      add(i + 2, i, second, first), add(i + 2, i + 1, second, k[y + 1]);
      add(i + 3, i, third, first), add(i + 3, i + 1, third, k[y + 1]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i % 2) add(i, i - 1, q[z + i] * g[z + i], k[z + i - 1]);
      add(i, i, q[z + i], k[z + i]);
    }
    add_lanes(sums[4 * half], sums[4 * half + 1], addends, lane, true);
  }
  const float2 one = make_float2(1.0f, 1.0f);
  const float2 u8[8] = {g[1] * (g2[1] * g4[1]), g2[1] * g4[1], g[3] * g4[1], g4[1],
                        g[5] * g2[3],           g2[3],         g[7],         one};
  const float2 p8[8] = {g[8],          g2[4],         g2[4] * g[10],           g4[2],
                        g4[2] * g[12], g4[2] * g2[6], (g4[2] * g2[6]) * g[14], g8[1]};
  float2 earlier[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) earlier[i] = k[i] * u8[i], put_k(i, earlier[i] * g8[1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 later = q[8 + i] * p8[i];
    put_q(8 + i, later * g8[0]);
#pragma unroll
    for (int s = 0; s < 8; ++s) add(i, s, later, earlier[s]);
  }
  add_lanes(sums[2], sums[3], addends, lane, false);
  const float2 p0[8] = {g[0],         g2[0],         g2[0] * g[2],           g4[0],
                        g4[0] * g[4], g4[0] * g2[2], (g4[0] * g2[2]) * g[6], g8[0]};
  const float2 u0[8] = {g[9] * (g2[5] * g4[3]), g2[5] * g4[3], g[11] * g4[3], g4[3],
                        g[13] * g2[7],          g2[7],         g[15],         one};
#pragma unroll
  for (int i = 0; i < 8; ++i) put_q(i, q[i] * p0[i]), put_k(8 + i, k[8 + i] * u0[i]);
  return g8[0] * g8[1];
}
