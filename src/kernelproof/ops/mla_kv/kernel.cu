// Latent key/value projection on CUDA.
//
//     latent = hidden @ w_down;  out[:, 0] = latent @ w_up_k;  out[:, 1] = latent @ w_up_v
//
// Three designs without tensor cores:
//   mla_kv_registers  small contiguous fp32: a few tokens a block, all weights held in registers
//   mla_kv_fused      small, any layout: a tile of latents in shared memory between two products
//   mla_kv_product    any size: one tiled product per launch, latents in global memory; with
//                     mla_kv_latent (kernel_mma.cu) between them for split sums and the norm
// All use fp32 multiply-adds (fp64 for double), never TF32, and sum in a fixed order.

#include "common.cuh"

// ------------------------------------------------------------------------------------------------
// mla_kv_registers
// ------------------------------------------------------------------------------------------------

// Volatile, so that the compiler keeps the order of the loads and all of them in flight.
__device__ __forceinline__ float4 load_quad(const float* from) {
  float4 v;
  asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void copy_async(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

__device__ __forceinline__ void add_product(float4& sum, float x, float4 w) {
  sum.x = fmaf(x, w.x, sum.x);
  sum.y = fmaf(x, w.y, sum.y);
  sum.z = fmaf(x, w.z, sum.z);
  sum.w = fmaf(x, w.w, sum.w);
}

__device__ __forceinline__ void add(float4& sum, float4 v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

// Sizes of one instance. Each phase gives a thread one quad of columns and a share of the rows.
template <int M, int R, int U, int TOKENS, int THREADS>
struct RegisterShape {
  static constexpr int down_quads = R / 4, down_groups = THREADS / down_quads;
  static constexpr int down_rows = ceil_div(M, down_groups);
  static constexpr int up_quads = U / 2, up_groups = THREADS / up_quads;
  // A multiple of 4, so that latents are read as quads.
  static constexpr int up_rows = 4 * ceil_div(ceil_div(R, up_groups), 4);
  // The extra quad puts the partial sums of neighbouring groups into different banks.
  static constexpr int partial_pitch = TOKENS * R + 4;
  static constexpr int latent_quads = TOKENS * R / 4;
  static constexpr int partials =
      max_of(down_groups * partial_pitch, up_groups * TOKENS * 2 * U);
  // Threads that sum one quad of latents: a power of two within a warp.
  __host__ __device__ static constexpr int helpers() {
    int n = 1;
    while (n < 32 && 2 * n * latent_quads <= THREADS && 2 * n <= down_groups) n *= 2;
    return n;
  }
};

// One block: TOKENS tokens, from hidden to output. hidden has a contiguous model axis and `pitch`
// elements from token to token; the weights are contiguous and 16-byte aligned. R and U are
// multiples of 4, TOKENS is at most 4.
template <int M, int R, int U, int TOKENS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    mla_kv_registers(const float* hidden, const float* w_down, const float* w_up_k,
                     const float* w_up_v, float* out, int tokens, int64 pitch) {
  using S = RegisterShape<M, R, U, TOKENS, THREADS>;
  __shared__ float4 token_values[M];  // [m]: the tokens of the block are the components
  __shared__ __align__(16) float latent[TOKENS * R];
  __shared__ __align__(16) float partial[S::partials];

  let_next_kernel_start();
  wait_for_previous_kernel();

  const int tid = threadIdx.x;
  const int first = blockIdx.x * TOKENS;
  const int count = min(TOKENS, tokens - first);

  // Loads are served in the order of issue: tokens, which are few, then w_down, then w_up.
#pragma unroll
  for (int k = 0; k < ceil_div(TOKENS * M, THREADS); ++k) {
    const int i = tid + k * THREADS, t = i / M, m = i % M;
    if ((k + 1) * THREADS <= TOKENS * M || i < TOKENS * M) {
      float* to = reinterpret_cast<float*>(token_values + m) + t;
      if (t < count)
        copy_async(to, hidden + (first + t) * pitch + m);
      else
        *to = 0.0f;
    }
  }
  const int down_group = tid / S::down_quads, down_quad = tid % S::down_quads;
  const bool down_active = S::down_groups * S::down_quads == THREADS || down_group < S::down_groups;
  float4 down[S::down_rows];
#pragma unroll
  for (int i = 0; i < S::down_rows; ++i) {
    const int m = down_group + i * S::down_groups;  // consecutive threads read consecutive quads
    if (down_active && ((i + 1) * S::down_groups <= M || m < M))
      down[i] = load_quad(w_down + m * R + 4 * down_quad);
  }
  const int up_group = tid / S::up_quads, up_quad = tid % S::up_quads;
  const bool up_active = S::up_groups * S::up_quads == THREADS || up_group < S::up_groups;
  const float* w_up = up_quad < U / 4 ? w_up_k + 4 * up_quad : w_up_v + (4 * up_quad - U);
  float4 up[S::up_rows];
#pragma unroll
  for (int i = 0; i < S::up_rows; ++i) {
    const int r = up_group * S::up_rows + i;
    if (up_active && (S::up_groups * S::up_rows <= R || r < R)) up[i] = load_quad(w_up + r * U);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();

  // Latents, each the sum of down_groups partial sums.
  float4 sum[TOKENS];
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) sum[t] = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < S::down_rows; ++i) {
    const int m = down_group + i * S::down_groups;
    if (down_active && ((i + 1) * S::down_groups <= M || m < M)) {
      const float4 x = token_values[m];
      add_product(sum[0], x.x, down[i]);
      if (TOKENS > 1) add_product(sum[TOKENS > 1 ? 1 : 0], x.y, down[i]);
      if (TOKENS > 2) add_product(sum[TOKENS > 2 ? 2 : 0], x.z, down[i]);
      if (TOKENS > 3) add_product(sum[TOKENS > 3 ? 3 : 0], x.w, down[i]);
    }
  }
  if (down_active) {
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      *reinterpret_cast<float4*>(partial + down_group * S::partial_pitch + t * R + 4 * down_quad) =
          sum[t];
  }
  __syncthreads();
  constexpr int helpers = S::helpers();
#pragma unroll
  for (int base = 0; base < S::latent_quads; base += THREADS / helpers) {
    const int o = base + tid / helpers, q = tid % helpers;
    float4 s = make_float4(0, 0, 0, 0);
    if (o < S::latent_quads) {
#pragma unroll
      for (int g = 0; g < S::down_groups; g += helpers) {
        if (g + helpers <= S::down_groups || g + q < S::down_groups)
          add(s, *reinterpret_cast<const float4*>(partial + (g + q) * S::partial_pitch + 4 * o));
      }
    }
#pragma unroll
    for (int d = helpers / 2; d > 0; d /= 2) {
      s.x += __shfl_xor_sync(~0u, s.x, d);
      s.y += __shfl_xor_sync(~0u, s.y, d);
      s.z += __shfl_xor_sync(~0u, s.z, d);
      s.w += __shfl_xor_sync(~0u, s.w, d);
    }
    if (q == 0 && o < S::latent_quads) *reinterpret_cast<float4*>(latent + 4 * o) = s;
  }
  __syncthreads();

  // Keys and values, each the sum of up_groups partial sums.
  if (up_active) {
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      float4 s = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < S::up_rows; i += 4) {
        const int r = up_group * S::up_rows + i;
        if (S::up_groups * S::up_rows <= R || r < R) {
          const float4 l = *reinterpret_cast<const float4*>(latent + t * R + r);
          add_product(s, l.x, up[i]);
          add_product(s, l.y, up[i + 1]);
          add_product(s, l.z, up[i + 2]);
          add_product(s, l.w, up[i + 3]);
        }
      }
      *reinterpret_cast<float4*>(partial + (up_group * TOKENS + t) * 2 * U + 4 * up_quad) = s;
    }
  }
  __syncthreads();
  for (int o = tid; o < count * S::up_quads; o += THREADS) {
    float4 s = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int g = 0; g < S::up_groups; ++g)
      add(s, *reinterpret_cast<const float4*>(partial + g * TOKENS * 2 * U + 4 * o));
    *reinterpret_cast<float4*>(out + static_cast<int64>(first) * 2 * U + 4 * o) = s;
  }
}

// ------------------------------------------------------------------------------------------------
// The tiled product, which mla_kv_fused and mla_kv_product share
// ------------------------------------------------------------------------------------------------

constexpr int kThreads = 256;

// A block's tile: BM tokens x BN columns, BK terms at a time; each thread owns TM x TN sums.
template <typename Sum, int BM, int BN, int BK, int TM, int TN>
struct Tile {
  static_assert((BM / TM) * (BN / TN) == kThreads, "one thread per TM x TN sums");
  static_assert(kThreads % BK == 0 && kThreads % BN == 0 && TN == 4, "loads and quads");
  // Pitches stay multiples of 4 for quad loads; the 4 more spread columns over the banks.
  static constexpr int a_pitch = BM + 4, b_pitch = BN + 4;
  static constexpr int a_loads = BM * BK / kThreads, b_loads = BN * BK / kThreads;
  struct alignas(16) Shared {
    Sum a[2][BK * a_pitch];  // [k][token]
    Sum b[2][BK * b_pitch];  // [k][column]
  };
  struct alignas(16) Quad {
    Sum v[4];
  };
  Sum sum[TM][TN];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) sum[i][j] = Sum(0);
  }

  // Adds BK terms. They are summed on their own first: rounding errors then grow with the number
  // of steps, not of terms.
  __device__ void multiply(const Sum* a, int pitch, const Sum* b) {
    const int row = threadIdx.x / (BN / TN) * TM, column = threadIdx.x % (BN / TN) * TN;
    Sum part[TM][TN] = {};
#pragma unroll 8
    for (int k = 0; k < BK; ++k) {
      Sum x[TM];
      if constexpr (TM % 4 == 0) {
#pragma unroll
        for (int i = 0; i < TM; i += 4) {
          const Quad q = *reinterpret_cast<const Quad*>(a + k * pitch + row + i);
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i + c] = q.v[c];
        }
      } else {
#pragma unroll
        for (int i = 0; i < TM; ++i) x[i] = a[k * pitch + row + i];
      }
      const Quad w = *reinterpret_cast<const Quad*>(b + k * b_pitch + column);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) part[i][j] += x[i] * w.v[j];
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) sum[i][j] += part[i][j];
  }

  // A weight tile on its way from global to shared memory. Threads run along the axis that is
  // contiguous, so that transposed weights are read in whole lines as well.
  template <typename T>
  struct WeightLoad {
    const T* at;  // of this thread's k in the next tile
    int64 offset[b_loads], next;
    int k, n, k_step, n_step, width;
    T value[b_loads];

    __device__ WeightLoad(const T* w, const Side& side, int n0) {
      const int tid = threadIdx.x;
      const bool along_k = side.row == 1;
      k = along_k ? tid % BK : tid / BN;
      n = along_k ? tid / BK : tid % BN;
      k_step = along_k ? 0 : kThreads / BN;
      n_step = along_k ? kThreads / BK : 0;
      width = min(BN, side.columns - n0);
      at = w + k * side.row;
#pragma unroll
      for (int i = 0; i < b_loads; ++i)
        offset[i] = i * k_step * side.row + weight_column(side, n0 + n + i * n_step);
      next = BK * side.row;
    }
    __device__ void load(int64 depth_left) {
      const int depth = depth_left < BK ? static_cast<int>(depth_left) : BK;
#pragma unroll
      for (int i = 0; i < b_loads; ++i) {
        const bool inside = k + i * k_step < depth && n + i * n_step < width;
        value[i] = inside ? at[offset[i]] : T(0.0f);
      }
      at += next;
    }
    __device__ void store(Sum* b) const {
#pragma unroll
      for (int i = 0; i < b_loads; ++i)
        b[(k + i * k_step) * b_pitch + n + i * n_step] = widen(value[i]);
    }
  };

  // A tile of tokens on its way; threads run along k.
  template <typename T>
  struct TokenLoad {
    const T* row[a_loads];  // null beyond the last token
    int64 column;
    T value[a_loads];

    __device__ TokenLoad(const T* x, const Sizes& a, int64 first) : column(a.token_column) {
#pragma unroll
      for (int i = 0; i < a_loads; ++i) {
        const int64 n = first + threadIdx.x / BK + i * (kThreads / BK);
        row[i] = nullptr;
        if (n < a.tokens) row[i] = x + token_start(n, a.inner, a.outer_stride, a.inner_stride);
      }
    }
    __device__ void load(int64 k0, int64 depth) {
      const int64 k = k0 + threadIdx.x % BK;
#pragma unroll
      for (int i = 0; i < a_loads; ++i)
        value[i] = row[i] != nullptr && k < depth ? row[i][k * column] : T(0.0f);
    }
    __device__ void store(Sum* a) const {
#pragma unroll
      for (int i = 0; i < a_loads; ++i)
        a[threadIdx.x % BK * a_pitch + threadIdx.x / BK + i * (kThreads / BK)] = widen(value[i]);
    }
  };

  // sum = tokens @ weight for this tile, over `depth` terms. All threads call it; it ends with a
  // barrier.
  template <typename X, typename W>
  __device__ void product(Shared& shared, const X* x, const Sizes& sizes, int64 first, const W* w,
                          const Side& side, int64 depth, int n0) {
    clear();
    TokenLoad<X> a(x, sizes, first);
    WeightLoad<W> b(w, side, n0);
    a.load(0, depth);
    b.load(depth);
    a.store(shared.a[0]);
    b.store(shared.b[0]);
    __syncthreads();
    int now = 0;
    for (int64 k0 = 0; k0 < depth; k0 += BK, now ^= 1) {
      const bool more = k0 + BK < depth;
      if (more) {
        a.load(k0 + BK, depth);
        b.load(depth - k0 - BK);
      }
      multiply(shared.a[now], a_pitch, shared.b[now]);
      if (more) {
        a.store(shared.a[now ^ 1]);
        b.store(shared.b[now ^ 1]);
      }
      __syncthreads();
    }
  }

  // The same with latents that are in shared memory: [k][token], zeros up to a multiple of BK.
  template <typename W>
  __device__ void product(Shared& shared, const Sum* latent, const W* w, const Side& side,
                          int64 depth, int n0) {
    clear();
    WeightLoad<W> b(w, side, n0);
    b.load(depth);
    b.store(shared.b[0]);
    __syncthreads();
    int now = 0;
    for (int64 k0 = 0; k0 < depth; k0 += BK, now ^= 1) {
      const bool more = k0 + BK < depth;
      if (more) b.load(depth - k0 - BK);
      multiply(latent + k0 * a_pitch, a_pitch, shared.b[now]);
      if (more) b.store(shared.b[now ^ 1]);
      __syncthreads();
    }
  }

  // Writes what is inside the output.
  template <typename T>
  __device__ void write(T* out, const Side& side, int64 first, int64 tokens, int n0) const {
    const int row = threadIdx.x / (BN / TN) * TM, column = n0 + threadIdx.x % (BN / TN) * TN;
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      if (column + j >= side.columns) continue;
      T* const to = out + out_column(side, column + j);
#pragma unroll
      for (int i = 0; i < TM; ++i)
        if (first + row + i < tokens) narrow(sum[i][j], to[(first + row + i) * side.out_token]);
    }
  }
};

// ------------------------------------------------------------------------------------------------
// mla_kv_fused
// ------------------------------------------------------------------------------------------------

// Blocks are numbered token tile first. Each forms the latents of its BM tokens, and their norm
// unless norm_weight is null, then `tiles` column tiles of BN: those of side 0, then of side 1.
// `down` is the side of w_down, of which rank is columns and model is depth.
template <typename T, int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(kThreads)
    mla_kv_fused(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                 const T* norm_weight, const T* k_pe, T* out0, T* out1, const Sizes a,
                 const Side down, int tiles, double epsilon) {
  typedef typename SumOf<T>::type Sum;
  typedef Tile<Sum, BM, BN, BK, TM, TN> Block;
  extern __shared__ __align__(16) unsigned char memory[];
  typename Block::Shared& shared = *reinterpret_cast<typename Block::Shared*>(memory);
  Sum* latent = reinterpret_cast<Sum*>(memory + sizeof(typename Block::Shared));
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64 first = static_cast<int64>(blockIdx.x % a.token_tiles) * BM;
  const int chunk = blockIdx.x / a.token_tiles;

  Block block;
  const int rank = down.columns, padded = (rank + BK - 1) / BK * BK;
  const int row = threadIdx.x / (BN / TN) * TM, column = threadIdx.x % (BN / TN) * TN;
  for (int r0 = 0; r0 < rank; r0 += BN) {
    block.product(shared, hidden, a, first, w_down, down, a.depth, r0);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        const int r = r0 + column + j;
        // The padding must be zero even where the tokens hold infinities.
        if (r < padded) latent[r * Block::a_pitch + row + i] = r < rank ? block.sum[i][j] : Sum(0);
      }
  }
  if (norm_weight != nullptr) {
    constexpr int helpers = kThreads / BM;  // threads of one token, neighbours in a warp
    static_assert(helpers <= 32, "a warp sums the squares of a token");
    const int t = threadIdx.x / helpers, q = threadIdx.x % helpers;
    __syncthreads();
    Sum square = Sum(0);
    for (int r = q; r < rank; r += helpers) {
      const Sum v = latent[r * Block::a_pitch + t];
      square += v * v;
    }
#pragma unroll
    for (int d = helpers / 2; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
    const Sum scale = inverse_root(square / Sum(rank) + Sum(epsilon));
    for (int r = q; r < rank; r += helpers)
      latent[r * Block::a_pitch + t] *= scale * widen(norm_weight[r]);
  }
  // No barrier here: the product below has one between its first stores and its first reads.
  const int end = min((chunk + 1) * tiles, a.tiles0 + a.tiles1);
  for (int tile = chunk * tiles; tile < end; ++tile) {
    const bool second = tile >= a.tiles0;
    const Side& side = a.side[second];
    const int n0 = (second ? tile - a.tiles0 : tile) * BN;
    block.product(shared, latent, second ? w_up_v : w_up_k, side, rank, n0);
    block.write(second ? out1 : out0, side, first, a.tokens, n0);
    if (!second) {
      const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
      append_rope(a, k_pe, out0, first, count, n0, BN, threadIdx.x, kThreads);
    }
  }
}

// ------------------------------------------------------------------------------------------------
// mla_kv_product
// ------------------------------------------------------------------------------------------------

// out[n] = tokens[n] @ w of each side. Blocks are numbered token tile first, then column tile
// (those of side 0, then of side 1), then split.
template <typename X, typename W, typename Out, int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(kThreads)
    mla_kv_product(const X* tokens, const W* w0, const W* w1, Out* out0, Out* out1,
                   const Out* k_pe, const Sizes a) {
  typedef Tile<typename SumOf<W>::type, BM, BN, BK, TM, TN> Block;
  __shared__ typename Block::Shared shared;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64 first = static_cast<int64>(blockIdx.x % a.token_tiles) * BM;
  const int strip = blockIdx.x / a.token_tiles, columns = a.tiles0 + a.tiles1;
  const int tile = strip % columns, split = strip / columns;
  const bool second = tile >= a.tiles0;
  const Side& side = a.side[second];
  const int n0 = (second ? tile - a.tiles0 : tile) * BN;
  const int64 k0 = split * a.split_depth;
  Block block;
  block.product(shared, tokens + k0 * a.token_column, a, first, (second ? w1 : w0) + k0 * side.row,
                side, min(a.split_depth, a.depth - k0), n0);
  block.write((second ? out1 : out0) + split * a.tokens * a.side[0].columns, side, first, a.tokens,
              n0);
  if (!second) {
    const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
    append_rope(a, k_pe, out0, first, count, n0, BN, threadIdx.x, kThreads);
  }
}
