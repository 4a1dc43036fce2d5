// Few tokens and any weights on Hopper: two launches of mma.sync that overlap.
//
// A block has its whole part of a weight in shared memory, asked for before the previous kernel ends.
// The sums of the first product are split over the blocks of a cluster, and within a block over groups
// of warps: a chain of dependent instructions is what so little work would otherwise wait for.

#include "cluster.cuh"

constexpr int kBlocks = 8;  // of a cluster

// Warps in groups, each of which has the whole tile and its share of the terms.
template <typename Shape, int THREADS>
struct Grouped : Shape {
  static constexpr int warps = Shape::threads / 32, groups = THREADS / 32 / warps;
  static_assert(groups * warps * 32 == THREADS, "every warp belongs to a group");
  __device__ static int group() { return threadIdx.x / 32 / warps; }
  __device__ static int warp_row() {
    return threadIdx.x / 32 % warps / (Shape::BN / Shape::WN) * Shape::WM;
  }
};

// sums [group][BM][BN + 8] = x (BM x terms) @ w, of which each group has every groups-th step.
template <typename S>
__device__ void multiply_in_groups(float* sums, const typename S::T* x, const typename S::T* w,
                                   int terms) {
  constexpr int pitch = S::BN + 8;
  const int lane = threadIdx.x % 32;
  MmaTile<S> tile;
  tile.clear();
#pragma unroll 4
  for (int k = S::group() * S::step; k < terms; k += S::groups * S::step)
    tile.multiply_step(x, S::x_pitch, k, w, k);
  float* const to = sums + S::group() * (S::BM * pitch);
#pragma unroll
  for (int m = 0; m < S::MT; ++m)
#pragma unroll
    for (int n = 0; n < S::NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(to + (S::warp_row() + 16 * m + lane / 4 + 8 * h) * pitch +
                                   S::warp_column() + 8 * n + lane % 4 * 2) =
            make_float2(tile.sum[m][n][2 * h], tile.sum[m][n][2 * h + 1]);
}

template <int GROUPS, int SIZE>
__device__ __forceinline__ float4 sum_of_groups(const float* at) {
  float4 v = *reinterpret_cast<const float4*>(at);
#pragma unroll
  for (int g = 1; g < GROUPS; ++g) {
    const float4 w = *reinterpret_cast<const float4*>(at + g * SIZE);
    v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
  }
  return v;
}

__device__ __forceinline__ bool is_finite(float4 v) {
  return fabsf(v.x) < kLargest && fabsf(v.y) < kLargest && fabsf(v.z) < kLargest &&
         fabsf(v.w) < kLargest;
}

// latent = hidden @ w_down: BM tokens x BN latents for a cluster. NORM: latents are multiplied by
// norm_weight, and squares [tile of rank][token] gets the sum of squares of what they were before.
template <typename T, int TERMS, int MODEL, int BM, int BN, int WN, bool K_MAJOR, bool WIDE_X,
          bool WIDE_W, bool NORM, int THREADS>
__global__ void __launch_bounds__(THREADS)
    mla_kv_split_down(const T* hidden, const T* w_down, const T* norm_weight, T* latent,
                      float* squares, const __grid_constant__ Sizes a) {
  constexpr int step = 32 / sizeof(T);
  constexpr int share = step * ceil_div(ceil_div(MODEL, step), kBlocks);  // of the model axis
  typedef Grouped<MmaShape<T, TERMS, BM, BN, share, 2, (BM < 32 ? BM : 32), WN, K_MAJOR, WIDE_X, WIDE_W>,
                  THREADS>
      S;
  constexpr int pitch = BN + 8, size = BM * pitch;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const x = reinterpret_cast<T*>(memory);
  T* const weight = x + S::x_size;
  float* const sums = reinterpret_cast<float*>(memory + (S::x_size + S::w_size) * sizeof(T));
  const Side& side = a.side[0];
  const int block = static_cast<int>(cluster_rank()), tile = blockIdx.x / kBlocks;
  const int64 first = static_cast<int64>(tile % a.token_tiles) * BM;
  const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
  const int rank_tile = tile / a.token_tiles, n0 = rank_tile * BN;
  const int columns = min(BN, side.columns - n0);
  const int k0 = block * share, terms = max(min(share, MODEL - k0), 0);

  __shared__ int64 starts[BM];
  for (int row = threadIdx.x; row < count; row += THREADS)
    starts[row] = token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
  __syncthreads();
  // The weights as well may be of a kernel before the previous one, which let this one start before it
  // waited for that.
  wait_for_previous_kernel();
  let_next_kernel_start();
  fill_weight<S, THREADS>(weight, w_down, side, n0, columns, k0, terms);
  fill<T, BM, share, S::x_pitch, THREADS, WIDE_X>(x, count, terms, hidden, [&](int row, int k) {
    return hidden + starts[row] + (k0 + k) * a.token_column;
  });
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  multiply_in_groups<S>(sums, x, weight, share);
  __syncthreads();
  if constexpr (S::groups > 1) {  // once, before other blocks read them
    for (int i = threadIdx.x; i < BM * BN / 4; i += THREADS) {
      float* const at = sums + i / (BN / 4) * pitch + i % (BN / 4) * 4;
      *reinterpret_cast<float4*>(at) = sum_of_groups<S::groups, size>(at);
    }
  }
  cluster_meet();
  constexpr int rows = BM / kBlocks, per_row = BN / 4;  // a thread has four latents
  static_assert(rows * per_row <= THREADS && 32 % per_row == 0, "whole tokens in a warp");
  const int row = block * rows + threadIdx.x / per_row, column = threadIdx.x % per_row * 4;
  const bool active = threadIdx.x < rows * per_row;
  float4 part[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    part[b] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (active)
      part[b] = load_from_block(
          address_in(shared_offset(sums + row * pitch + column), static_cast<unsigned>(b)));
  }
  float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    v[0] += part[b].x, v[1] += part[b].y, v[2] += part[b].z, v[3] += part[b].w;
  if constexpr (S::is_float && TERMS == 3) {
    if (active && row < count && !is_finite(make_float4(v[0], v[1], v[2], v[3]))) {
      // The parts of an infinity are not its sum.
      const T* from = hidden + token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* by = w_down + weight_column(side, min(n0 + column + i, side.columns - 1));
        v[i] = 0.0f;
#pragma unroll 1
        for (int k = 0; k < MODEL; ++k)
          v[i] = fmaf(widen(from[k * a.token_column]), widen(by[k * side.row]), v[i]);
      }
    }
  }
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!active || row >= count || column + i >= columns) continue;
    square += v[i] * v[i];
    if (NORM) v[i] *= widen(norm_weight[n0 + column + i]);
    narrow(v[i], latent[(first + row) * side.columns + n0 + column + i]);
  }
  if constexpr (NORM) {
#pragma unroll
    for (int d = per_row / 2; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
    if (active && column == 0 && row < count) squares[rank_tile * a.tokens + first + row] = square;
  }
  cluster_meet();  // nobody leaves while others may read its sums
}

// Keys and values of BM tokens x CN columns. NORM: results are divided by the root of epsilon plus the
// mean of `square_tiles` sums in `squares`.
template <typename T, int TERMS, int RANK, int BM, int CN, int UN, bool K_MAJOR, bool WIDE_X,
          bool WIDE_W, bool NORM, int THREADS>
__global__ void __launch_bounds__(THREADS)
    mla_kv_split_up(const T* latent, const T* w_up_k, const T* w_up_v, const float* squares,
                    const T* k_pe, T* out0, T* out1, const __grid_constant__ Sizes a,
                    int square_tiles, float epsilon) {
  constexpr int step = 32 / sizeof(T), depth = step * ceil_div(RANK, step);
  typedef Grouped<MmaShape<T, TERMS, BM, CN, depth, 2, (BM < 32 ? BM : 32), UN, K_MAJOR, WIDE_X, WIDE_W>,
                  THREADS>
      S;
  constexpr int pitch = CN + 8, size = BM * pitch;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const x = reinterpret_cast<T*>(memory);
  T* const weight = x + S::x_size;
  float* const sums = reinterpret_cast<float*>(memory + (S::x_size + S::w_size) * sizeof(T));
  const int tile = blockIdx.x / a.token_tiles;
  const bool second = tile >= a.tiles0;
  const Side& side = a.side[second];
  const T* const w_up = second ? w_up_v : w_up_k;
  const int n0 = (second ? tile - a.tiles0 : tile) * CN, columns = min(CN, side.columns - n0);
  const int64 first = static_cast<int64>(blockIdx.x % a.token_tiles) * BM;
  const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));

  fill_weight<S, THREADS>(weight, w_up, side, n0, columns, 0, RANK);
  wait_for_previous_kernel();
  let_next_kernel_start();
  fill<T, BM, depth, S::x_pitch, THREADS, WIDE_X>(
      x, count, RANK, latent, [&](int row, int k) { return latent + (first + row) * RANK + k; });
  __shared__ float scales[BM];
  if constexpr (NORM) {
    for (int row = threadIdx.x; row < count; row += THREADS) {
      float sum = 0.0f;
      for (int i = 0; i < square_tiles; ++i) sum += squares[i * a.tokens + first + row];
      scales[row] = 1.0f / sqrtf(sum / RANK + epsilon);
    }
  }
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  multiply_in_groups<S>(sums, x, weight, depth);
  __syncthreads();
  T* const out = second ? out1 : out0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count * (CN / 4); i += THREADS) {
    const int row = i / (CN / 4), column = i % (CN / 4) * 4;
    if (column >= columns) continue;
    const float4 sum = sum_of_groups<S::groups, size>(sums + row * pitch + column);
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
    if constexpr (S::is_float && TERMS == 3) {
      if (!is_finite(sum)) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const T* by = w_up + weight_column(side, min(n0 + column + j, side.columns - 1));
          v[j] = 0.0f;
#pragma unroll 1
          for (int k = 0; k < RANK; ++k)
            v[j] = fmaf(widen(x[row * S::x_pitch + k]), widen(by[k * side.row]), v[j]);
        }
      }
    }
    if constexpr (NORM) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] *= scales[row];
    }
    T* const to = out + (first + row) * side.out_token;
    if (a.aligned) {
      if constexpr (sizeof(T) == 4)
        *reinterpret_cast<float4*>(to + out_column(side, n0 + column)) =
            make_float4(v[0], v[1], v[2], v[3]);
      else
        *reinterpret_cast<uint2*>(to + out_column(side, n0 + column)) =
            make_uint2(packed(v[0], v[1], T()), packed(v[2], v[3], T()));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (column + j < columns) narrow(v[j], to[out_column(side, n0 + column + j)]);
    }
  }
  if (!second)
    append_rope(a, k_pe, out0, first, count, n0, CN, static_cast<int>(threadIdx.x), THREADS);
}
