// One product on tensor cores (mma.sync) for any sizes: float16, bfloat16, and float32 as TF32 or
// as three TF32 products that together are exact to float32. And the sum of partial products.
//
//     out[n, c] = tokens[n] @ weight[:, c]
//
// A block owns BM tokens x BN columns and moves along the depth in steps of BK, which are copied
// to shared memory STAGES - 1 steps ahead. Tails are zeros there, so that every size takes one path.

#include "common.cuh"

// ------------------------------------------------------------------------------------------------
// Instructions
// ------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// 16 bytes, of which the last 16 - bytes become zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1, float) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// x = high + low, each with the 11 significant bits of TF32 (a last bit of low may be cut off).
__device__ __forceinline__ void split(unsigned x, unsigned& high, unsigned& low) {
  high = (x + 0x1000u) & 0xffffe000u;  // to the nearest
  low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high)) + 0x1000u;
}

// ------------------------------------------------------------------------------------------------
// Copies into shared memory
// ------------------------------------------------------------------------------------------------

// ROWS x COLUMNS elements of a matrix whose columns are contiguous in shared memory. FetchRow gives
// the start of row i, or null where it is outside; the columns are those of `column_of`.
// WIDE: 16 bytes at a time, asynchronously; else single elements, through registers.
template <typename T, int ROWS, int COLUMNS, int PITCH, int THREADS, bool WIDE>
struct Copy {
  static constexpr int piece = WIDE ? 16 / sizeof(T) : 1;
  static constexpr int per_row = COLUMNS / piece;
  static constexpr int row_step = THREADS / per_row;
  static constexpr int loads = ceil_div(ROWS, row_step);
  static_assert(COLUMNS % piece == 0 && THREADS % per_row == 0, "a thread keeps its column");
  T value[WIDE ? 1 : loads];

  __device__ static int column() { return threadIdx.x % per_row * piece; }
  __device__ static int row(int i) { return threadIdx.x / per_row + i * row_step; }
  __device__ static bool has(int i) {
    return ROWS % row_step == 0 || i + 1 < loads || row(i) < ROWS;
  }
  // from(i): where the thread's elements of row(i) are; count(i): how many of them exist (<= piece).
  template <typename From, typename Count>
  __device__ void fetch(T* shared, From from, Count count, const T* anything) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      if (!has(i)) continue;
      const int n = count(i);
      if constexpr (WIDE) {
        copy_16(shared + row(i) * PITCH + column(), n > 0 ? from(i) : anything,
                n > 0 ? min(n, piece) * static_cast<int>(sizeof(T)) : 0);
      } else {
        value[i] = n > 0 ? *from(i) : T(0.0f);
      }
    }
  }
  __device__ void store(T* shared) {
    if constexpr (!WIDE) {
#pragma unroll
      for (int i = 0; i < loads; ++i)
        if (has(i)) shared[row(i) * PITCH + column()] = value[i];
    }
  }
};

// ------------------------------------------------------------------------------------------------
// The product
// ------------------------------------------------------------------------------------------------

template <typename T, int TERMS, int BM, int BN, int BK, int STAGES, int WM, int WN, bool K_MAJOR,
          bool WIDE_X, bool WIDE_W, typename Out>
struct MmaShape {
  static constexpr int threads = BM / WM * (BN / WN) * 32;
  static constexpr int element = sizeof(T), pad = 16 / sizeof(T);
  static constexpr int step = 32 / sizeof(T);  // terms of one mma
  static constexpr int x_pitch = BK + pad;
  // 8 floats of padding keep the four k x eight n of a fragment in different banks.
  static constexpr int w_pitch = K_MAJOR ? BK + pad : BN + 8;
  static constexpr int x_size = BM * x_pitch, w_size = (K_MAJOR ? BN : BK) * w_pitch;
  static constexpr int stage = x_size + w_size;
  static constexpr int out_pitch = BN + 16 / sizeof(Out);
  static constexpr int shared =
      max_of(STAGES * stage * element, BM * out_pitch * static_cast<int>(sizeof(Out)));
};

// Blocks are numbered token tile first, then column tile (those of side 0, then of side 1), then
// split. K_MAJOR: the weights lie contiguously along the depth, else along the columns.
// EARLY: the previous kernel in the stream is one of this operator, so weights may be read at once.
template <typename T, int TERMS, int BM, int BN, int BK, int STAGES, int WM, int WN, bool K_MAJOR,
          bool WIDE_X, bool WIDE_W, bool EARLY, typename Out>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    mla_kv_mma(const T* tokens, const T* w0, const T* w1, Out* out0, Out* out1, const Out* k_pe,
               const Sizes a) {
  using S = MmaShape<T, TERMS, BM, BN, BK, STAGES, WM, WN, K_MAJOR, WIDE_X, WIDE_W, Out>;
  constexpr bool is_float = sizeof(T) == 4;
  constexpr int MT = WM / 16, NT = WN / 8;
  static_assert(NT % 2 == 0 && BK % S::step == 0, "columns are loaded in pairs of tiles");
  extern __shared__ __align__(16) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);

  if (!EARLY) wait_for_previous_kernel();
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int token_tile = blockIdx.x % a.token_tiles, strip = blockIdx.x / a.token_tiles;
  const int tile = strip % (a.tiles0 + a.tiles1), split_index = strip / (a.tiles0 + a.tiles1);
  const bool second = tile >= a.tiles0;
  const Side& side = a.side[second];
  const T* const w = second ? w1 : w0;
  const int n0 = (second ? tile - a.tiles0 : tile) * BN;
  const int64 first = static_cast<int64>(token_tile) * BM;
  const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
  const int k_begin = static_cast<int>(split_index * a.split_depth);
  const int k_end = static_cast<int>(min(a.depth, k_begin + a.split_depth));

  // Where this thread's rows of tokens, and its columns of the weight, start.
  typedef Copy<T, BM, BK, S::x_pitch, S::threads, WIDE_X> CopyX;
  typedef Copy<T, K_MAJOR ? BN : BK, K_MAJOR ? BK : BN, S::w_pitch, S::threads, WIDE_W> CopyW;
  CopyX copy_x;
  CopyW copy_w;
  const T* x_row[CopyX::loads];
#pragma unroll
  for (int i = 0; i < CopyX::loads; ++i) {
    const int r = CopyX::row(i);
    x_row[i] = r < count ? tokens + token_start(first + r, a.inner, a.outer_stride, a.inner_stride)
                         : nullptr;
  }
  const T* w_start[K_MAJOR ? CopyW::loads : 1];
  int w_count = 0;  // columns of this thread's piece that exist
  if constexpr (K_MAJOR) {
#pragma unroll
    for (int i = 0; i < CopyW::loads; ++i) {
      const int n = n0 + CopyW::row(i);
      w_start[i] = CopyW::row(i) < BN && n < side.columns ? w + weight_column(side, n) : nullptr;
    }
  } else {
    w_count = side.columns - (n0 + CopyW::column());
    w_start[0] = w + (w_count > 0 ? weight_column(side, n0 + CopyW::column()) : 0);
  }
  auto fetch_x = [&](int k0, int stage) {
    const int k = k0 + CopyX::column();
    copy_x.fetch(
        shared + stage * S::stage, [&](int i) { return x_row[i] + k * a.token_column; },
        [&](int i) { return x_row[i] != nullptr ? k_end - k : 0; }, tokens);
  };
  auto fetch_w = [&](int k0, int stage) {
    T* const to = shared + stage * S::stage + S::x_size;
    if constexpr (K_MAJOR) {
      const int k = k0 + CopyW::column();
      copy_w.fetch(
          to, [&](int i) { return w_start[i] + k * side.row; },
          [&](int i) { return w_start[i] != nullptr ? k_end - k : 0; }, w);
    } else {
      copy_w.fetch(
          to, [&](int i) { return w_start[0] + (k0 + CopyW::row(i)) * side.row; },
          [&](int i) { return k0 + CopyW::row(i) < k_end ? w_count : 0; }, w);
    }
  };
  auto store = [&](int stage) {
    copy_x.store(shared + stage * S::stage);
    copy_w.store(shared + stage * S::stage + S::x_size);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  const int steps = max(0, (k_end - k_begin + BK - 1) / BK);
  if constexpr (EARLY && WIDE_W) {
    for (int s = 0; s < STAGES - 1; ++s)
      if (s < steps) fetch_w(k_begin + s * BK, s);
  }
  if (EARLY) wait_for_previous_kernel();
  let_next_kernel_start();
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      fetch_x(k_begin + s * BK, s);
      if (!(EARLY && WIDE_W)) fetch_w(k_begin + s * BK, s);
      store(s);
    } else {
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }

  const int warp_row = warp / (BN / WN) * WM, warp_column = warp % (BN / WN) * WN;
  float sum[MT][NT][4];
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;

  for (int s = 0; s < steps; ++s) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    const int ahead = s + STAGES - 1;
    if (ahead < steps) {
      fetch_x(k_begin + ahead * BK, ahead % STAGES);
      fetch_w(k_begin + ahead * BK, ahead % STAGES);
    }
    const T* const x = shared + s % STAGES * S::stage;
    const T* const v = x + S::x_size;
#pragma unroll
    for (int k = 0; k < BK; k += S::step) {
      unsigned fx[MT][4], fw[NT / 2][4];
#pragma unroll
      for (int m = 0; m < MT; ++m)
        load_matrices(fx[m], x + (warp_row + 16 * m + lane % 16) * S::x_pitch + k +
                                 lane / 16 * (S::step / 2));
#pragma unroll
      for (int n = 0; n < NT / 2; ++n) {
        const int column = warp_column + 16 * n;
        if constexpr (K_MAJOR) {
          load_matrices(fw[n], v + (column + lane % 8 + lane / 16 * 8) * S::w_pitch + k +
                                   lane / 8 % 2 * (S::step / 2));
        } else if constexpr (is_float) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            fw[n][i] = __float_as_uint(
                v[(k + lane % 4 + i % 2 * 4) * S::w_pitch + column + i / 2 * 8 + lane / 4]);
        } else {
          load_transposed(fw[n], v + (k + lane % 16) * S::w_pitch + column + lane / 16 * 8);
        }
      }
      if constexpr (!is_float) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int n = 0; n < NT; ++n)
            multiply(sum[m][n], fx[m], fw[n / 2][n % 2 * 2], fw[n / 2][n % 2 * 2 + 1], T());
      } else {
        // Tensor cores cut off what they add to a sum instead of rounding it: only the eight terms
        // of one step are summed there, and float32 additions do the rest.
        unsigned xl[MT][4], wl[NT / 2][4];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if constexpr (TERMS == 1)
              fx[m][i] += 0x1000u;
            else
              split(fx[m][i], fx[m][i], xl[m][i]);
#pragma unroll
        for (int n = 0; n < NT / 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if constexpr (TERMS == 1)
              fw[n][i] += 0x1000u;
            else
              split(fw[n][i], fw[n][i], wl[n][i]);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const int p = n / 2, q = n % 2 * 2;
            if constexpr (TERMS == 1) {
              multiply(sum[m][n], fx[m], fw[p][q], fw[p][q + 1], T());
            } else {
              float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
              multiply(part, xl[m], fw[p][q], fw[p][q + 1], T());
              multiply(part, fx[m], wl[p][q], wl[p][q + 1], T());
              multiply(part, fx[m], fw[p][q], fw[p][q + 1], T());
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[m][n][i] += part[i];
            }
          }
      }
    }
    if (ahead < steps)
      store(ahead % STAGES);
    else
      asm volatile("cp.async.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  // Through shared memory, so that whole lines are written.
  Out* const staged = reinterpret_cast<Out*>(memory);
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + 16 * m + lane / 4 + i / 2 * 8;
        const int column = warp_column + 8 * n + lane % 4 * 2 + i % 2;
        float value = sum[m][n][i];
        if constexpr (is_float && TERMS == 3) {
          // The parts of an infinity are not its sum: such results are formed anew, term by term.
          if (!(fabsf(value) < 3.4028235e38f) && row < count && n0 + column < side.columns) {
            const T* from = tokens + token_start(first + row, a.inner, a.outer_stride,
                                                 a.inner_stride);
            const T* by = w + weight_column(side, n0 + column);
            value = 0.0f;
            for (int k = k_begin; k < k_end; ++k)
              value = fmaf(widen(from[k * a.token_column]), widen(by[k * side.row]), value);
          }
        }
        narrow(value, staged[row * S::out_pitch + column]);
      }
  __syncthreads();
  Out* const out = (second ? out1 : out0) +
                   split_index * a.tokens * static_cast<int64>(a.side[0].columns);
  constexpr int piece = 16 / sizeof(Out);
  if (a.aligned) {
    constexpr int per_row = BN / piece;
    static_assert(S::threads % per_row == 0, "a thread keeps its columns");
    const int column = tid % per_row * piece;
    if (n0 + column < side.columns) {
      Out* const to = out + out_column(side, n0 + column) + first * side.out_token;
      for (int row = tid / per_row; row < count; row += S::threads / per_row)
        *reinterpret_cast<uint4*>(to + row * side.out_token) =
            *reinterpret_cast<const uint4*>(staged + row * S::out_pitch + column);
    }
  } else {
    for (int i = tid; i < count * BN; i += S::threads) {
      const int row = i / BN, column = i % BN;
      if (n0 + column < side.columns)
        out[out_column(side, n0 + column) + (first + row) * side.out_token] =
            staged[row * S::out_pitch + column];
    }
  }
  if (!second) append_rope(a, k_pe, out0, first, count, n0, BN, tid, S::threads);
}

// ------------------------------------------------------------------------------------------------
// Latents from partial sums
// ------------------------------------------------------------------------------------------------

// latent[n] = (partial[0][n] + partial[1][n] + ...), `splits` terms in this order; with norm_weight
// then its RMS norm. One block a token. norm_weight may be null.
template <typename W, typename T, typename Sum, int THREADS>
__global__ void __launch_bounds__(THREADS)
    mla_kv_latent(const Sum* partial, const W* norm_weight, T* latent, int64 tokens, int rank,
                  int splits, double epsilon) {
  extern __shared__ __align__(16) unsigned char memory[];
  Sum* const values = reinterpret_cast<Sum*>(memory);  // [rank]
  __shared__ Sum squares[THREADS / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64 n = blockIdx.x;
  const int64 pitch = tokens * rank;
  Sum square = Sum(0);
  for (int r = threadIdx.x; r < rank; r += THREADS) {
    const Sum* from = partial + n * rank + r;
    Sum sum = Sum(0);
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum += from[s * pitch];
    values[r] = sum;
    square += sum * sum;
  }
  Sum scale = Sum(1);
  if (norm_weight != nullptr) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
    __syncthreads();
    Sum total = Sum(0);
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) total += squares[i];
    scale = inverse_root(total / Sum(rank) + Sum(epsilon));
  }
  for (int r = threadIdx.x; r < rank; r += THREADS) {
    Sum value = values[r] * scale;
    if (norm_weight != nullptr) value *= widen(norm_weight[r]);
    narrow(value, latent[n * rank + r]);
  }
}
