// Some hundred tokens on Hopper, 16-bit: the second product, in which a block reads a weight once for up to
// 256 tokens, and has its weights in shared memory when the latents come.
//
// Weights are the 64 rows of a product, tokens its columns: an instruction then reads the fewest bytes of
// shared memory for the most tokens. Results leave through the slots of the last weights, by the copy engine.

#include "hopper.cuh"

constexpr int kDepth = 64;                  // terms of a step
constexpr int kBoxBytes = 64 * kDepth * 2;  // 64 columns of a weight
constexpr int kWorkers = 256;               // two warpgroups that multiply, of 64 columns each
constexpr int kWindow = 3;                  // copies of weights in flight until all slots have been asked for

// What is stored to `from` must have been shown to the copy engine.
__device__ __forceinline__ void store_box(const TensorMap* map, int x, int y, int z, unsigned from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(from)
      : "memory");
}

// One box of a tensor into the L2 cache.
__device__ __forceinline__ void fetch_box(const TensorMap* map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y),
               "r"(z)
               : "memory");
}

__device__ __forceinline__ void stores_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// All stores of this thread have read what they store.
__device__ __forceinline__ void stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void store_turned(unsigned to, unsigned r0, unsigned r1, unsigned r2,
                                             unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// keys and values = latent @ w_up. An item is 128 columns of TOKENS tokens; a block takes every gridDim.x-th.
// W_SLOTS of 64 terms x 128 columns and X_SLOTS of TOKENS x 64 terms are in shared memory; the rank has STEPS
// of 64 terms. K_MAJOR: weights as nn.Linear has them.
// Maps: latent (rank, token) in boxes of 64 x TOKENS; w_up as `tensor_map` of cuda_hopper.py; results
// (column, side, token) of 64 x 1 x 64. `fold0`, `fold1`: columns that make a head of each map.
template <typename T, int TOKENS, int STEPS, int W_SLOTS, int X_SLOTS, bool K_MAJOR>
__global__ void __launch_bounds__(kWorkers + 64, 1)
    mla_kv_wide(const __grid_constant__ TensorMap latent_map, const __grid_constant__ TensorMap w0_map,
                const __grid_constant__ TensorMap w1_map, const __grid_constant__ TensorMap out0_map,
                const __grid_constant__ TensorMap out1_map, int tokens, int tiles0, int tiles1, int fold0,
                int fold1, int stacked) {
  constexpr int w_bytes = 2 * kBoxBytes, x_bytes = TOKENS * kDepth * 2;
  constexpr int chunks = TOKENS / 64;  // boxes of a result; so many slots carry it out
  static_assert(chunks <= STEPS && chunks < W_SLOTS && kWindow <= W_SLOTS, "slots");
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * W_SLOTS + 2 * X_SLOTS];
  const unsigned slots = (shared_offset(memory) + 1023) & ~1023u, ring = slots + W_SLOTS * w_bytes;
  const unsigned full = shared_offset(barriers), empty = full + 8 * W_SLOTS;
  const unsigned here = empty + 8 * W_SLOTS, gone = here + 8 * X_SLOTS;
  if (threadIdx.x == 0) {
    for (int s = 0; s < W_SLOTS; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, 2);
    }
    for (int s = 0; s < X_SLOTS; ++s) {
      barrier_init(here + 8 * s, 1);
      barrier_init(gone + 8 * s, 2);
    }
    barrier_init_done();
  }
  __syncthreads();
  const int token_tiles = ceil_div(tokens, TOKENS), items = (tiles0 + tiles1) * token_tiles;

  if (threadIdx.x >= kWorkers) {
    if (threadIdx.x == kWorkers) {  // tokens
      prefetch_map(&latent_map);
      wait_for_previous_kernel();
      let_next_kernel_start();
      int slot = 0, parity = 1, it = 0;
      for (int item = blockIdx.x; item < items; item += gridDim.x)
        for (int s = 0; s < STEPS; ++s, ++it) {
          if (it >= X_SLOTS) barrier_wait(gone + 8 * slot, parity);
          barrier_expect(here + 8 * slot, x_bytes);
          load_box(ring + slot * x_bytes, &latent_map, s * kDepth, item % token_tiles * TOKENS,
                   here + 8 * slot);
          if (++slot == X_SLOTS) slot = 0, parity ^= 1;
        }
    } else if (threadIdx.x == kWorkers + 32) {
      prefetch_map(&w0_map);
      prefetch_map(&w1_map);
      // Weights are read before the previous kernel has ended. That is the first product, by the matrix library,
      // which is launched behind the end of everything before it: kernels that may have written weights have
      // ended when a block here starts.
      // A box of 64 columns of an item: its place along the columns of a head, and the head.
      auto place = [&](int item, int i) {
        const int tile = item / token_tiles, fold = tile >= tiles0 ? fold1 : fold0;
        const int n = (tile >= tiles0 ? tile - tiles0 : tile) * 128 + 64 * i;
        return make_int2(n % fold, n / fold);
      };
      int slot = 0, parity = 1, it = 0;
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const TensorMap* map = item / token_tiles >= tiles0 ? &w1_map : &w0_map;
        const int2 at[2] = {place(item, 0), place(item, 1)};
        for (int s = 0; s < STEPS; ++s, ++it) {
          if (it >= W_SLOTS) barrier_wait(empty + 8 * slot, parity);
          if (it < W_SLOTS && it >= kWindow) barrier_wait(full + 8 * (it - kWindow), 0);
          const unsigned to = slots + slot * w_bytes, barrier = full + 8 * slot;
          barrier_expect(barrier, w_bytes);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if constexpr (K_MAJOR)
              load_box(to + i * kBoxBytes, map, s * kDepth, at[i].x, at[i].y, barrier);
            else
              load_box(to + i * kBoxBytes, map, at[i].x, at[i].y, s * kDepth, barrier);
          }
          const int next = item + gridDim.x;
          // Weights of the next item go into the L2 cache once those of the first are asked for.
          if (it == (W_SLOTS < STEPS ? W_SLOTS : STEPS) - 1 && next < items) {
            const TensorMap* behind = next / token_tiles >= tiles0 ? &w1_map : &w0_map;
            for (int e = 0; e < STEPS; ++e)
              for (int i = 0; i < 2; ++i) {
                const int2 there = place(next, i);
                if constexpr (K_MAJOR)
                  fetch_box(behind, e * kDepth, there.x, there.y);
                else
                  fetch_box(behind, there.x, there.y, e * kDepth);
              }
          }
          if (++slot == W_SLOTS) slot = 0, parity ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    wait_for_previous_kernel();  // which may still read what is written here
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const bool speaks = threadIdx.x % 128 == 0;
    int slot = 0, parity = 0, x_slot = 0, x_parity = 0;
    bool storing = false;
    int kept[chunks];  // slots that carry the last results out
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const int tile = item / token_tiles, token0 = item % token_tiles * TOKENS;
      const bool second = tile >= tiles0;
      const int n = (second ? tile - tiles0 : tile) * 128 + 64 * group;
      float d[TOKENS / 2];
      int x_last = 0, last = 0, now[chunks];
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        barrier_wait(full + 8 * slot, parity);
        barrier_wait(here + 8 * x_slot, x_parity);
        const unsigned w = slots + slot * w_bytes + group * kBoxBytes, x = ring + x_slot * x_bytes;
        product_fence();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k)
          product_async<0, K_MAJOR ? 0 : 1>(
              d, K_MAJOR ? matrix_at(w + 32 * k, 16) : matrix_at(w + 2048 * k, 8192),
              matrix_at(x + 32 * k, 16), s + k > 0, T());
        product_commit();
        if (s == 0 && storing && speaks) {
          stores_have_read();
#pragma unroll
          for (int c = 0; c < chunks; ++c) barrier_arrive(empty + 8 * kept[c]);
        }
        if (s > 0) {
          product_wait<1>();
          if (speaks) {
            barrier_arrive(gone + 8 * x_last);
            if (s - 1 < STEPS - chunks) barrier_arrive(empty + 8 * last);
          }
        }
        if (s >= STEPS - chunks) now[s - (STEPS - chunks)] = slot;
        last = slot;
        x_last = x_slot;
        if (++slot == W_SLOTS) slot = 0, parity ^= 1;
        if (++x_slot == X_SLOTS) x_slot = 0, x_parity ^= 1;
      }
      product_wait<0>();
      product_ready(d);
      if (speaks) barrier_arrive(gone + 8 * x_last);
      asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");  // all have read the slots
      // This lane has tokens 8 i + 2 (lane % 4) and the next one of columns lane / 4 and 8 more of its
      // warp. Rows of 128 bytes are 64 columns of a token.
      const int piece = warp * 2 + lane / 8 % 2, row = lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        const unsigned to = slots + now[c] * w_bytes + group * kBoxBytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* v = d + 32 * c + 8 * i;
          store_turned(to + (16 * i + row) * 128 + ((piece ^ (lane & 7)) << 4), packed(v[0], v[1], T()),
                       packed(v[2], v[3], T()), packed(v[4], v[5], T()), packed(v[6], v[7], T()));
        }
        if (c % 2 == 0 && c + 1 < chunks) continue;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
        if (speaks) {
#pragma unroll
          for (int e = c / 2 * 2; e <= c; ++e)
            if (token0 + 64 * e < tokens)
              store_box(second ? &out1_map : &out0_map, n, stacked ? second : 0, token0 + 64 * e,
                        slots + now[e] * w_bytes + group * kBoxBytes);
          stores_commit();
        }
      }
      storing = true;
#pragma unroll
      for (int c = 0; c < chunks; ++c) kept[c] = now[c];
    }
    if (speaks) stores_have_read();
  }
}
