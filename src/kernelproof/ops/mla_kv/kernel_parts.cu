// A product of float32 matrices on Hopper's tensor cores, as accurate as one in float32.
//
// Each factor is the sum of three bfloat16 parts of 8 bits, exactly: x = x0 + x1 + x2, where x1 is at
// most 2^-8 of x0 and x2 at most 2^-8 of x1. Of the nine products of parts six count; the others are
// below half a unit in the last place of float32. A tensor core truncates when it adds, so it sums one
// step of 64 terms only, the smallest products first, and float32 additions do the rest.
//
// Two warpgroups load the factors, take them apart and write the parts to shared memory; two multiply,
// 64 tokens each. A block takes tiles of 128 tokens x COLUMNS in turn, of both weights.

#include "common.cuh"
#include "hopper.cuh"

constexpr int kTokens = 128, kDepth = 64, kStages = 2, kParts = 3;
constexpr int kThreads = 512, kConverters = 256;
constexpr int kTokenBytes = kTokens * kDepth * 2;  // of one part

// The parts of two values, in pairs.
__device__ __forceinline__ void take_apart(float x, float y, unsigned (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    parts[p] = *reinterpret_cast<const unsigned*>(&v);
    x -= __uint_as_float(parts[p] << 16);
    y -= __uint_as_float(parts[p] & 0xffff0000u);
  }
}

// The parts of four values, `pitch` bytes from one to the next.
__device__ __forceinline__ void store_parts(unsigned to, int pitch, float4 v) {
  unsigned low[kParts], high[kParts];
  take_apart(v.x, v.y, low);
  take_apart(v.z, v.w, high);
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to + p * pitch), "r"(low[p]), "r"(high[p])
                 : "memory");
}

__device__ __forceinline__ float4 load_quad(const float* from, bool there) {
  return there ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
}

// Tokens lie `token_stride` apart, their values contiguously. Weights: element (k, n) at k * row + n,
// or K_MAJOR: at n * column + k. All in units that 16 bytes divide. A split of the depth writes to a
// plane of its own behind out0.
template <int COLUMNS, bool K_MAJOR>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_parts(const float* x, const float* w0, const float* w1, float* out0, float* out1,
                 const float* k_pe, const __grid_constant__ Sizes a) {
  constexpr int weight_bytes = COLUMNS * kDepth * 2;
  constexpr int stage_bytes = kParts * (kTokenBytes + weight_bytes);
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * kStages];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned full = shared_offset(barriers), empty = full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full + 8 * s, kConverters / 32);
      barrier_init(empty + 8 * s, 2);
    }
    barrier_init_done();
  }
  __syncthreads();
  const int columns = a.tiles0 + a.tiles1;
  const int splits = static_cast<int>((a.depth + a.split_depth - 1) / a.split_depth);
  const int tiles = a.token_tiles * columns * splits;
  wait_for_previous_kernel();
  let_next_kernel_start();

  if (threadIdx.x < kConverters) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
    constexpr int x_loads = kTokens * kDepth / 4 / kConverters;
    constexpr int w_loads = COLUMNS * kDepth / 4 / kConverters;
    constexpr int quads = K_MAJOR ? kDepth / 4 : COLUMNS / 4;  // along the contiguous axis of a weight
    constexpr int lines = kConverters / quads;
    const int tid = threadIdx.x, quad = tid % 16, row = tid / 16;
    const int w_quad = tid % quads, w_line = tid / quads;
    float4 xs[x_loads], ws[w_loads];
    int tile = blockIdx.x;
    int64 k = 0, end = 0, first = 0;
    int n0 = 0;
    const Side* side = nullptr;
    const float* w = nullptr;
    auto take_tile = [&] {
      const int split = tile / (a.token_tiles * columns), rest = tile % (a.token_tiles * columns);
      const int c = rest / a.token_tiles;
      const bool second = c >= a.tiles0;
      side = &a.side[second];
      w = second ? w1 : w0;
      n0 = (second ? c - a.tiles0 : c) * COLUMNS;
      first = static_cast<int64>(rest % a.token_tiles) * kTokens;
      k = split * a.split_depth;
      end = min(k + a.split_depth, a.depth);
    };
    auto load_tokens = [&] {
#pragma unroll
      for (int i = 0; i < x_loads; ++i) {
        const int64 n = first + row + 16 * i;
        xs[i] = load_quad(x + n * a.inner_stride + k + 4 * quad, n < a.tokens && k + 4 * quad < end);
      }
    };
    auto load_weights = [&] {
#pragma unroll
      for (int i = 0; i < w_loads; ++i) {
        if constexpr (K_MAJOR) {
          const int n = n0 + w_line + lines * i;
          ws[i] = load_quad(w + n * side->column + k + 4 * w_quad,
                            n < side->columns && k + 4 * w_quad < end);
        } else {
          const int64 r = k + w_line + lines * i;
          ws[i] = load_quad(w + r * side->row + n0 + 4 * w_quad,
                            r < end && n0 + 4 * w_quad < side->columns);
        }
      }
    };
    if (tile < tiles) {
      take_tile();
      load_tokens();
      load_weights();
    }
    int stage = 0, parity = 1;
    while (tile < tiles) {
      barrier_wait(empty + 8 * stage, parity);
      const unsigned to = base + stage * stage_bytes;
#pragma unroll
      for (int i = 0; i < x_loads; ++i) {
        const int r = row + 16 * i;
        store_parts(to + r * 128 + ((quad / 2 ^ (r & 7)) << 4) + quad % 2 * 8, kTokenBytes, xs[i]);
      }
      // What comes next is asked for as soon as there is room in registers.
      k += kDepth;
      if (k >= end) {
        tile += gridDim.x;
        if (tile < tiles) take_tile();
      }
      const bool more = tile < tiles;
      if (more) load_tokens();
#pragma unroll
      for (int i = 0; i < w_loads; ++i) {
        const int r = w_line + lines * i, block = K_MAJOR ? 0 : w_quad / 16 * 8192;
        store_parts(to + kParts * kTokenBytes + block + r * 128 +
                        ((w_quad % 16 / 2 ^ (r & 7)) << 4) + w_quad % 2 * 8,
                    weight_bytes, ws[i]);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (tid % 32 == 0) barrier_arrive(full + 8 * stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
      if (more) load_weights();
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
  const int consumer = threadIdx.x / 128 - kConverters / 128, tid = threadIdx.x % 128;
  const int warp = tid / 32, lane = tid % 32;
  int stage = 0, parity = 0;
  float d[COLUMNS / 2], sum[COLUMNS / 2];
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int split = tile / (a.token_tiles * columns), rest = tile % (a.token_tiles * columns);
    const int c = rest / a.token_tiles;
    const bool second = c >= a.tiles0;
    const Side& side = a.side[second];
    const int n0 = (second ? c - a.tiles0 : c) * COLUMNS;
    const int64 first = static_cast<int64>(rest % a.token_tiles) * kTokens + consumer * 64;
    const int64 begin = split * a.split_depth, end = min(begin + a.split_depth, a.depth);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.0f;
    for (int64 k = begin; k < end; k += kDepth) {
      barrier_wait(full + 8 * stage, parity);
      const unsigned xs = base + stage * stage_bytes + consumer * (64 * 128);
      const unsigned ws = base + stage * stage_bytes + kParts * kTokenBytes;
      product_fence();
      // Pairs of parts, the smallest products first.
      constexpr int of_x[6] = {1, 0, 2, 0, 1, 0}, of_w[6] = {1, 2, 0, 1, 0, 0};
#pragma unroll
      for (int p = 0; p < 6; ++p) {
        const unsigned xp = xs + of_x[p] * kTokenBytes, wp = ws + of_w[p] * weight_bytes;
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i) {
          const unsigned long long b =
              K_MAJOR ? matrix_at(wp + 32 * i, 16) : matrix_at(wp + 2048 * i, 8192);
          product_async<K_MAJOR ? 0 : 1>(d, matrix_at(xp + 32 * i, 16), b, p + i > 0,
                                         __nv_bfloat16());
        }
      }
      product_commit();
      product_wait<0>();
      product_ready(d);
      if (tid == 0) barrier_arrive(empty + 8 * stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) sum[i] += d[i];
    }

    // This lane has columns 8 i + 2 (lane % 4) and the next one of rows lane / 4 and 8 more.
    float* const out = (second ? out1 : out0) + split * a.tokens * side.columns;
    const int64 row0 = first + warp * 16 + lane / 4;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) finite &= isfinite(sum[i]);
    if (!__all_sync(~0u, finite)) {
      // An infinity has no parts, nor has what rounds to one: formed anew, in the way of the formula.
      const float* const w = second ? w1 : w0;
      for (int i = 0; i < COLUMNS / 2; ++i) {
        const int n = n0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int64 token = row0 + i / 2 % 2 * 8;
        if (token >= a.tokens || n >= side.columns) continue;
        float total = 0.0f;
        for (int64 k = begin; k < end; ++k)
          total += x[token * a.inner_stride + k] * w[k * side.row + n * side.column];
        out[out_column(side, n) + token * side.out_token] = total;
      }
    } else {
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; ++i) {
        const int n = n0 + 8 * i + lane % 4 * 2;
        if (n >= side.columns) continue;
        float* const to = out + out_column(side, n);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int64 token = row0 + 8 * j;
          if (token < a.tokens)
            *reinterpret_cast<float2*>(to + token * side.out_token) =
                make_float2(sum[4 * i + 2 * j], sum[4 * i + 2 * j + 1]);
        }
      }
    }
    if (!second && a.rope != 0) {
      const int count = static_cast<int>(max(min(static_cast<int64>(64), a.tokens - first), 0ll));
      append_rope(a, k_pe, out0, first, count, n0, COLUMNS, tid, 128);
    }
  }
}
