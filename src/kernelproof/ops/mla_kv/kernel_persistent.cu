// Tens to hundreds of tokens on Hopper, 16-bit: both products in one cooperative launch, by wgmma.
//
// First every block forms 64 tokens x 128 latents over a share of the model axis. The shares meet in
// global memory at a barrier of the grid, blocks sum them, and after a second barrier each takes
// tiles of keys and values. One thread keeps the copy engine busy throughout: the weights of the
// first tile come while the shares are summed.

#include "common.cuh"
#include "grid.cuh"
#include "hopper.cuh"

constexpr int kDepth = 64;  // of a step, in both products
constexpr int kDownTokens = 64, kDownColumns = 128;
constexpr int kDownTokenBytes = kDownTokens * kDepth * 2;
constexpr int kDownStageBytes = kDownTokenBytes + kDownColumns * kDepth * 2;
constexpr int kConsumers = 256, kThreads = kConsumers + 128;

__device__ __forceinline__ unsigned packed(float a, float b, __half) {
  const __half2 v = __floats2half2_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&v);
}

__device__ __forceinline__ unsigned packed(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&v);
}

__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// What one block has written, all blocks see afterwards, also through the copy engine.
__device__ __forceinline__ void meet(unsigned long long* count) {
  consumers_sync();
  if (threadIdx.x == 128) grid_barrier(count);
  consumers_sync();
}

// Latents of tokens x rank from `splits` x tokens x rank: a warp takes 128 of a token at a time, or
// with a norm all of them. `warp` of `warps`, over the whole grid.
template <typename T, bool NORM, int PASSES>
__device__ __forceinline__ void sum_latents(const float* partial, T* latent, const T* norm_weight,
                                            int tokens, int rank, int splits, float epsilon,
                                            int warp, int warps) {
  const int lane = threadIdx.x % 32, pieces = NORM ? 1 : (rank + 127) / 128;
  const int64 pitch = static_cast<int64>(tokens) * rank;
  for (int unit = warp; unit < tokens * pieces; unit += warps) {
    const int token = unit / pieces, r0 = unit % pieces * 128 + 4 * lane;
    const float* const from = partial + static_cast<int64>(token) * rank + r0;
    float4 total[PASSES];
    float square = 0.0f;
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
      total[p] = make_float4(0, 0, 0, 0);
      if (r0 + 128 * p >= rank) continue;
      constexpr int batch = PASSES > 1 ? 8 : 16;
      for (int s0 = 0; s0 < splits; s0 += batch) {
        float4 v[batch];
#pragma unroll
        for (int s = 0; s < batch; ++s)
          if (s0 + s < splits) v[s] = load_fresh(from + (s0 + s) * pitch + 128 * p);
#pragma unroll
        for (int s = 0; s < batch; ++s)
          if (s0 + s < splits)
            total[p].x += v[s].x, total[p].y += v[s].y, total[p].z += v[s].z, total[p].w += v[s].w;
      }
      if (NORM)
        square += total[p].x * total[p].x + total[p].y * total[p].y + total[p].z * total[p].z +
                  total[p].w * total[p].w;
    }
    float scale = 1.0f;
    if (NORM) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      scale = 1.0f / sqrtf(square / rank + epsilon);
    }
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
      const int r = r0 + 128 * p;
      if (r >= rank) continue;
      if (NORM) {
        total[p].x *= scale * widen(norm_weight[r]);
        total[p].y *= scale * widen(norm_weight[r + 1]);
        total[p].z *= scale * widen(norm_weight[r + 2]);
        total[p].w *= scale * widen(norm_weight[r + 3]);
      }
      *reinterpret_cast<uint2*>(latent + static_cast<int64>(token) * rank + r) = make_uint2(
          packed(total[p].x, total[p].y, T()), packed(total[p].z, total[p].w, T()));
    }
  }
}

// x_map: hidden (depth, token); down_map, w0_map, w1_map: as those of mla_kv_wgmma, boxes of 64 x 64;
// latent_map: (depth, token) of `latent`. `fold` columns make a head of a map. Boxes of tokens have 64
// of them. BM, BN: the tile of keys and values, 64 or 128 tokens (the consumers then share its
// columns, or its tokens) and STAGES of it. PASSES: of sum_latents with a norm. The first product has
// DOWN_STAGES stages and a block for each of `splits` shares of `split_steps` steps of every tile.
// `partial`: splits x tokens x rank. rank is a multiple of 8.
template <typename T, int BM, int BN, int STAGES, int DOWN_STAGES, bool K_MAJOR, bool DOWN_K_MAJOR,
          int PASSES, bool NORM>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_persistent(const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap down_map,
                      const __grid_constant__ TensorMap latent_map,
                      const __grid_constant__ TensorMap w0_map,
                      const __grid_constant__ TensorMap w1_map, const T* norm_weight, const T* k_pe,
                      T* out0, T* out1, float* partial, T* latent, unsigned long long* count,
                      const __grid_constant__ Sizes a, int rank, int splits, int split_steps,
                      int fold0, int fold1, float epsilon) {
  constexpr int token_bytes = BM * kDepth * 2, stage_bytes = token_bytes + BN * kDepth * 2;
  constexpr int own = BM == 128 ? BN : BN / 2;  // columns of a consumer, of 64 tokens
  constexpr int ring_bytes =
      max_of(STAGES * stage_bytes, DOWN_STAGES * kDownStageBytes);
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * (STAGES + DOWN_STAGES) + 1];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned full = shared_offset(barriers), empty = full + 8 * STAGES;
  const unsigned down_full = empty + 8 * STAGES, down_empty = down_full + 8 * DOWN_STAGES;
  const unsigned summed = down_empty + 8 * DOWN_STAGES;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, 2);
    }
    for (int s = 0; s < DOWN_STAGES; ++s) {
      barrier_init(down_full + 8 * s, 1);
      barrier_init(down_empty + 8 * s, 2);
    }
    barrier_init(summed, 1);
    barrier_init_done();
  }
  __syncthreads();
  wait_for_previous_kernel();

  // The block's part of the first product.
  const int tokens = static_cast<int>(a.tokens);
  const int down_tiles = (rank + kDownColumns - 1) / kDownColumns;
  const int part = blockIdx.x / splits, split = blockIdx.x % splits;
  const int down_token = part / down_tiles * kDownTokens, down_column = part % down_tiles * kDownColumns;
  const int all_steps = static_cast<int>((a.depth + kDepth - 1) / kDepth);
  const int first_step = split * split_steps;
  const int down_steps =
      down_token < tokens ? max(0, min(split_steps, all_steps - first_step)) : 0;
  // Tiles of keys and values: token tile first.
  const int tiles = a.token_tiles * (a.tiles0 + a.tiles1);
  const int up_steps = (rank + kDepth - 1) / kDepth;
  const int group = threadIdx.x / 128;

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x == 0) {
      prefetch_map(&x_map);
      prefetch_map(&down_map);
      prefetch_map(&w0_map);
      prefetch_map(&w1_map);
      prefetch_map(&latent_map);
      constexpr int boxes = BN / 64;
      const TensorMap* map = nullptr;
      int d[boxes], head[boxes];
      auto take_tile = [&](int tile) {
        const int c = tile / a.token_tiles;
        const bool second = c >= a.tiles0;
        const int fold = second ? fold1 : fold0;
        map = second ? &w1_map : &w0_map;
#pragma unroll
        for (int i = 0; i < boxes; ++i) {
          const int n = (second ? c - a.tiles0 : c) * BN + 64 * i;
          head[i] = n / fold;
          d[i] = n - head[i] * fold;
        }
      };
      auto load_weights = [&](int step, int stage) {
        const unsigned to = base + stage * stage_bytes + token_bytes;
        barrier_expect(full + 8 * stage, stage_bytes);
#pragma unroll
        for (int i = 0; i < boxes; ++i) {
          const int x = K_MAJOR ? step * kDepth : d[i], y = K_MAJOR ? d[i] : head[i];
          const int z = K_MAJOR ? head[i] : step * kDepth;
          load_box(to + i * 8192, map, x, y, z, full + 8 * stage);
        }
      };
      for (int s = 0; s < down_steps; ++s) {
        const int stage = s % DOWN_STAGES;
        if (s >= DOWN_STAGES) barrier_wait(down_empty + 8 * stage, (s / DOWN_STAGES - 1) & 1);
        const unsigned to = base + stage * kDownStageBytes, barrier = down_full + 8 * stage;
        const int k = (first_step + s) * kDepth;
        barrier_expect(barrier, kDownStageBytes);
        load_box(to, &x_map, k, down_token, barrier);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int n = down_column + 64 * i;
          load_box(to + kDownTokenBytes + i * 8192, &down_map, DOWN_K_MAJOR ? k : n,
                   DOWN_K_MAJOR ? n : 0, DOWN_K_MAJOR ? 0 : k, barrier);
        }
      }
      // Each stage has been read as often as it was filled: the ring is free for the second product.
      for (int stage = 0; stage < DOWN_STAGES && stage < down_steps; ++stage)
        barrier_wait(down_empty + 8 * stage, (down_steps - 1 - stage) / DOWN_STAGES & 1);
      const int early = min(STAGES, up_steps);
      if (static_cast<int>(blockIdx.x) < tiles) {
        take_tile(blockIdx.x);
        for (int s = 0; s < early; ++s) load_weights(s, s);
      }
      barrier_wait(summed, 0);
      asm volatile("fence.proxy.async;" ::: "memory");
      int stage = 0, parity = 1, it = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int token = tile % a.token_tiles * BM;
        if (it > 0) take_tile(tile);
        for (int step = 0; step < up_steps; ++step, ++it) {
          if (it >= early) {
            barrier_wait(empty + 8 * stage, parity);
            load_weights(step, stage);
          }
#pragma unroll
          for (int i = 0; i < BM / 64; ++i)
            load_box(base + stage * stage_bytes + i * 8192, &latent_map, step * kDepth,
                     token + 64 * i, full + 8 * stage);
          if (++stage == STAGES) stage = 0, parity ^= 1;
        }
      }
    } else if (threadIdx.x >= 32 && a.rope != 0) {
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int c = tile / a.token_tiles, first = tile % a.token_tiles * BM;
        if (c < a.tiles0)
          append_rope(a, k_pe, out0, first, min(BM, tokens - first), c * BN, BN, threadIdx.x - 32, 96);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
  const int consumer = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const bool leader = threadIdx.x % 128 == 0;
  if (down_steps > 0) {
    // This consumer has 64 tokens x 64 latents.
    float d[32];
    for (int s = 0; s < down_steps; ++s) {
      const int stage = s % DOWN_STAGES;
      barrier_wait(down_full + 8 * stage, s / DOWN_STAGES & 1);
      const unsigned x = base + stage * kDownStageBytes, w = x + kDownTokenBytes + consumer * 8192;
      product_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        const unsigned long long b =
            DOWN_K_MAJOR ? matrix_at(w + 32 * k, 16) : matrix_at(w + 2048 * k, 8192);
        product_async<DOWN_K_MAJOR ? 0 : 1>(d, matrix_at(x + 32 * k, 16), b, s + k > 0, T());
      }
      product_commit();
      if (s > 0) {
        product_wait<1>();
        if (leader) barrier_arrive(down_empty + 8 * ((s - 1) % DOWN_STAGES));
      }
    }
    product_wait<0>();
    product_ready(d);
    if (leader) barrier_arrive(down_empty + 8 * ((down_steps - 1) % DOWN_STAGES));
    float* const to = partial + static_cast<int64>(split) * tokens * rank;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = down_token + 16 * warp + lane / 4 + 8 * j;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = down_column + 64 * consumer + 8 * i + lane % 4 * 2;
        if (token < tokens && r < rank)
          *reinterpret_cast<float2*>(to + static_cast<int64>(token) * rank + r) =
              make_float2(d[4 * i + 2 * j], d[4 * i + 2 * j + 1]);
      }
    }
  }
  meet(count);
  const int all_warps = gridDim.x * (kConsumers / 32);
  sum_latents<T, NORM, NORM ? PASSES : 1>(partial, latent, norm_weight, tokens, rank, splits, epsilon,
                                          (consumer * 4 + warp) * gridDim.x + blockIdx.x, all_warps);
  asm volatile("fence.proxy.async;" ::: "memory");  // the copy engine reads them next
  meet(count);
  if (threadIdx.x == 128) barrier_arrive(summed);

  // 16 tokens x `piece` columns of a warp on their way out, `pieces` times 16 bytes a row.
  constexpr int width = own < 128 ? own : 128, pieces = width / 8;
  constexpr int spread = pieces < 8 ? pieces - 1 : 7;
  const unsigned staged = base + ring_bytes + (consumer * 4 + warp) * (16 * 128 * 2);
  int stage = 0, parity = 0, last = 0;
  float d[own / 2];
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int c = tile / a.token_tiles;
    const bool second = c >= a.tiles0;
    const Side& side = a.side[second];
    const int n0 = (second ? c - a.tiles0 : c) * BN + (BM == 128 ? 0 : consumer * own);
    const int first = tile % a.token_tiles * BM + (BM == 128 ? consumer * 64 : 0) + warp * 16;
    const int rows = max(min(16, tokens - first), 0);
    for (int step = 0; step < up_steps; ++step) {
      barrier_wait(full + 8 * stage, parity);
      const unsigned at = base + stage * stage_bytes;
      const unsigned x = at + (BM == 128 ? consumer * 8192 : 0);
      const unsigned w = at + token_bytes + (BM == 128 ? 0 : consumer * (own * 128));
      product_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        // Half of a box of 64 columns: 32 of them lie 64 bytes further, or 32 rows of 128 bytes.
        unsigned long long b;
        if constexpr (K_MAJOR)
          b = matrix_at(w + 32 * k, 16);
        else if constexpr (own >= 64)
          b = matrix_at(w + 2048 * k, 8192);
        else
          b = matrix_at(at + token_bytes + 2048 * k + consumer * 64, 8192);
        product_async<K_MAJOR ? 0 : 1>(d, matrix_at(x + 32 * k, 16), b, step + k > 0, T());
      }
      product_commit();
      if (step > 0) {
        product_wait<1>();
        if (leader) barrier_arrive(empty + 8 * last);
      }
      last = stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    product_wait<0>();
    product_ready(d);
    if (leader) barrier_arrive(empty + 8 * last);
#pragma unroll
    for (int h = 0; h < own / width; ++h) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < width / 16; ++j) {
        const float* v = d + h * (width / 2) + j * 8;
        const int row = lane % 16, piece = 2 * j + lane / 16;
        store_matrices(staged + row * (width * 2) + ((piece ^ (row & spread)) << 4),
                       packed(v[0], v[1], T()), packed(v[2], v[3], T()), packed(v[4], v[5], T()),
                       packed(v[6], v[7], T()));
      }
      __syncwarp();
      const int piece = lane % pieces, n = n0 + width * h + 8 * piece;
      if (n < side.columns) {
        T* to = (second ? out1 : out0) + out_column(side, n) + first * side.out_token;
#pragma unroll
        for (int i = 0; i < pieces / 2; ++i) {
          const int row = i * (32 / pieces) + lane / pieces;
          uint4 v;
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                       : "r"(staged + row * (width * 2) + ((piece ^ (row & spread)) << 4))
                       : "memory");
          if (row < rows) *reinterpret_cast<uint4*>(to + row * side.out_token) = v;
        }
      }
    }
  }
}
