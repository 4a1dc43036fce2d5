// Some hundred tokens and weights of up to about a megabyte on Hopper: both products in one launch of
// clusters of eight blocks.
//
// A cluster takes BM tokens. Each of its blocks forms an eighth of the sums of their latents, over its
// share of the model axis; each then adds the eight shares of an eighth of the tokens, read from the
// shared memory of the others, and writes the latents into that of all. So the latents never leave the
// multiprocessors, and each block reads only its parts of the weights, all of them at the start.

#include "cluster.cuh"

constexpr int kBlocks = 8;  // of a cluster

// WN columns of w_down and UN of w_up for each warp; CN columns of w_up for each block, which has one
// tile of them.
template <typename T, int TERMS, int MODEL, int RANK, int BM, int WN, int CN, int UN, bool DOWN_K_MAJOR,
          bool UP_K_MAJOR, bool WIDE_X, bool WIDE_DOWN, bool WIDE_UP>
struct ClusterShape {
  static constexpr int step = 32 / sizeof(T), pad = 16 / sizeof(T), WM = BM < 32 ? BM : 32;
  static constexpr int share = step * ceil_div(ceil_div(MODEL, step), kBlocks);  // of the model axis
  static constexpr int rank = WN * ceil_div(RANK, WN), depth = step * ceil_div(RANK, step);
  typedef MmaShape<T, TERMS, BM, rank, share, 2, WM, WN, DOWN_K_MAJOR, WIDE_X, WIDE_DOWN> Down;
  typedef MmaShape<T, TERMS, BM, CN, depth, 2, WM, UN, UP_K_MAJOR, true, WIDE_UP> Up;
  static constexpr int partial_pitch = rank + 8, staged_pitch = CN + pad;
  static constexpr int first_bytes =
      max_of(max_of((Down::x_size + Down::w_size) * int(sizeof(T)), BM * partial_pitch * 4),
             BM * staged_pitch * int(sizeof(T)));
};

template <typename T, int TERMS, int MODEL, int RANK, int BM, int WN, int CN, int UN, bool DOWN_K_MAJOR,
          bool UP_K_MAJOR, bool WIDE_X, bool WIDE_DOWN, bool WIDE_UP, bool NORM, int THREADS>
__global__ void __launch_bounds__(THREADS)
    mla_kv_cluster(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                   const T* norm_weight, const T* k_pe, T* out0, T* out1,
                   const __grid_constant__ Sizes a, const __grid_constant__ Side down,
                   float epsilon) {
  typedef ClusterShape<T, TERMS, MODEL, RANK, BM, WN, CN, UN, DOWN_K_MAJOR, UP_K_MAJOR, WIDE_X,
                       WIDE_DOWN, WIDE_UP>
      C;
  typedef typename C::Down S;
  typedef typename C::Up U;
  constexpr int threads = THREADS;
  static_assert(threads == max_of(256, max_of(S::threads, U::threads)), "a warp for every tile");
  extern __shared__ __align__(16) unsigned char memory[];
  // Tokens and w_down; then shares of latents; then results.
  T* const x = reinterpret_cast<T*>(memory);
  T* const first_weight = x + S::x_size;
  float* const partial = reinterpret_cast<float*>(memory);
  T* const staged = reinterpret_cast<T*>(memory);
  T* const second_weight = reinterpret_cast<T*>(memory + C::first_bytes);
  T* const latents = second_weight + U::w_size;

  const int block = static_cast<int>(cluster_rank()), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64 first = static_cast<int64>(blockIdx.x / kBlocks) * BM;
  const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
  const int k0 = block * C::share, terms = max(min(C::share, MODEL - k0), 0);
  const bool second = block >= a.tiles0, idle = block >= a.tiles0 + a.tiles1;
  const Side& side = a.side[second];
  const T* const w_up = second ? w_up_v : w_up_k;
  const int n0 = (second ? block - a.tiles0 : block) * CN;
  const int columns = idle ? 0 : min(CN, side.columns - n0);

  __shared__ int64 starts[BM];
  for (int row = threadIdx.x; row < count; row += threads)
    starts[row] = token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
  __syncthreads();
  // The weights as well may be of a kernel before the previous one, which let this one start before it
  // waited for that.
  wait_for_previous_kernel();
  let_next_kernel_start();
  fill_weight<S, threads>(first_weight, w_down, down, 0, RANK, k0, terms);
  fill_weight<U, threads>(second_weight, w_up, side, n0, columns, 0, RANK);
  fill<T, BM, C::share, S::x_pitch, threads, WIDE_X>(x, count, terms, hidden, [&](int row, int k) {
    return hidden + starts[row] + (k0 + k) * a.token_column;
  });
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  {
    MmaTile<S> tile;
    if (warp < S::threads / 32) {
      tile.clear();
#pragma unroll 4
      for (int k = 0; k < C::share; k += C::step)
        tile.multiply_step(x, S::x_pitch, k, first_weight, k);
    }
    __syncthreads();
    if (warp < S::threads / 32) {
#pragma unroll
      for (int m = 0; m < S::MT; ++m)
#pragma unroll
        for (int n = 0; n < S::NT; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(
                partial + (S::warp_row() + 16 * m + lane / 4 + 8 * h) * C::partial_pitch +
                S::warp_column() + 8 * n + lane % 4 * 2) =
                make_float2(tile.sum[m][n][2 * h], tile.sum[m][n][2 * h + 1]);
    }
  }
  cluster_meet();

  {
    // Whole warps share the latents of a token.
    constexpr int rows = BM / kBlocks, lanes = threads / 32 / rows * 32, quads = C::rank / 4;
    constexpr int passes = ceil_div(quads, lanes);
    __shared__ float squares[threads / 32];
    const int row = block * rows + threadIdx.x / lanes, quad0 = threadIdx.x % lanes;
    const bool active = threadIdx.x < rows * lanes;
    float v[passes][4], square = 0.0f;
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const int quad = quad0 + p * lanes;
      float4 part[kBlocks];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        part[b] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (active && quad < quads)
          part[b] = load_from_block(address_in(
              shared_offset(partial + row * C::partial_pitch + 4 * quad), static_cast<unsigned>(b)));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) v[p][i] = 0.0f;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        v[p][0] += part[b].x, v[p][1] += part[b].y, v[p][2] += part[b].z, v[p][3] += part[b].w;
      if constexpr (S::is_float && TERMS == 3) {
        // The parts of an infinity are not its sum.
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) finite &= fabsf(v[p][i]) < kLargest;
        if (!finite && active && row < count) {
          const T* from = hidden + token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            v[p][i] = 0.0f;
            const T* by = w_down + weight_column(down, min(4 * quad + i, RANK - 1));
#pragma unroll 1
            for (int k = 0; k < MODEL; ++k)
              v[p][i] = fmaf(widen(from[k * a.token_column]), widen(by[k * down.row]), v[p][i]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (4 * quad + i < RANK) square += v[p][i] * v[p][i];
    }
    float scale = 1.0f;
    if constexpr (NORM) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      if (lane == 0) squares[warp] = square;
      __syncthreads();
      square = 0.0f;
#pragma unroll
      for (int i = 0; i < lanes / 32; ++i)
        if (active) square += squares[threadIdx.x / lanes * (lanes / 32) + i];
      scale = 1.0f / sqrtf(square / RANK + epsilon);
    }
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const int k = 4 * (quad0 + p * lanes);
      if (!active || k >= C::depth) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (k + i >= RANK)
          v[p][i] = 0.0f;  // also where tokens hold infinities
        else if (NORM)
          v[p][i] *= scale * widen(norm_weight[k + i]);
      }
      const unsigned to = shared_offset(latents + row * U::x_pitch + k);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        store_to_block(address_in(to, static_cast<unsigned>(b)), v[p], T());
    }
  }
  cluster_meet();
  if (idle) return;

  MmaTile<U> tile;
  bool finite = true;
  if (warp < U::threads / 32) {
    tile.clear();
#pragma unroll 4
    for (int k = 0; k < C::depth; k += C::step)
      tile.multiply_step(latents, U::x_pitch, k, second_weight, k);
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = U::warp_row() + 16 * m + lane / 4 + i / 2 * 8;
          const int column = U::warp_column() + 8 * n + lane % 4 * 2 + i % 2;
          narrow(tile.sum[m][n][i], staged[row * C::staged_pitch + column]);
          finite &= fabsf(tile.sum[m][n][i]) < kLargest;
        }
  }
  if constexpr (U::is_float && TERMS == 3) {
    if (__syncthreads_or(!finite)) {
#pragma unroll 1
      for (int i = threadIdx.x; i < count * CN; i += threads) {
        const int row = i / CN, column = i % CN;
        T& result = staged[row * C::staged_pitch + column];
        if (column >= columns || fabsf(widen(result)) < kLargest) continue;
        const T* by = w_up + weight_column(side, n0 + column);
        float value = 0.0f;
#pragma unroll 1
        for (int k = 0; k < RANK; ++k)
          value = fmaf(widen(latents[row * U::x_pitch + k]), widen(by[k * side.row]), value);
        narrow(value, result);
      }
    }
  }
  __syncthreads();
  T* const out = second ? out1 : out0;
  if (a.aligned) {
    constexpr int per_row = CN / C::pad;
    for (int i = threadIdx.x; i < count * per_row; i += threads) {
      const int row = i / per_row, column = i % per_row * C::pad;
      if (column < columns)
        *reinterpret_cast<uint4*>(out + out_column(side, n0 + column) +
                                  (first + row) * side.out_token) =
            *reinterpret_cast<const uint4*>(staged + row * C::staged_pitch + column);
    }
  } else {
    for (int i = threadIdx.x; i < count * CN; i += threads) {
      const int row = i / CN, column = i % CN;
      if (column < columns)
        out[out_column(side, n0 + column) + (first + row) * side.out_token] =
            staged[row * C::staged_pitch + column];
    }
  }
  if (!second)
    append_rope(a, k_pe, out0, first, count, n0, CN, static_cast<int>(threadIdx.x), threads);
}
