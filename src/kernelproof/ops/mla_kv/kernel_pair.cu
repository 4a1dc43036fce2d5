// Some ten to some hundred tokens on Hopper, 16-bit: two launches of wgmma that overlap.
//
// At these sizes a product is a chain: launch, copies, multiplication, stores. Splitting the first sum
// over the blocks of a cluster shortens the copies, and its shares meet in shared memory instead of in a
// launch of their own. The second product starts during the first and has its weights in shared memory
// when the latents arrive.

#include "cluster.cuh"

constexpr int kDepth = 64, kRank = 64;         // terms of a step; latents of a block of the first
constexpr int kBoxBytes = 64 * kDepth * 2;     // 64 columns of a weight
constexpr int kPartialPitch = kRank + 8;       // floats; the 8 spread rows over the banks

// latent = hidden @ w_down; BM tokens x 64 latents for a cluster of BLOCKS, each with its share of the
// model axis. Maps: hidden (model, token) in boxes of 64 x BM; w_down (rank, 1, model) in boxes of
// 64 x 1 x 64, or K_MAJOR (model, rank, 1) in boxes of 64 x 64 x 1.
// NORM: latents are multiplied by norm_weight, and squares [tile of rank][token] gets the sum of
// squares of what they were before.
template <typename T, int BM, int BLOCKS, int STAGES, bool K_MAJOR, bool NORM>
__global__ void __launch_bounds__(2 * BM + 32)
    mla_kv_pair_down(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                     T* latent, const T* norm_weight, float* squares, int64 tokens, int model,
                     int rank, int token_tiles) {
  constexpr int stage_bytes = BM * kDepth * 2 + kBoxBytes, workers = 2 * BM;
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned full = shared_offset(barriers), empty = full + 8 * STAGES;
  float* const partial = reinterpret_cast<float*>(memory + (base - shared_offset(memory)));
  const int tile = blockIdx.x / BLOCKS, share = BLOCKS > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int64 first = static_cast<int64>(tile % token_tiles) * BM;
  const int n0 = tile / token_tiles * kRank;
  const int all = ceil_div(model, kDepth), each = ceil_div(all, BLOCKS);
  const int step0 = share * each, steps = max(min(each, all - step0), 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, workers / 128);
    }
    barrier_init_done();
  }
  __syncthreads();

  if (threadIdx.x >= workers) {
    if (threadIdx.x == workers) {
      prefetch_map(&x_map);
      auto load_weights = [&](int step, int stage) {
        const unsigned to = base + stage * stage_bytes + BM * kDepth * 2;
        const int k = (step0 + step) * kDepth;
        barrier_expect(full + 8 * stage, stage_bytes);
        if constexpr (K_MAJOR)
          load_box(to, &w_map, k, n0, 0, full + 8 * stage);
        else
          load_box(to, &w_map, n0, 0, k, full + 8 * stage);
      };
      // The weights as well may be of a kernel before the previous one, which let this one start
      // before it waited for that.
      wait_for_previous_kernel();
      let_next_kernel_start();
      int stage = 0, parity = 1;
      for (int step = 0; step < steps; ++step) {
        if (step >= STAGES) barrier_wait(empty + 8 * stage, parity);
        load_weights(step, stage);
        load_box(base + stage * stage_bytes, &x_map, (step0 + step) * kDepth, static_cast<int>(first),
                 full + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
    }
    __syncwarp();
  } else {
    wait_for_previous_kernel();
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    float d[kRank / 2];
#pragma unroll
    for (int i = 0; i < kRank / 2; ++i) d[i] = 0.0f;
    int stage = 0, parity = 0, last = 0;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(full + 8 * stage, parity);
      const unsigned x = base + stage * stage_bytes + group * (64 * 128);
      const unsigned w = base + stage * stage_bytes + BM * kDepth * 2;
      product_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
        product_async<K_MAJOR ? 0 : 1>(d, matrix_at(x + 32 * k, 16),
                                       K_MAJOR ? matrix_at(w + 32 * k, 16)
                                               : matrix_at(w + 2048 * k, 8192),
                                       step + k > 0, T());
      product_commit();
      if (step > 0) {
        product_wait<1>();
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * last);
      }
      last = stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    product_wait<0>();
    product_ready(d);
    asm volatile("bar.sync 1, %0;" ::"n"(workers) : "memory");  // all have read what was copied
#pragma unroll
    for (int i = 0; i < kRank / 8; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(partial +
                                   (group * 64 + warp * 16 + lane / 4 + 8 * h) * kPartialPitch +
                                   8 * i + lane % 4 * 2) =
            make_float2(d[4 * i + 2 * h], d[4 * i + 2 * h + 1]);
  }
  cluster_meet();

  if (threadIdx.x < workers) {
    constexpr int rows = BM / BLOCKS, passes = rows * 16 / workers;
    static_assert(rows * 16 % workers == 0, "16 threads have a token");
    float4 part[passes][BLOCKS];
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const int row = share * rows + (p * workers + threadIdx.x) / 16, column = threadIdx.x % 16 * 4;
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
        part[p][b] = load_from_block(address_in(
            shared_offset(partial + row * kPartialPitch + column), static_cast<unsigned>(b)));
    }
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const int64 token = first + share * rows + (p * workers + threadIdx.x) / 16;
      const int n = n0 + threadIdx.x % 16 * 4;
      float4 v = part[p][0];
#pragma unroll
      for (int b = 1; b < BLOCKS; ++b)
        v.x += part[p][b].x, v.y += part[p][b].y, v.z += part[p][b].z, v.w += part[p][b].w;
      const bool mine = token < tokens && n < rank;
      if constexpr (NORM) {
        float square = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
        for (int lanes = 8; lanes > 0; lanes /= 2)
          square += __shfl_xor_sync(~0u, square, lanes);
        if (threadIdx.x % 16 == 0 && token < tokens) squares[n0 / kRank * tokens + token] = square;
        if (mine) {
          v.x *= widen(norm_weight[n]), v.y *= widen(norm_weight[n + 1]);
          v.z *= widen(norm_weight[n + 2]), v.w *= widen(norm_weight[n + 3]);
        }
      }
      if (mine)
        *reinterpret_cast<uint2*>(latent + token * rank + n) =
            make_uint2(packed(v.x, v.y, T()), packed(v.z, v.w, T()));
    }
  }
  __syncwarp();
  if (BLOCKS > 1) cluster_sync();  // nobody leaves while others may read its shares
}

// Keys and values of BM tokens, whose latents a block keeps (STEPS of 64), for its tiles of BN columns.
// Of two warpgroups each has half of the tokens, or, TURNS, every other tile: one writes results while
// the other multiplies.
// Maps: latent (rank, token) in boxes of 64 x BM; weights as mla_kv_wgmma, boxes of 64 columns.
// NORM: results are divided by the root of epsilon plus the mean of `square_tiles` sums in `squares`,
// over `rank` values. `groups`: blocks that share the columns of the same tokens. THREADS: 384, which
// hand registers on to those that multiply; or 320, which leave room for a block of the first product.
template <typename T, int BM, int BN, int STEPS, int STAGES, bool TURNS, bool K_MAJOR, bool NORM,
          int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    mla_kv_pair_up(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w0_map,
                   const __grid_constant__ TensorMap w1_map, T* out0, T* out1, const T* k_pe,
                   const __grid_constant__ Sizes a, int fold0, int fold1, const float* squares,
                   int square_tiles, int rank, float epsilon, int groups) {
  constexpr int token_bytes = BM * kDepth * 2, weight_bytes = BN * kDepth * 2, boxes = BN / 64;
  constexpr int staged_bytes = 16 * BN * 2;  // of a warp
  constexpr int blocks = TURNS ? BM / 64 : 1;  // of 64 tokens, for a warpgroup
  static_assert(TURNS || BM == 128, "64 tokens for each of two warpgroups");
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + STEPS];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned ring = base + STEPS * token_bytes;
  const unsigned full = shared_offset(barriers), empty = full + 8 * STAGES, here = empty + 8 * STAGES;
  const int64 first = static_cast<int64>(blockIdx.x % a.token_tiles) * BM;
  const int tile0 = blockIdx.x / a.token_tiles, tiles = a.tiles0 + a.tiles1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, TURNS ? 1 : 2);
    }
    for (int s = 0; s < STEPS; ++s) barrier_init(here + 8 * s, 1);
    barrier_init_done();
  }
  __syncthreads();

  if (threadIdx.x >= 256) {
    if constexpr (THREADS == 384) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x != 256) {
      if (threadIdx.x < 288 || a.rope == 0) return;
      wait_for_previous_kernel();
      const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
      for (int tile = tile0; tile < a.tiles0; tile += groups)
        append_rope(a, k_pe, out0, first, count, tile * BN, BN, static_cast<int>(threadIdx.x) - 288,
                    THREADS - 288);
      return;
    }
    prefetch_map(&x_map);
    const TensorMap* map = nullptr;
    int d[boxes], head[boxes], tile = tile0, next = 0, stage = 0, parity = 1;
    auto take_tile = [&]() {
      const bool second = tile >= a.tiles0;
      const int fold = second ? fold1 : fold0;
      map = second ? &w1_map : &w0_map;
#pragma unroll
      for (int i = 0; i < boxes; ++i) {
        const int n = (second ? tile - a.tiles0 : tile) * BN + 64 * i;
        head[i] = n / fold;
        d[i] = n - head[i] * fold;
      }
    };
    auto load_weights = [&]() {
      if (next == 0) take_tile();
      barrier_expect(full + 8 * stage, weight_bytes);
#pragma unroll
      for (int i = 0; i < boxes; ++i) {
        const unsigned to = ring + stage * weight_bytes + i * kBoxBytes;
        if constexpr (K_MAJOR)
          load_box(to, map, next * kDepth, d[i], head[i], full + 8 * stage);
        else
          load_box(to, map, d[i], head[i], next * kDepth, full + 8 * stage);
      }
      if (++next == STEPS) next = 0, tile += groups;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    for (int s = 0; s < STAGES && tile < tiles; ++s) load_weights();
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (int s = 0; s < STEPS; ++s) {
      barrier_expect(here + 8 * s, token_bytes);
      load_box(base + s * token_bytes, &x_map, s * kDepth, static_cast<int>(first), here + 8 * s);
    }
    parity = 0;
    while (tile < tiles) {
      barrier_wait(empty + 8 * stage, parity);
      load_weights();
    }
  } else {
    if constexpr (THREADS == 384) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    wait_for_previous_kernel();
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const unsigned staged = ring + STAGES * weight_bytes + threadIdx.x / 32 * staged_bytes;
    const int64 row0 = first + (TURNS ? 0 : group * 64) + warp * 16;
    int count[blocks];
    float scale[blocks][2];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      count[m] =
          static_cast<int>(max(min(static_cast<int64>(16), a.tokens - row0 - 64 * m), 0ll));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = lane / 4 + 8 * j;
        float sum = 0.0f;
        if (NORM && row < count[m])
          for (int i = 0; i < square_tiles; ++i) sum += squares[i * a.tokens + row0 + 64 * m + row];
        scale[m][j] = 1.0f / sqrtf(sum / rank + epsilon);
      }
    }
    int position = 0;  // of a step in the ring, counted through
    for (int tile = tile0, number = 0; tile < tiles; tile += groups, ++number) {
      if (TURNS && number % 2 != group) {
        position += STEPS;
        continue;
      }
      // The other has waited for all copies of the tile before, so that those awaited here are not
      // taken for them: a barrier tells only whether its number of phases is odd.
      if (TURNS && number > 0) asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
      float d[blocks][BN / 2];
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int stage = (position + s) % STAGES, parity = (position + s) / STAGES & 1;
        if (number <= group) barrier_wait(here + 8 * s, 0);
        barrier_wait(full + 8 * stage, parity);
        const unsigned x = base + s * token_bytes + (TURNS ? 0 : group * (64 * 128));
        const unsigned w = ring + stage * weight_bytes;
        product_fence();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k)
#pragma unroll
          for (int m = 0; m < blocks; ++m)
            product_async<K_MAJOR ? 0 : 1>(d[m], matrix_at(x + m * (64 * 128) + 32 * k, 16),
                                           K_MAJOR ? matrix_at(w + 32 * k, 16)
                                                   : matrix_at(w + 2048 * k, 8192),
                                           s + k > 0, T());
        product_commit();
        if (s > 0) {
          product_wait<1>();
          if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * ((position + s - 1) % STAGES));
        }
      }
      if (TURNS && tile + groups < tiles)
        asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory");
      product_wait<0>();
#pragma unroll
      for (int m = 0; m < blocks; ++m) product_ready(d[m]);
      position += STEPS;
      if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * ((position - 1) % STAGES));
      const bool second = tile >= a.tiles0;
      const Side& side = a.side[second];
      const int n = (second ? tile - a.tiles0 : tile) * BN + own_columns<BN>();
      const bool inside = n < side.columns;
      T* const to = (second ? out1 : out0) + (inside ? out_column(side, n) : 0);
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
        if constexpr (NORM) {
#pragma unroll
          for (int i = 0; i < BN / 2; ++i) d[m][i] *= scale[m][i / 2 % 2];
        }
        write_tokens<BN>(staged, d[m], 0, to + (row0 + 64 * m) * side.out_token, side.out_token,
                         count[m], inside);
      }
    }
  }
}
