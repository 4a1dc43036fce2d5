// A few tokens, any type and layout: both products in one launch, by fp32 multiply-adds.
//
// A thread has WIDTH neighbouring columns of a weight and some of its rows. It issues the loads of
// its part of w_up before it forms its part of the latents, into registers, so that they arrive
// while the shares of the latents meet at a barrier of the whole grid. The tokens are in shared
// memory, all of them side by side for each row of the weights.

#include "common.cuh"
#include "grid.cuh"

constexpr int kThreads = 256;

// WIDTH neighbouring values, loaded where the source says: else the compiler puts the loads off.
template <typename T, int WIDTH>
struct Values {
  static constexpr int bytes = WIDTH * sizeof(T);
  unsigned words[bytes > 4 ? bytes / 4 : 1];

  __device__ void clear() {
#pragma unroll
    for (unsigned& word : words) word = 0;
  }
  __device__ void load(const T* from) {
    if constexpr (bytes == 16)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(from));
    else if constexpr (bytes == 8)
      asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "l"(from));
    else if constexpr (bytes == 4)
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
    else {
      unsigned short half;
      asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(half) : "l"(from));
      words[0] = half;
    }
  }
  __device__ float operator[](int i) const { return widen(reinterpret_cast<const T*>(words)[i]); }
};

// Floats from one row of tokens to the next; the 4 spread them over the banks.
template <int NT>
constexpr int kPitch = NT >= 8 ? NT + 4 : NT;

// The values of all tokens for one row.
template <int NT>
__device__ __forceinline__ void read_tokens(float (&x)[NT], const float* from) {
  if constexpr (NT % 4 == 0) {
#pragma unroll
    for (int t = 0; t < NT; t += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + t);
      x[t] = v.x, x[t + 1] = v.y, x[t + 2] = v.z, x[t + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int t = 0; t < NT; ++t) x[t] = from[t];
  }
}

// One weight, as a thread reads it: WIDTH columns from `at`, rows first, first + step, ...
template <typename T, int WIDTH, int NT, int ROWS>
struct Strip {
  Values<T, WIDTH> w[ROWS];

  // at: column of row 0, or null where the thread has none.
  __device__ void load(const T* at, int64 row_stride, int first, int step, int end) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int r = first + i * step;
      if (at != nullptr && r < end)
        w[i].load(at + r * row_stride);
      else
        w[i].clear();
    }
  }
  // tokens: [row][pitch], from row 0 on. Rows past the end are left out, whatever lies there.
  __device__ void multiply(float (&sum)[NT][WIDTH], const float* tokens, int first, int step,
                           int end) const {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int r = first + i * step;
      if (r >= end) continue;
      float x[NT];
      read_tokens(x, tokens + r * kPitch<NT>);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        const float v = w[i][j];
#pragma unroll
        for (int t = 0; t < NT; ++t) sum[t][j] = fmaf(x[t], v, sum[t][j]);
      }
    }
  }
};

template <int NT, int WIDTH>
__device__ __forceinline__ void clear(float (&sum)[NT][WIDTH]) {
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sum[t][j] = 0.0f;
}

// The sums of all threads to shared memory: [group of rows][NT][columns of the block].
template <int NT, int WIDTH, int SLOTS>
__device__ __forceinline__ void put_sums(float* sums, const float (&sum)[NT][WIDTH]) {
  const int slot = threadIdx.x % SLOTS, group = threadIdx.x / SLOTS;
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    float* const to = sums + ((group * NT + t) * SLOTS + slot) * WIDTH;
    if constexpr (WIDTH == 4)
      *reinterpret_cast<float4*>(to) = make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
    else
      to[0] = sum[t][0];
  }
}

// The total of column i, which counts [NT][columns of the block], over the groups of rows.
template <int NT, int COLUMNS, int GROUPS>
__device__ __forceinline__ float total_of(const float* sums, int i) {
  float total = 0.0f;
#pragma unroll 8
  for (int g = 0; g < GROUPS; ++g) total += sums[g * NT * COLUMNS + i];
  return total;
}

// tokens: at most NT. A block has DOWN_SLOTS * WIDTH columns of w_down and `down_rows` of its rows,
// `shares` of which cover the model axis (a.depth), and DOWN_ROWS, UP_ROWS: rows whose loads a
// thread has in flight. TWO_STEPS: shares are summed by one block each and a second grid barrier
// follows; else every block sums them all. `partial`: shares x tokens x rank; `summed`: rank x
// NT. Dynamic shared memory: NT * kThreads * WIDTH + pitch * (down_rows + rank) floats. Tiles of
// UP_SLOTS * WIDTH columns.
template <typename T, int WIDTH, int NT, int DOWN_SLOTS, int DOWN_ROWS, int UP_SLOTS, int UP_ROWS,
          bool TWO_STEPS, bool NORM>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_stream(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                  const T* norm_weight, const T* k_pe, T* out0, T* out1, float* partial,
                  float* summed, unsigned long long* count, const __grid_constant__ Sizes a,
                  const __grid_constant__ Side down, int down_rows, int shares, float epsilon) {
  constexpr int down_groups = kThreads / DOWN_SLOTS, up_groups = kThreads / UP_SLOTS;
  constexpr int down_columns = DOWN_SLOTS * WIDTH, up_columns = UP_SLOTS * WIDTH;
  constexpr int pitch = kPitch<NT>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int rank = down.columns, tokens = static_cast<int>(a.tokens);
  float* const sums = reinterpret_cast<float*>(memory);
  float* const latents = sums + NT * kThreads * WIDTH;
  float* const inputs = latents + pitch * rank;
  const int tid = threadIdx.x;

  wait_for_previous_kernel();
  const int groups = (rank + down_columns - 1) / down_columns;
  const int column_group = blockIdx.x % groups, share = blockIdx.x / groups;
  const int k0 = share * down_rows;
  const int rows = share < shares ? max(0, min(down_rows, static_cast<int>(a.depth) - k0)) : 0;
  const int down_column = column_group * down_columns + tid % DOWN_SLOTS * WIDTH;
  const int down_group = tid / DOWN_SLOTS;
  const T* const down_at = rows > 0 && down_column < rank
                               ? w_down + k0 * down.row + weight_column(down, down_column)
                               : nullptr;
  // The first of the inputs are asked for before the weights, which are many.
  constexpr int early = NT >= 8 ? 16 : 8;
  auto input_at = [&](int i) {
    const int t = i / rows, k = i - t * rows;
    return hidden + token_start(t, a.inner, a.outer_stride, a.inner_stride) +
           (k0 + k) * a.token_column;
  };
  Values<T, 1> input[early];
#pragma unroll
  for (int j = 0; j < early; ++j) {
    const int i = tid + j * kThreads;
    input[j].clear();
    if (i < rows * tokens) input[j].load(input_at(i));
  }
  Strip<T, WIDTH, NT, DOWN_ROWS> down_strip;
  down_strip.load(down_at, down.row, down_group, down_groups, rows);

  const int tiles = a.tiles0 + a.tiles1;
  const int up_group = tid / UP_SLOTS;
  Strip<T, WIDTH, NT, UP_ROWS> up_strip;
  const T* up_at = nullptr;
  const Side* side = nullptr;
  int up_column = 0;
  auto take_tile = [&](int tile) {
    const bool second = tile >= a.tiles0;
    side = &a.side[second];
    up_column = (second ? tile - a.tiles0 : tile) * up_columns + tid % UP_SLOTS * WIDTH;
    up_at = nullptr;
    if (tile < tiles && up_column < side->columns)
      up_at = (second ? w_up_v : w_up_k) + weight_column(*side, up_column);
  };
  take_tile(blockIdx.x);
  up_strip.load(up_at, side->row, up_group, up_groups, rank);

  auto put_input = [&](int i, float value) {
    const int t = i / rows, k = i - t * rows;
    inputs[k * pitch + t] = value;
  };
#pragma unroll
  for (int j = 0; j < early; ++j)
    if (tid + j * kThreads < rows * NT) put_input(tid + j * kThreads, input[j][0]);
  for (int i = tid + early * kThreads; i < rows * NT; i += kThreads)
    put_input(i, i < rows * tokens ? widen(*input_at(i)) : 0.0f);

  float sum[NT][WIDTH];
  clear(sum);
  __syncthreads();
  down_strip.multiply(sum, inputs, down_group, down_groups, rows);
  for (int first = down_group + DOWN_ROWS * down_groups; first < rows;
       first += DOWN_ROWS * down_groups) {
    down_strip.load(down_at, down.row, first, down_groups, rows);
    down_strip.multiply(sum, inputs, first, down_groups, rows);
  }
  put_sums<NT, WIDTH, DOWN_SLOTS>(sums, sum);
  __syncthreads();
  if (share < shares) {
    for (int i = tid; i < tokens * down_columns; i += kThreads) {
      const int t = i / down_columns, r = column_group * down_columns + i % down_columns;
      const float total = total_of<NT, down_columns, down_groups>(sums, i);
      if (r < rank) partial[(static_cast<int64>(share) * tokens + t) * rank + r] = total;
    }
  }
  auto meet = [&]() {
    __syncthreads();
    if (tid == 0) grid_barrier(count);
    __syncthreads();
  };
  meet();

  constexpr int helpers = 8;  // threads that share a sum
  const int many = tokens * rank;
  auto sum_of_shares = [&](int i) {
    float total = 0.0f;
    if (i < many) {
#pragma unroll 8
      for (int s = tid % helpers; s < shares; s += helpers)
        total += load_fresh_one(partial + static_cast<int64>(s) * many + i);
    }
#pragma unroll
    for (int d = 1; d < helpers; d *= 2) total += __shfl_xor_sync(~0u, total, d);
    return total;
  };
  constexpr int at_once = kThreads / helpers;
  if constexpr (TWO_STEPS) {
    for (int base = blockIdx.x * at_once; base < NT * rank; base += gridDim.x * at_once) {
      const int i = base + tid / helpers, t = i / rank;
      const float total = sum_of_shares(i);
      if (tid % helpers == 0 && i < NT * rank) summed[(i - t * rank) * NT + t] = total;
    }
    meet();
    if constexpr (NT % 4 == 0) {
#pragma unroll 8
      for (int i = tid; i < NT / 4 * rank; i += kThreads)
        *reinterpret_cast<float4*>(latents + i / (NT / 4) * pitch + i % (NT / 4) * 4) =
            load_fresh(summed + 4 * i);
    } else {
#pragma unroll 8
      for (int i = tid; i < NT * rank; i += kThreads) latents[i] = load_fresh_one(summed + i);
    }
  } else {
    for (int i = tid; i < NT * rank; i += kThreads) {
      const int t = i / rank;
      float total = 0.0f;
      for (int s0 = 0; s0 < shares; s0 += 16) {
        float part[16];
#pragma unroll
        for (int s = 0; s < 16; ++s)
          part[s] = i < many && s0 + s < shares
                        ? load_fresh_one(partial + static_cast<int64>(s0 + s) * many + i)
                        : 0.0f;
#pragma unroll
        for (int s = 0; s < 16; ++s) total += part[s];
      }
      latents[(i - t * rank) * pitch + t] = total;
    }
  }
  __syncthreads();
  if constexpr (NORM) {
    const int lane = tid % 32;
    for (int t = tid / 32; t < NT; t += kThreads / 32) {
      float square = 0.0f;
      for (int r = lane; r < rank; r += 32) square += latents[r * pitch + t] * latents[r * pitch + t];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      const float scale = 1.0f / sqrtf(square / rank + epsilon);
      for (int r = lane; r < rank; r += 32) latents[r * pitch + t] *= scale * widen(norm_weight[r]);
    }
    __syncthreads();
  }

  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if (tile != blockIdx.x) {
      take_tile(tile);
      up_strip.load(up_at, side->row, up_group, up_groups, rank);
    }
    clear(sum);
    up_strip.multiply(sum, latents, up_group, up_groups, rank);
    for (int first = up_group + UP_ROWS * up_groups; first < rank; first += UP_ROWS * up_groups) {
      up_strip.load(up_at, side->row, first, up_groups, rank);
      up_strip.multiply(sum, latents, first, up_groups, rank);
    }
    put_sums<NT, WIDTH, UP_SLOTS>(sums, sum);
    __syncthreads();
    const bool second = tile >= a.tiles0;
    const int n0 = (second ? tile - a.tiles0 : tile) * up_columns;
    T* const out = second ? out1 : out0;
    for (int i = tid; i < tokens * up_columns; i += kThreads) {
      const int t = i / up_columns, n = n0 + i % up_columns;
      const float total = total_of<NT, up_columns, up_groups>(sums, i);
      if (n < side->columns) narrow(total, out[out_column(*side, n) + t * side->out_token]);
    }
    if (!second) append_rope(a, k_pe, out0, 0, tokens, n0, up_columns, tid, kThreads);
    __syncthreads();
  }
}
