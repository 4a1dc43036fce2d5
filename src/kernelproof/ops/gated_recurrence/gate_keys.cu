// The work on gates of keys for every chunk, once for all blocks that share a head: where its columns
// are too many for one block. A block takes a chunk, a warp 64 rows of the state.

#include "chunks.cuh"

// Two elements next to each other, read at once.
__device__ __forceinline__ float2 pair_at(const float* x) { return *reinterpret_cast<const float2*>(x); }
__device__ __forceinline__ float2 pair_at(const half16* x) {
  return unpack_half(*reinterpret_cast<const u32*>(x));
}

template <class Element, class Gate, int GATES, int K, bool PRECISE>
__global__ void __launch_bounds__(K / 2, same<Element, bfloat> ? 4 : 1)
    gate_keys(const Element* q, const Element* k, const Gate* gate_k, const Gate* gate_head,
              char* operands, uint4* products, float* decays, int T, int H, int rows, int group,
              const __grid_constant__ Layout s) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  constexpr int WARPS = K / 64;
  constexpr bool FINE = !same<Element, bfloat>;
  constexpr int PLANES = FINE ? same<Element, float> ? 3 : 2 : PRECISE ? 2 : 1;  // as `Config` has them
  constexpr int SUMMED = same<Element, float> ? 3 : FINE || PRECISE ? 2 : 1, TILE = PLANES * 16 * 2 * K;
  __shared__ __align__(128) char tiles[WARPS * (FINE ? ADDENDS : 2 * LEVEL)];
  __shared__ float shares[WARPS][7][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = (T + 15) / 16, chunk = blockIdx.x % chunks, chain = blockIdx.x / chunks;
  const int64 b = chain / H, h = chain % H, key_head = h / group, t0 = chunk * 16;
  const int valid = T - chunk * 16, column = warp * 64 + lane * 2;
  const Element* const q_at = q + b * s.q[0] + t0 * s.q[1] + key_head * s.q[2] + column;
  const Element* const k_at = k + b * s.k[0] + t0 * s.k[1] + key_head * s.k[2] + column;
  const Gate* const gate_at =
      gate_k + b * s.gate_k[0] + t0 * s.gate_k[1] + h * s.gate_k[2] + column;
  u32 qr[16], kr[16];  // of bfloat16; of others qs and ks
  float2 qs[16], ks[16];
  float2 g[16];
  float top = 0.0f;
  const float2 nothing = make_float2(0.0f, 0.0f);
  const bool there = column < rows;  // else these rows of the state do not exist, and are zeros
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    if constexpr (FINE) {
      qs[t] = t < valid && there ? pair_at(q_at + t * s.q[1]) : nothing;
      ks[t] = t < valid && there ? pair_at(k_at + t * s.k[1]) : nothing;
    } else {
      qr[t] = t < valid && there ? *reinterpret_cast<const u32*>(q_at + t * s.q[1]) : 0;
      kr[t] = t < valid && there ? *reinterpret_cast<const u32*>(k_at + t * s.k[1]) : 0;
    }
    const Gate* const pair = gate_at + t * s.gate_k[1];
    g[t] = t < valid && there ? make_float2(to_float(pair[0]), to_float(pair[1])) : make_float2(1.0f, 1.0f);
    if ((GATES & 4) && t < valid) {
      const float head = to_float(
          gate_head[b * s.gate_head[0] + (t0 + t) * s.gate_head[1] + h * s.gate_head[2]]);
      g[t] = make_float2(joined(g[t].x, head), joined(g[t].y, head));
    }
    top = larger(larger(top, g[t].x), g[t].y);
  }
  int unsafe = guard(g, top);

  const u32 own = shared_address(tiles) + warp * (FINE ? ADDENDS : 2 * LEVEL);
  float sums[6];
  char* const to = operands + (static_cast<int64>(chain) * chunks + chunk) * 2 * TILE +
                   warp * PLANES * 2048;
  auto put = [&](char* tile, int t, float2 x) {
    char* const at = tile + t * 128 + (lane * 4 ^ (t & 7) << 4);
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane)
      *reinterpret_cast<u32*>(at + plane * 2048) = next_plane(x);
  };
  auto put_q = [&](int t, float2 x) { put(to, t, x); };
  auto put_k = [&](int t, float2 x) { put(to + TILE, t, x); };
  float2 all;
  if constexpr (FINE) {
    all = fine_products(sums, qs, ks, g, own, lane, put_q, put_k);
  } else {
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      store32(own + t * LEVEL_ROW + lane * 4, qr[t]);
      store32(own + LEVEL + t * LEVEL_ROW + lane * 4, kr[t]);
    }
    __syncwarp();
    float a[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 x[4], y[4];
      load_matrices(x, own + lane % 16 * LEVEL_ROW + lane / 16 * 16 + i * 32);
      load_matrices(y, own + LEVEL + (lane % 8 + lane / 16 * 8) * LEVEL_ROW + lane / 8 % 2 * 16 + i * 32);
      multiply(a[0], x, y[0], y[1]), multiply(a[1], x, y[2], y[3]);
    }
    pick_diagonal(sums, a, lane);
    __syncwarp();
    all = gated_products(sums, qr, kr, g, own, lane, put_q, put_k);
  }
  if (FINE) unsafe = min(unsafe, unsafe_diagonal(sums, lane));
  *reinterpret_cast<float2*>(decays + (static_cast<int64>(chain) * chunks + chunk) * K + column) = all;
#pragma unroll
  for (int i = 0; i < 6; ++i) shares[warp][i][lane] = sums[i];
  shares[warp][6][lane] = __int_as_float(unsafe);
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
#pragma unroll
    for (int i = 0; i < 6; ++i) sums[i] += shares[other][i][lane];
    unsafe = min(unsafe, __float_as_int(shares[other][6][lane]));
  }
  uint4* const at = products + (static_cast<int64>(chain) * chunks + chunk) * SUMMED * 32 + lane;
#pragma unroll
  for (int plane = 0; plane < SUMMED; ++plane)
    store_global128(at + plane * 32, products_plane(sums, plane == 0 ? unsafe : 0));
}
