// Many tokens and a rank of at most 128 on Hopper, 16-bit: both products in one launch by wgmma.
//
// A block forms the latents of its tokens, and their norm, in registers, where the second product
// takes them from. One thread keeps the copy engine busy with what both products need, in turn.

#include "common.cuh"
#include "hopper.cuh"

constexpr int kDepth = 64, kColumns = 128, kThreads = 384;
constexpr int kStagedBytes = 16 * 128 * 2;          // per warp: 16 tokens x 128 columns going out

// Maps as of mla_kv_wgmma; boxes of tokens have 64 of them. BM: tokens of a block, 128, or 64 which
// both consumers then have, each half of the columns. RANK: 64 or 128, at least the rank of
// a.depth -> `rank`. A block takes units in turn: tiles of tokens first, then chunks of
// `chunk_tiles` tiles of 128 columns, those of side 0 before those of side 1. rank is a multiple of
// 8. norm_weight may be null.
// CLUSTER: 2 has pairs of blocks take neighbouring tiles of tokens, and each load half of the weights
// for both.
template <typename T, int BM, int RANK, int STAGES, int CLUSTER, bool K_MAJOR, bool DOWN_K_MAJOR>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_narrow(const __grid_constant__ TensorMap x_map,
                  const __grid_constant__ TensorMap down_map,
                  const __grid_constant__ TensorMap w0_map,
                  const __grid_constant__ TensorMap w1_map, const T* norm_weight, const T* k_pe,
                  T* out0, T* out1, const __grid_constant__ Sizes a, int rank, int chunk_tiles,
                  int fold0, int fold1, float epsilon) {
  // A stage: a step of the first product, or a tile of the second.
  constexpr int token_bytes = BM * kDepth * 2, down_bytes = token_bytes + RANK * kDepth * 2;
  constexpr int up_bytes = RANK * kColumns * 2, stage_bytes = max_of(down_bytes, up_bytes);
  constexpr int own = BM == 128 ? kColumns : kColumns / 2;  // columns of a consumer
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  const unsigned full = shared_offset(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, 2 * CLUSTER);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();
  const unsigned peer = CLUSTER > 1 ? cluster_rank() : 0;
  const int column_tiles = a.tiles0 + a.tiles1;
  const int chunks = (column_tiles + chunk_tiles - 1) / chunk_tiles;
  // A unit here is that of a cluster.
  const int token_tiles = (a.token_tiles + CLUSTER - 1) / CLUSTER, units = token_tiles * chunks;
  const int unit0 = blockIdx.x / CLUSTER, unit_step = gridDim.x / CLUSTER;
  auto tile_of = [&](int unit) { return unit % token_tiles * CLUSTER + static_cast<int>(peer); };
  const int down_steps = static_cast<int>((a.depth + kDepth - 1) / kDepth);
  const int group = threadIdx.x / 128;
  let_next_kernel_start();
  wait_for_previous_kernel();

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x == 0) {
      prefetch_map(&x_map);
      prefetch_map(&down_map);
      prefetch_map(&w0_map);
      prefetch_map(&w1_map);
      int stage = 0, parity = 1;
      auto next_stage = [&](int bytes) {
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(full + 8 * stage, bytes);
        return base + stage * stage_bytes;
      };
      auto advance = [&]() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
      };
      // Of the boxes of weights of a stage, every other one, for both blocks.
      auto load_weights = [&](int i, unsigned to, const TensorMap* map, int x, int y, int z) {
        if (CLUSTER == 1)
          load_box(to, map, x, y, z, full + 8 * stage);
        else if ((i + stage) % 2 == static_cast<int>(peer))
          load_box_to(to, map, x, y, z, full + 8 * stage, 3);
      };
      for (int unit = unit0; unit < units; unit += unit_step) {
        const int token = tile_of(unit) * BM, chunk = unit / token_tiles;
        for (int step = 0; step < down_steps; ++step) {
          const unsigned to = next_stage(down_bytes), barrier = full + 8 * stage;
          const int k = step * kDepth;
#pragma unroll
          for (int i = 0; i < BM / 64; ++i)
            load_box(to + i * 8192, &x_map, k, token + 64 * i, barrier);
#pragma unroll
          for (int i = 0; i < RANK / 64; ++i)
            load_weights(i, to + token_bytes + i * 8192, &down_map, DOWN_K_MAJOR ? k : 64 * i,
                         DOWN_K_MAJOR ? 64 * i : 0, DOWN_K_MAJOR ? 0 : k);
          advance();
        }
        const int end = min((chunk + 1) * chunk_tiles, column_tiles);
        for (int c = chunk * chunk_tiles; c < end; ++c) {
          const bool second = c >= a.tiles0;
          const int fold = second ? fold1 : fold0;
          const TensorMap* const map = second ? &w1_map : &w0_map;
          const unsigned to = next_stage(up_bytes);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int n = (second ? c - a.tiles0 : c) * kColumns + 64 * i;
            const int head = n / fold, d = n - head * fold;
#pragma unroll
            for (int k = 0; k < RANK; k += kDepth)
              load_weights(i, to + k * (kColumns * 2) + i * 8192, map, K_MAJOR ? k : d,
                           K_MAJOR ? d : head, K_MAJOR ? head : k);
          }
          advance();
        }
      }
    } else if (threadIdx.x >= 32 && a.rope != 0) {
      for (int unit = unit0; unit < units; unit += unit_step) {
        const int chunk = unit / token_tiles;
        const int64 first = static_cast<int64>(tile_of(unit)) * BM;
        const int count =
            static_cast<int>(max(min(static_cast<int64>(BM), a.tokens - first), 0ll));
        const int end = min((chunk + 1) * chunk_tiles, a.tiles0);
        for (int c = chunk * chunk_tiles; c < end; ++c)
          append_rope(a, k_pe, out0, first, count, c * kColumns, kColumns, threadIdx.x - 32, 96);
      }
    }
  } else {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
  const int consumer = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  auto release = [&](int of) {
    const unsigned thread = threadIdx.x % 128;
    if (CLUSTER > 1) {
      if (thread < CLUSTER) barrier_arrive_at(empty + 8 * of, thread);
    } else if (thread == 0) {
      barrier_arrive(empty + 8 * of);
    }
  };
  const unsigned staged = base + STAGES * stage_bytes + (consumer * 4 + warp) * kStagedBytes;
  int stage = 0, parity = 0, last = 0;
  auto advance = [&]() {
    last = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  };
  for (int unit = unit0; unit < units; unit += unit_step) {
    const int chunk = unit / token_tiles;
    const int64 first = static_cast<int64>(tile_of(unit)) * BM +
                        (BM == 128 ? consumer * 64 : 0) + warp * 16;
    const int rows = static_cast<int>(max(min(static_cast<int64>(16), a.tokens - first), 0ll));
    unsigned latents[RANK / 16][4];
    {
      float d[RANK / 2];
      for (int step = 0; step < down_steps; ++step) {
        barrier_wait(full + 8 * stage, parity);
        const unsigned at = base + stage * stage_bytes;
        const unsigned x = at + (BM == 128 ? consumer * 8192 : 0), w = at + token_bytes;
        product_fence();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
          const unsigned long long b =
              DOWN_K_MAJOR ? matrix_at(w + 32 * k, 16) : matrix_at(w + 2048 * k, 8192);
          product_async<DOWN_K_MAJOR ? 0 : 1>(d, matrix_at(x + 32 * k, 16), b, step + k > 0, T());
        }
        product_commit();
        if (step > 0) {
          product_wait<1>();
          release(last);
        }
        advance();
      }
      product_wait<0>();
      product_ready(d);
      release(last);
      // This lane has columns 8 i + 2 (lane % 4) and the next one of rows lane / 4 and 8 more.
      if (norm_weight != nullptr) {
        float square[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < RANK / 2; ++i) square[i / 2 % 2] += d[i] * d[i];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          square[j] += __shfl_xor_sync(~0u, square[j], 1);
          square[j] += __shfl_xor_sync(~0u, square[j], 2);
          square[j] = 1.0f / sqrtf(square[j] / rank + epsilon);
        }
#pragma unroll
        for (int i = 0; i < RANK / 2; ++i) {
          const int r = i / 4 * 8 + lane % 4 * 2 + i % 2;
          d[i] *= r < rank ? square[i / 2 % 2] * widen(norm_weight[r]) : 0.0f;
        }
      }
#pragma unroll
      for (int k = 0; k < RANK / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) latents[k][i] = packed(d[8 * k + 2 * i], d[8 * k + 2 * i + 1], T());
    }
    const int end = min((chunk + 1) * chunk_tiles, column_tiles);
    for (int c = chunk * chunk_tiles; c < end; ++c) {
      const bool second = c >= a.tiles0;
      const Side& side = a.side[second];
      const int n0 = (second ? c - a.tiles0 : c) * kColumns + (BM == 128 ? 0 : consumer * own);
      float d[own / 2];
      barrier_wait(full + 8 * stage, parity);
      product_fence();
#pragma unroll
      for (int k = 0; k < RANK / 16; ++k) {
        const unsigned w = base + stage * stage_bytes + k / 4 * (kDepth * kColumns * 2) +
                           (BM == 128 ? 0 : consumer * 8192);
        const unsigned long long b =
            K_MAJOR ? matrix_at(w + k % 4 * 32, 16) : matrix_at(w + k % 4 * 2048, 8192);
        product_async<K_MAJOR ? 0 : 1>(d, latents[k], b, k > 0, T());
      }
      product_commit();
      advance();
      product_wait<0>();
      product_ready(d);
      release(last);
      const int n = n0 + own_columns<own>();
      const bool inside = n < side.columns;
      T* const to = (second ? out1 : out0) + (inside ? out_column(side, n) : 0);
      write_tokens<own>(staged, d, 0, to + first * side.out_token, side.out_token, rows, inside);
    }
  }
  }
  if (CLUSTER > 1) {  // nobody leaves while the other may still write here
    __syncwarp();
    cluster_sync();
  }
}
