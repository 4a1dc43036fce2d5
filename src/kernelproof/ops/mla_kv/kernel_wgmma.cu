// A product of many tokens on Hopper: 16-bit, wgmma, tensor maps.
//
// A block takes tiles of 128 tokens x 256 columns in turn, of both weights. One warpgroup loads and
// two multiply, 64 tokens each. The second of these starts SKEW steps after the first, and so they
// stay: while one writes its results out, the other has the tensor cores to itself.

#include "common.cuh"
#include "hopper.cuh"

constexpr int kTokens = 128, kColumns = 256, kDepth = 64;
constexpr int kTokenBytes = kTokens * kDepth * 2, kWeightBytes = kColumns * kDepth * 2;
constexpr int kStageBytes = kTokenBytes + kWeightBytes;
// Columns on their way out at a time, of the 16 tokens of a warp; fewer where a norm needs the room.
__host__ __device__ constexpr int out_columns(bool norm) { return norm ? 64 : 128; }

// x_map: (depth, token). w_map: (column of a head, head, depth), or K_MAJOR: (depth, column of a
// head, head), where `fold` columns make a head. All maps have boxes of 64 x 64 elements, that of
// tokens 64 x 128, with the 128-byte swizzle.
// CLUSTER: 2 has pairs of blocks take neighbouring tiles of tokens, and each load half of the
// weights for both.
// EARLY: the previous kernel in the stream does not write the weights, so they are read at once.
// NORM: results go through an RMS norm. Then a cluster has all tiles of columns of its tokens: each
// block loads its part of the tokens for all (boxes of 64 x 128 / CLUSTER), and they exchange the sums
// of squares of a token.
template <typename T, int STAGES, int SKEW, int CLUSTER, bool K_MAJOR, bool EARLY, bool NORM>
__global__ void __launch_bounds__(384, 1)
    mla_kv_wgmma(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w0_map,
                 const __grid_constant__ TensorMap w1_map, T* out0, T* out1, const T* k_pe,
                 const __grid_constant__ Sizes a, int fold0, int fold1, const T* norm_weight,
                 float epsilon) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + 2 * NORM];
  // Of two tiles in turn: sums of squares of each token, from every block of the cluster.
  __shared__ float squares[NORM ? 2 * CLUSTER * kTokens : 1];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned full = shared_offset(barriers), empty = full + 8 * STAGES;
  const unsigned exchanged = empty + 8 * STAGES;
  const unsigned rank = CLUSTER > 1 ? cluster_rank() : 0;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, 2 * CLUSTER);
    }
    if constexpr (NORM) {
      barrier_init(exchanged, 1);
      barrier_init(exchanged + 8, 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();
  // A tile here is that of a cluster.
  constexpr int token_blocks = NORM ? 1 : CLUSTER;  // blocks of a cluster with different tokens
  const int rows = (a.token_tiles + token_blocks - 1) / token_blocks;
  const int tiles = NORM ? rows : rows * (a.tiles0 + a.tiles1);
  auto columns_of = [&](int tile) { return NORM ? static_cast<int>(rank) : tile / rows; };
  auto tokens_of = [&](int tile) {
    return NORM ? tile : tile % rows * CLUSTER + static_cast<int>(rank);
  };
  const int tile0 = blockIdx.x / CLUSTER, tile_step = gridDim.x / CLUSTER;
  const int steps = static_cast<int>((a.depth + kDepth - 1) / kDepth);

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x == 0) {
      prefetch_map(&x_map);
      prefetch_map(&w0_map);
      prefetch_map(&w1_map);
      constexpr int boxes = kColumns / 64 / token_blocks;
      const unsigned part = NORM ? 0 : rank;
      const TensorMap* map = nullptr;
      int d[boxes], head[boxes];
      auto take_tile = [&](int tile) {
        const int c = columns_of(tile);
        const bool second = c >= a.tiles0;
        const int fold = second ? fold1 : fold0;
        map = second ? &w1_map : &w0_map;
#pragma unroll
        for (int i = 0; i < boxes; ++i) {
          const int n = (second ? c - a.tiles0 : c) * kColumns + 64 * (part * boxes + i);
          head[i] = n / fold;
          d[i] = n - head[i] * fold;
        }
      };
      auto load_weights = [&](int step, int stage) {
        const unsigned to = base + stage * kStageBytes + kTokenBytes + part * (boxes * 8192);
        const unsigned barrier = full + 8 * stage;
#pragma unroll
        for (int i = 0; i < boxes; ++i) {
          const int x = K_MAJOR ? step * kDepth : d[i], y = K_MAJOR ? d[i] : head[i];
          const int z = K_MAJOR ? head[i] : step * kDepth;
          if constexpr (token_blocks > 1)
            load_box_to(to + i * 8192, map, x, y, z, barrier, (1 << CLUSTER) - 1);
          else
            load_box(to + i * 8192, map, x, y, z, barrier);
        }
      };
      if (!EARLY) wait_for_previous_kernel();
      const int early = min(STAGES, steps);
      if (tile0 < tiles) {
        take_tile(tile0);
        for (int s = 0; s < early; ++s) {
          barrier_expect(full + 8 * s, kStageBytes);
          load_weights(s, s);
        }
      }
      if (EARLY) wait_for_previous_kernel();
      let_next_kernel_start();
      int stage = 0, parity = 1, it = 0;
      for (int tile = tile0; tile < tiles; tile += tile_step) {
        const int token = tokens_of(tile) * kTokens;
        if (it > 0) take_tile(tile);
        for (int step = 0; step < steps; ++step, ++it) {
          if (it >= early) {
            barrier_wait(empty + 8 * stage, parity);
            barrier_expect(full + 8 * stage, kStageBytes);
            load_weights(step, stage);
          }
          const unsigned to = base + stage * kStageBytes;
          if constexpr (NORM && CLUSTER > 1) {
            constexpr int mine = kTokens / CLUSTER;
            load_box_to(to + rank * (mine * kDepth * 2), &x_map, step * kDepth,
                        token + static_cast<int>(rank) * mine, full + 8 * stage, (1 << CLUSTER) - 1);
          } else {
            load_box(to, &x_map, step * kDepth, token, full + 8 * stage);
          }
          if (++stage == STAGES) stage = 0, parity ^= 1;
        }
      }
    } else if (threadIdx.x >= 32 && a.rope != 0) {
      wait_for_previous_kernel();
      for (int tile = tile0; tile < tiles; tile += tile_step) {
        const int c = columns_of(tile);
        const int64 first = static_cast<int64>(tokens_of(tile)) * kTokens;
        const int count = static_cast<int>(min(static_cast<int64>(kTokens), a.tokens - first));
        if (c < a.tiles0)
          append_rope(a, k_pe, out0, first, count, c * kColumns, kColumns, threadIdx.x - 32, 96);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    wait_for_previous_kernel();
    const int consumer = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const unsigned staged = base + STAGES * kStageBytes + (consumer * 4 + warp) * (16 * 2 * out_columns(NORM));
    if (consumer == 1 && SKEW > 0 && tile0 < tiles) asm volatile("bar.sync 1, 256;" ::: "memory");
    const int skew = min(SKEW, steps);
    auto release = [&](int stage) {
      const int thread = threadIdx.x % 128;
      if (CLUSTER > 1) {
        if (thread < CLUSTER) barrier_arrive_at(empty + 8 * stage, thread);
      } else if (thread == 0) {
        barrier_arrive(empty + 8 * stage);
      }
    };
    int stage = 0, parity = 0, last = 0, it = 0, number = 0;
    float d[kColumns / 2];
    for (int tile = tile0; tile < tiles; tile += tile_step, ++number) {
      const int c = columns_of(tile);
      const bool second = c >= a.tiles0;
      const Side& side = a.side[second];
      const int n0 = (second ? c - a.tiles0 : c) * kColumns;
      const int64 first =
          static_cast<int64>(tokens_of(tile)) * kTokens + consumer * 64 + warp * 16;
      const int count = static_cast<int>(max(min(static_cast<int64>(16), a.tokens - first), 0ll));
      if (NORM && CLUSTER > 1 && threadIdx.x == 128)
        barrier_expect(exchanged + 8 * (number & 1), CLUSTER * kTokens * 4);
      for (int step = 0; step < steps; ++step) {
        barrier_wait(full + 8 * stage, parity);
        const unsigned x = base + stage * kStageBytes + consumer * (64 * 128);
        const unsigned w = base + stage * kStageBytes + kTokenBytes;
        product_fence();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
          const unsigned long long b =
              K_MAJOR ? matrix_at(w + 32 * k, 16) : matrix_at(w + 2048 * k, 8192);
          product_async<K_MAJOR ? 0 : 1>(d, matrix_at(x + 32 * k, 16), b, step + k > 0, T());
        }
        product_commit();
        if (step > 0) {
          product_wait<1>();
          release(last);
        }
        if (SKEW > 0 && consumer == 0 && ++it == skew) asm volatile("bar.arrive 1, 256;" ::: "memory");
        last = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
      product_wait<0>();
      product_ready(d);
      release(last);

      // This lane has columns 8 i + 2 (lane % 4) and the next one of rows lane / 4 and 8 more.
      if constexpr (NORM) {
        float scale[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) scale[i / 2 % 2] += d[i] * d[i];
        const int half = number & 1, row = consumer * 64 + warp * 16 + lane / 4;
        const unsigned slots = shared_offset(squares + half * CLUSTER * kTokens);
        static_assert(CLUSTER <= 4, "four lanes have a token");
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          scale[j] += __shfl_xor_sync(~0u, scale[j], 1);
          scale[j] += __shfl_xor_sync(~0u, scale[j], 2);
          if (CLUSTER > 1 && lane % 4 < CLUSTER)  // a lane for each block
            store_to_block(slots + 4 * (rank * kTokens + row + 8 * j), exchanged + 8 * half,
                           lane % 4, scale[j]);
        }
        if (CLUSTER > 1) barrier_wait(exchanged + 8 * half, number / 2 & 1);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float sum = CLUSTER > 1 ? 0.0f : scale[j];
          if constexpr (CLUSTER > 1) {
#pragma unroll
            for (int b = 0; b < CLUSTER; ++b)
              sum += squares[(half * CLUSTER + b) * kTokens + row + 8 * j];
          }
          scale[j] = 1.0f / sqrtf(sum / side.columns + epsilon);
        }
#pragma unroll
        for (int i = 0; i < kColumns / 8; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int n = n0 + 8 * i + lane % 4 * 2 + j % 2;
            d[4 * i + j] *= n < side.columns ? scale[j / 2] * widen(norm_weight[n]) : 0.0f;
          }
      }
      constexpr int wide = out_columns(NORM);
#pragma unroll
      for (int h = 0; h < kColumns / wide; ++h) {
        const int n = n0 + wide * h + own_columns<wide>();
        const bool inside = n < side.columns;
        T* const to = (second ? out1 : out0) + (inside ? out_column(side, n) : 0);
        write_tokens<wide>(staged, d, h * (wide / 2), to + first * side.out_token, side.out_token,
                           count, inside);
      }
    }
  }
  if (CLUSTER > 1) {  // nobody leaves while the other may still write here
    __syncwarp();
    cluster_sync();
  }
}
