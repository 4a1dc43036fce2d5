// Few tokens on Hopper, 16-bit: both products in one launch, every weight read once.
//
// What it waits for is the way of the weights from memory. Each block therefore starts the copies
// of its part of w_up before it forms its part of the latents: those of 64 columns over a share of
// the model axis. The shares meet in global memory, and the copies go on meanwhile. Few copies may be
// in flight at a time (WINDOW for each warp): the memory system serves them in order, and the latents
// would otherwise queue behind all of w_up.
//
// Weights are the 16 rows of an mma, tokens its 8 columns. Weights stay as they lie. Where that is
// along their columns, two rows are joined to pairs with byte permutations; where it is along the
// depth (K_MAJOR, as in an nn.Linear), 16 bytes of a column are the pairs of two mma.

#include "common.cuh"
#include "exchange.cuh"
#include "hopper.cuh"

constexpr int kWorkers = 8;
// One more warp for copies, and where all blocks meet at a barrier, one that waits there.
constexpr int kThreadsOfOneStep = 32 * (kWorkers + 2), kThreadsOfTwoSteps = 32 * (kWorkers + 1);
constexpr int kSlotBytes = 64 * 32 * 2;        // 64 columns x 32 rows

__device__ __forceinline__ uint4 load_shared(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Bypasses L1, which may hold what was there before the barrier.
__device__ __forceinline__ float4 load_fresh(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ unsigned permuted(unsigned a, unsigned b, unsigned order) {
  unsigned r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(order));
  return r;
}

__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <typename T>
__device__ __forceinline__ unsigned pair_of(float a, float b) {
  T v[2];
  narrow(a, v[0]);
  narrow(b, v[1]);
  return *reinterpret_cast<const unsigned*>(v);
}

// sum[m][n] += 16 rows of 64 columns times the tokens b. Lane (g, t) gives columns 8g .. 8g + 7 of
// four rows, which are rows 2t, 2t + 1, 2t + 8 and 2t + 9 of the mma's depth.
template <typename T, int NT>
__device__ __forceinline__ void multiply_rows(float (&sum)[4][NT][4], const uint4* w,
                                              const unsigned (&b)[NT][2]) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    unsigned r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = m == 0 ? w[i].x : m == 1 ? w[i].y : m == 2 ? w[i].z : w[i].w;
    const unsigned a0 = permuted(r[0], r[1], 0x5410), a1 = permuted(r[0], r[1], 0x7632);
    const unsigned a2 = permuted(r[2], r[3], 0x5410), a3 = permuted(r[2], r[3], 0x7632);
#pragma unroll
    for (int n = 0; n < NT; ++n) multiply(sum[m][n], a0, a1, a2, a3, b[n][0], b[n][1], T());
  }
}

// The same for 32 rows of weights that lie along them. Lane (g, t) gives rows 8t .. 8t + 7 of columns
// 16m + g (w[2m]) and 16m + g + 8 (w[2m + 1]); b: 16 bytes of each token, the same rows.
template <typename T, int NT>
__device__ __forceinline__ void multiply_columns(float (&sum)[4][NT][4], int m, uint4 low, uint4 high,
                                                 const uint4 (&b)[NT]) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    multiply(sum[m][n], low.x, high.x, low.y, high.y, b[n].x, b[n].y, T());
    multiply(sum[m][n], low.z, high.z, low.w, high.w, b[n].z, b[n].w, T());
  }
}

template <int NT>
__device__ __forceinline__ void clear(float (&sum)[4][NT][4]) {
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;
}

// Where a pair of latents k, k + 1 lies among the words of a token: a lane reads 16 bytes for the
// two mma of 32 rows.
template <bool K_MAJOR>
__device__ __forceinline__ int latent_word(int k) {
  if (K_MAJOR) return k / 2;
  return (k >> 5) * 16 + (k & 7) / 2 * 4 + (k >> 4 & 1) * 2 + (k >> 3 & 1);
}

__device__ __forceinline__ void workers_sync() {
  asm volatile("bar.sync 3, 256;" ::: "memory");
}

// Sizes that hold for a whole instance. SPLITS: shares of the model axis, for each of which the grid
// has RANK / 64 blocks; COLUMN_WARPS: warps side by side over columns, the others share the rank;
// SLOTS: for each warp.
template <int MODEL, int RANK, int SPLITS, int COLUMN_WARPS, int LATENTS, bool K_MAJOR, int SLOTS>
struct DecodeShape {
  static_assert(RANK % 64 == 0, "a block has 64 columns of w_down");
  static constexpr int groups = RANK / 64;
  // Rows of w_down that a warp takes, of all 64 columns; K_MAJOR: four times as many, of 16.
  static constexpr int warp_rows =
      K_MAJOR ? 8 * ceil_div(ceil_div(MODEL, SPLITS * 2), 8)
              : 8 * ceil_div(ceil_div(MODEL, SPLITS * kWorkers), 8);
  static constexpr int down_loads = ceil_div(warp_rows, 4), down_steps = ceil_div(warp_rows, 32);
  // Of the weights, and afterwards of the sums.
  static constexpr int down_slots =
      ceil_div(max_of(K_MAJOR ? 0 : warp_rows * 128, max_of(LATENTS, 8) * 68 * 4), kSlotBytes);
  static constexpr int depth_warps = kWorkers / COLUMN_WARPS;
  static constexpr int up_rows = RANK / depth_warps, up_steps = up_rows / 32;
  static_assert(up_rows % 32 == 0, "a warp takes 32 rows at a time");
  static constexpr bool one_tile = depth_warps > 1;  // a block has one at most
  static_assert(down_slots < SLOTS, "w_up needs a slot");
  static constexpr int columns = 64 * COLUMN_WARPS;
  static constexpr int latent_pitch = RANK * 2 + 64;  // bytes; the 64 spread tokens over the banks
  static constexpr int shared = SLOTS * kWorkers * kSlotBytes + LATENTS * latent_pitch + 1024;
};

// tokens at most 8 * NT and at most LATENTS. TWO_STEPS: blocks exchange words: they first sum the
// shares of one token each, and then collect the sums; else every block sums all shares, `partial`
// (SPLITS x tokens x RANK), after a barrier of the grid. NORM: norm_weight is used. `exchange`: words,
// kHeaderWords, and with TWO_STEPS SPLITS x tokens x RANK of shares, then tokens x RANK of sums, or
// without NORM half as many, of pairs of latents. Maps: (column of a head, head, depth), boxes of
// 64 x 1 x 32, 128-byte swizzle; `fold` columns make a head. LATE: copies of w_up start when those of
// w_down have arrived. KEPT: steps of w_up that wait in registers while blocks exchange. With fewer than
// eight COLUMN_WARPS the grid has a block for every tile.
template <typename T, int MODEL, int RANK, int SPLITS, int COLUMN_WARPS, int NT, int LATENTS,
          bool TWO_STEPS, bool NORM, bool K_MAJOR, bool LATE, int SLOTS, int WINDOW,
          int KEPT>
__global__ void __launch_bounds__(TWO_STEPS ? kThreadsOfTwoSteps : kThreadsOfOneStep, 1)
    mla_kv_decode(const T* hidden, const T* w_down, const __grid_constant__ TensorMap w0_map,
                  const __grid_constant__ TensorMap w1_map, const T* norm_weight, const T* k_pe,
                  T* out0, T* out1, float* partial, unsigned long long* exchange,
                  const __grid_constant__ Sizes a, int64 down_row, int64 down_column, int fold0, int fold1,
                  float epsilon) {
  typedef DecodeShape<MODEL, RANK, SPLITS, COLUMN_WARPS, LATENTS, K_MAJOR, SLOTS> S;
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) unsigned long long barriers[2 * kWorkers * SLOTS + 1];
  const unsigned base = (shared_offset(memory) + 1023) & ~1023u;
  unsigned char* const slots = memory + (base - shared_offset(memory));
  unsigned char* const latents = slots + SLOTS * kWorkers * kSlotBytes;
  // Per warp and slot: full, then empty; one more for the slots that the first product has used.
  const unsigned full = shared_offset(barriers), empty = full + 8 * kWorkers * SLOTS;
  const unsigned first_done = empty + 8 * kWorkers * SLOTS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tid = threadIdx.x;
  const int tokens = static_cast<int>(a.tokens);
  const int tiles = a.tiles0 + a.tiles1;

  if (warp == kWorkers) {  // copies: one lane for each worker warp
    // One lane, which is slow, and that is as well: copies that start before those of w_down hold
    // them up (11.5 instead of 9.1 us for one token).
    if (lane == 0) {
      for (int i = 0; i < 2 * kWorkers * SLOTS + 1; ++i) barrier_init(full + 8 * i, 1);
      barrier_init_done();
    }
    __syncwarp();
    asm volatile("bar.arrive 4, 288;" ::: "memory");
    wait_for_previous_kernel();
    if (LATE) asm volatile("bar.sync 5, 288;" ::: "memory");
    if (lane < kWorkers) {
      const unsigned my_full = full + 8 * SLOTS * lane, my_empty = empty + 8 * SLOTS * lane;
      const unsigned my_slots = base + lane * SLOTS * kSlotBytes;
      const int row0 = lane / COLUMN_WARPS * S::up_rows;
      int q0 = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, q0 += S::up_steps) {
        const bool second = tile >= a.tiles0;
        const int fold = second ? fold1 : fold0;
        const int n = (second ? tile - a.tiles0 : tile) * S::columns + lane % COLUMN_WARPS * 64;
        const int head = n / fold, d = n - head * fold;
        const TensorMap* map = second ? &w1_map : &w0_map;
#pragma unroll
        for (int s = 0; s < S::up_steps; ++s) {
          // Copies 0, 1, ... take the slots from the first that the down-projection leaves free.
          const int q = q0 + s, slot = (q + S::down_slots) % SLOTS;
          if (q >= WINDOW)
            barrier_wait(my_full + 8 * ((q - WINDOW + S::down_slots) % SLOTS),
                         (q - WINDOW) / SLOTS & 1);
          if (q >= SLOTS - S::down_slots && q < SLOTS) barrier_wait(first_done, 0);
          if (q >= SLOTS) barrier_wait(my_empty + 8 * slot, (q / SLOTS - 1) & 1);
          barrier_expect(my_full + 8 * slot, kSlotBytes);
          const unsigned to = my_slots + slot * kSlotBytes;
          if constexpr (K_MAJOR)
            load_box(to, map, row0 + 32 * s, d, head, my_full + 8 * slot);
          else
            load_box(to, map, d, head, row0 + 32 * s, my_full + 8 * slot);
        }
        if constexpr (S::one_tile) break;  // the numbers of copies are constants then
      }
    }
    return;
  }
  if (!TWO_STEPS && warp == kWorkers + 1) {  // nobody else stands still for the barrier
    wait_for_previous_kernel();
    const unsigned long long target = end_of_barrier(exchange + 1);
    asm volatile("bar.sync 1, 288;" ::: "memory");
    if (lane == 0) wait_at_barrier(exchange + 1, target);
    __syncwarp();
    asm volatile("bar.arrive 2, 288;" ::: "memory");
    return;
  }
  wait_for_previous_kernel();
  __shared__ unsigned call_number;
  if (TWO_STEPS && tid == 0) call_number = number_of_this_call(exchange);
  unsigned long long* const shares = exchange + kHeaderWords;
  unsigned long long* const sums = shares + static_cast<int64>(SPLITS) * tokens * RANK;
  const int g = lane / 4, t = lane % 4;
  const unsigned ring = base + warp * SLOTS * kSlotBytes;
  const int group = blockIdx.x % S::groups, share = blockIdx.x / S::groups;
  float sum[4][NT][4];
  clear(sum);
  if constexpr (K_MAJOR) {
    // Straight into registers: 16 columns a warp, half of the block's share of the model axis.
    const int k0 = (share * 2 + warp / 4) * S::warp_rows, mine = warp % 4;
    const T* const columns = w_down + (group * 64 + mine * 16 + g) * down_column;
#pragma unroll 8
    for (int j = 0; j < S::down_steps; ++j) {
      const int k = 32 * j + 8 * t;
      const bool inside = k < S::warp_rows && k0 + k < MODEL;
      uint4 x[NT], low = make_uint4(0, 0, 0, 0), high = low;
      if (inside) {
        low = *reinterpret_cast<const uint4*>(columns + k0 + k);
        high = *reinterpret_cast<const uint4*>(columns + 8 * down_column + k0 + k);
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int token = 8 * n + g;
        x[n] = make_uint4(0, 0, 0, 0);
        if (inside && token < tokens)
          x[n] = *reinterpret_cast<const uint4*>(
              hidden + token_start(token, a.inner, a.outer_stride, a.inner_stride) + k0 + k);
      }
      multiply_columns<T>(sum, 0, low, high, x);
    }
    // [token][64 + 4] in the slots of the first warp of each half.
    float* const to = reinterpret_cast<float*>(slots + warp / 4 * SLOTS * kSlotBytes);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * n + 2 * t + i % 2;
        if (token < tokens) to[token * 68 + mine * 16 + g + i / 2 * 8] = sum[0][n][i];
      }
  } else {
    const int k0 = (share * kWorkers + warp) * S::warp_rows;
    uint4 x[NT][S::down_steps];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int token = 8 * n + g;
      const T* from =
          hidden + (token < tokens
                        ? token_start(token, a.inner, a.outer_stride, a.inner_stride)
                        : 0);
#pragma unroll
      for (int j = 0; j < S::down_steps; ++j) {
        const int k = 32 * j + 8 * t;
        x[n][j] = make_uint4(0, 0, 0, 0);
        if (token < tokens && k < S::warp_rows && k0 + k < MODEL)
          x[n][j] = *reinterpret_cast<const uint4*>(from + k0 + k);
      }
    }
#pragma unroll
    for (int i = 0; i < S::down_loads; ++i) {
      const int row = 4 * i + lane / 8, piece = lane % 8;
      if (S::warp_rows % 4 == 0 || row < S::warp_rows) {
        const bool inside = k0 + row < MODEL;
        const T* from = w_down + (inside ? (k0 + row) * down_row + group * 64 + piece * 8 : 0);
        const unsigned to = ring + row * 128 + ((piece ^ ((row >> 3 & 3) << 1)) << 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(inside ? 16 : 0)
                     : "memory");
      }
    }
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
    if (LATE) asm volatile("bar.arrive 5, 288;" ::: "memory");
    __syncwarp();
#pragma unroll
    for (int j = 0; j < S::down_steps; ++j) {
      uint4 w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        w[i] = make_uint4(0, 0, 0, 0);
        if (S::warp_rows % 32 == 0 || 32 * j + 8 * t < S::warp_rows)
          w[i] = load_shared(ring + (32 * j + 8 * t + i) * 128 + ((g ^ (t << 1)) << 4));
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        unsigned b[NT][2];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          b[n][0] = s ? x[n][j].z : x[n][j].x;
          b[n][1] = s ? x[n][j].w : x[n][j].y;
        }
        multiply_rows<T>(sum, w + 4 * s, b);
      }
    }
    __syncwarp();
    // The sums of the eight warps meet in their own slots: [token][64 + 4].
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = 8 * n + 2 * t + h;
        if (token >= tokens) continue;
        float* to = reinterpret_cast<float*>(slots + warp * SLOTS * kSlotBytes) + token * 68 + 8 * g;
#pragma unroll
        for (int m = 0; m < 4; m += 2)
          *reinterpret_cast<float4*>(to + 2 * m) =
              make_float4(sum[m][n][h], sum[m][n][2 + h], sum[m + 1][n][h], sum[m + 1][n][2 + h]);
      }
  }
  workers_sync();
  const unsigned call = TWO_STEPS ? call_number : 0;
  for (int i = tid; i < tokens * 16; i += 256) {
    const int token = i / 16, quad = i % 16;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < (K_MAJOR ? 2 : kWorkers); ++k) {
      const float4 v = *reinterpret_cast<const float4*>(slots + k * SLOTS * kSlotBytes +
                                                        (token * 68 + 4 * quad) * 4);
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    const int at = (share * tokens + token) * RANK + group * 64 + 4 * quad;
    if constexpr (TWO_STEPS)
      send(shares + at, total, call);
    else
      *reinterpret_cast<float4*>(partial + at) = total;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (!TWO_STEPS) asm volatile("bar.arrive 1, 288;" ::: "memory");
  asm volatile("bar.sync 4, 288;" ::: "memory");  // the mbarriers exist, and all slots are free
  if (tid == 0) barrier_arrive(first_done);
  // The first steps of w_up wait in registers, and their slots take the next ones.
  const unsigned my_full = full + 8 * SLOTS * warp, my_empty = empty + 8 * SLOTS * warp;
  auto read_box = [&](uint4 (&w)[8], int slot) {
    const unsigned box = ring + slot * kSlotBytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (K_MAJOR) {  // rows of 64 bytes, swizzled over 64
        const int row = 8 * i + g;
        w[i] = load_shared(box + row * 64 + ((t ^ (row >> 1 & 3)) << 4));
      } else {
        const int row = i / 4 * 16 + 2 * t + i % 2 + i / 2 % 2 * 8;
        w[i] = load_shared(box + row * 128 + ((g ^ (row & 7)) << 4));
      }
    }
  };
  constexpr int kept = !S::one_tile ? 0 : KEPT < S::up_steps ? KEPT : S::up_steps;
  uint4 first_steps[kept > 0 ? kept : 1][8];
#pragma unroll
  for (int s = 0; s < kept; ++s) {
    constexpr int first = S::down_slots;
    if (static_cast<int>(blockIdx.x) >= tiles) break;
    barrier_wait(my_full + 8 * ((s + first) % SLOTS), s / SLOTS & 1);
    read_box(first_steps[s], (s + first) % SLOTS);
    if (s + SLOTS < S::up_steps) {
      __syncwarp();
      if (lane == 0) barrier_arrive(my_empty + 8 * ((s + first) % SLOTS));
    }
  }
  if (!TWO_STEPS) asm volatile("bar.sync 2, 288;" ::: "memory");
  let_next_kernel_start();
  // Latents in shared memory.
  if constexpr (TWO_STEPS) {
    // 16 threads a quad of columns, each a part of the shares.
    for (int token = share; token < tokens; token += SPLITS) {
      const int quad = tid / 16, q = tid % 16;
      constexpr int rounds = ceil_div(SPLITS, 16);
      Words w[2 * rounds];
      const unsigned long long* from[2 * rounds];
      bool wanted[2 * rounds];
#pragma unroll
      for (int i = 0; i < rounds; ++i) {
        const int s = q + 16 * i;
        from[2 * i] = shares + (s * tokens + token) * RANK + group * 64 + 4 * quad;
        from[2 * i + 1] = from[2 * i] + 2;
        wanted[2 * i] = wanted[2 * i + 1] = SPLITS % 16 == 0 || s < SPLITS;
      }
      receive(w, from, wanted, call);
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < rounds; ++i) {
        if (!wanted[2 * i]) continue;
        const float2 low = values_of(w[2 * i]), high = values_of(w[2 * i + 1]);
        v.x += low.x, v.y += low.y, v.z += high.x, v.w += high.y;
      }
#pragma unroll
      for (int d = 8; d > 0; d /= 2) {
        v.x += __shfl_xor_sync(~0u, v.x, d);
        v.y += __shfl_xor_sync(~0u, v.y, d);
        v.z += __shfl_xor_sync(~0u, v.z, d);
        v.w += __shfl_xor_sync(~0u, v.w, d);
      }
      const int k = group * 64 + 4 * quad;
      if (q == 0) {
        if constexpr (NORM)
          send(sums + token * RANK + k, v, call);
        else
          send(sums + (token * RANK + k) / 2, pair_of<T>(v.x, v.y), pair_of<T>(v.z, v.w), call);
      }
    }
    // A warp a token, 128 columns at a time; all that a lane needs is asked for at once.
    constexpr int turns = ceil_div(LATENTS, kWorkers), columns = ceil_div(RANK, 128);
    constexpr int each = NORM ? 2 : 1;  // pairs of words for four columns
    Words w[turns * columns * each];
    const unsigned long long* from[turns * columns * each];
    bool wanted[turns * columns * each];
#pragma unroll
    for (int i = 0; i < turns * columns; ++i) {
      const int token = warp + i / columns * kWorkers, k = 128 * (i % columns) + 4 * lane;
#pragma unroll
      for (int j = 0; j < each; ++j) {
        from[i * each + j] = NORM ? sums + token * RANK + k + 2 * j : sums + (token * RANK + k) / 2;
        wanted[i * each + j] = token < tokens && (RANK % 128 == 0 || k < RANK);
      }
    }
    receive(w, from, wanted, call);
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
      const int token = warp + turn * kWorkers;
      if (token >= LATENTS) break;
      unsigned* const to = reinterpret_cast<unsigned*>(latents + token * S::latent_pitch);
      float scale = 1.0f;
      if constexpr (NORM) {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < columns; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int at = (turn * columns + i) * 2 + j;
            const float2 v = values_of(w[at]);
            if (wanted[at]) square += v.x * v.x + v.y * v.y;
          }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
        scale = 1.0f / sqrtf(square / RANK + epsilon);
      }
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const int k = 128 * i + 4 * lane, at = (turn * columns + i) * each;
        if (RANK % 128 != 0 && k >= RANK) continue;
        unsigned low = 0, high = 0;
        if (wanted[at]) {
          if constexpr (NORM) {
            const float2 a = values_of(w[at]), b = values_of(w[at + 1]);
            low = pair_of<T>(a.x * (scale * widen(norm_weight[k])),
                             a.y * (scale * widen(norm_weight[k + 1])));
            high = pair_of<T>(b.x * (scale * widen(norm_weight[k + 2])),
                              b.y * (scale * widen(norm_weight[k + 3])));
          } else {
            low = static_cast<unsigned>(w[at].a), high = static_cast<unsigned>(w[at].b);
          }
        }
        to[latent_word<K_MAJOR>(k)] = low;
        to[latent_word<K_MAJOR>(k + 2)] = high;
      }
    }
  } else {
    constexpr int quads = RANK / 4;
    constexpr int helpers = quads >= 256 ? 1 : quads >= 128 ? 2 : quads >= 64 ? 4 : 8;
    constexpr int per_pass = 256 / helpers, passes = ceil_div(quads, per_pass);
    for (int token = 0; token < tokens; ++token) {
      float4 v[passes];
      float square = 0.0f;
#pragma unroll
      for (int p = 0; p < passes; ++p) {
        const int quad = p * per_pass + tid / helpers, q = tid % helpers;
        v[p] = make_float4(0, 0, 0, 0);
        const bool active = quads % per_pass == 0 || quad < quads;
        constexpr int parts = ceil_div(SPLITS, helpers);
        float4 part[parts];
#pragma unroll
        for (int s = 0; s < parts; ++s) {
          part[s] = make_float4(0, 0, 0, 0);
          if (active && (SPLITS % helpers == 0 || s * helpers + q < SPLITS))
            part[s] = load_fresh(partial + ((s * helpers + q) * tokens + token) * RANK + 4 * quad);
        }
#pragma unroll
        for (int s = 0; s < parts; ++s) {
          v[p].x += part[s].x, v[p].y += part[s].y, v[p].z += part[s].z, v[p].w += part[s].w;
        }
#pragma unroll
        for (int d = helpers / 2; d > 0; d /= 2) {
          v[p].x += __shfl_xor_sync(~0u, v[p].x, d);
          v[p].y += __shfl_xor_sync(~0u, v[p].y, d);
          v[p].z += __shfl_xor_sync(~0u, v[p].z, d);
          v[p].w += __shfl_xor_sync(~0u, v[p].w, d);
        }
        if (NORM && q == 0)
          square += v[p].x * v[p].x + v[p].y * v[p].y + v[p].z * v[p].z + v[p].w * v[p].w;
      }
      float scale = 1.0f;
      if (NORM) {
        __shared__ float squares[kWorkers];
#pragma unroll
        for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
        workers_sync();
        if (lane == 0) squares[warp] = square;
        workers_sync();
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < kWorkers; ++i) total += squares[i];
        scale = 1.0f / sqrtf(total / RANK + epsilon);
      }
      unsigned* const to = reinterpret_cast<unsigned*>(latents + token * S::latent_pitch);
#pragma unroll
      for (int p = 0; p < passes; ++p) {
        const int quad = p * per_pass + tid / helpers, k = 4 * quad;
        if (tid % helpers != 0 || (quads % per_pass != 0 && quad >= quads)) continue;
        if (NORM) {
          v[p].x *= scale * widen(norm_weight[k]);
          v[p].y *= scale * widen(norm_weight[k + 1]);
          v[p].z *= scale * widen(norm_weight[k + 2]);
          v[p].w *= scale * widen(norm_weight[k + 3]);
        }
        to[latent_word<K_MAJOR>(k)] = pair_of<T>(v[p].x, v[p].y);
        to[latent_word<K_MAJOR>(k + 2)] = pair_of<T>(v[p].z, v[p].w);
      }
    }
  }
  workers_sync();
  // What has come here came from all blocks, which therefore know the number of this call.
  if (TWO_STEPS && tid == 0 && blockIdx.x == 0) count_call(exchange, call);

  const int column_warp = warp % COLUMN_WARPS, depth_warp = warp / COLUMN_WARPS;
  int q0 = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, q0 += S::up_steps) {
    clear(sum);
#pragma unroll
    for (int s = 0; s < S::up_steps; ++s) {
      const int q = q0 + s;
      uint4 b[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        b[n] = make_uint4(0, 0, 0, 0);
        const int token = 8 * n + g;
        if (token < LATENTS && (TWO_STEPS || token < tokens))
          b[n] = load_shared(base + SLOTS * kWorkers * kSlotBytes + token * S::latent_pitch +
                             (depth_warp * S::up_steps + s) * 64 + t * 16);
      }
      uint4 w[8];
      if (s < kept) {
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = first_steps[s < kept ? s : 0][i];
      } else {
        const int slot = (q + S::down_slots) % SLOTS;
        barrier_wait(my_full + 8 * slot, q / SLOTS & 1);
        read_box(w, slot);
        if (!S::one_tile || s + SLOTS < S::up_steps) {  // there will be another copy
          __syncwarp();
          if (lane == 0) barrier_arrive(my_empty + 8 * slot);
        }
      }
      if constexpr (K_MAJOR) {
#pragma unroll
        for (int m = 0; m < 4; ++m) multiply_columns<T>(sum, m, w[2 * m], w[2 * m + 1], b);
      } else {
        unsigned low[NT][2], high[NT][2];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          low[n][0] = b[n].x, low[n][1] = b[n].y, high[n][0] = b[n].z, high[n][1] = b[n].w;
        }
        multiply_rows<T>(sum, w, low);
        multiply_rows<T>(sum, w + 4, high);
      }
    }
    const bool second = tile >= a.tiles0;
    const Side& side = a.side[second];
    const int tile0 = (second ? tile - a.tiles0 : tile) * S::columns;
    if constexpr (S::one_tile) {  // all slots are free
      float4* const exchange = reinterpret_cast<float4*>(slots);
      workers_sync();
      if (depth_warp > 0) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int n = 0; n < NT; ++n)
            exchange[(((depth_warp - 1) * COLUMN_WARPS + column_warp) * 4 * NT + m * NT + n) * 32 +
                     lane] = make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
      }
      workers_sync();
      if (depth_warp == 0) {
#pragma unroll
        for (int d = 0; d < S::depth_warps - 1; ++d)
#pragma unroll
          for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n) {
              const float4 v =
                  exchange[((d * COLUMN_WARPS + column_warp) * 4 * NT + m * NT + n) * 32 + lane];
              sum[m][n][0] += v.x, sum[m][n][1] += v.y, sum[m][n][2] += v.z, sum[m][n][3] += v.w;
            }
      }
    }
    T* const out = second ? out1 : out0;
    if constexpr (K_MAJOR) {
      // Columns 16m + g and 16m + g + 8 are this lane's.
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = tile0 + 64 * column_warp + 16 * m + g + i / 2 * 8;
          if (depth_warp != 0 || column >= side.columns) continue;
          T* const to = out + out_column(side, column);
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const int token = 8 * n + 2 * t + i % 2;
            if (token < tokens) narrow(sum[m][n][i], to[token * side.out_token]);
          }
        }
    } else {
      const int column = tile0 + 64 * column_warp + 8 * g;
      if (depth_warp == 0 && column < side.columns) {
        T* const to = out + out_column(side, column);
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int token = 8 * n + 2 * t + h;
            if (token >= tokens) continue;
            unsigned words[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) words[m] = pair_of<T>(sum[m][n][h], sum[m][n][2 + h]);
            *reinterpret_cast<uint4*>(to + token * side.out_token) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
      }
    }
    if (!second) append_rope(a, k_pe, out0, 0, tokens, tile0, S::columns, tid, 256);
    if constexpr (S::one_tile) break;
  }
}
