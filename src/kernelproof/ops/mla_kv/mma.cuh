// Tiles of a product on tensor cores (mma.sync): float16, bfloat16, and float32 as TF32 or as three
// TF32 products that together are exact to float32. Tails are zeros in shared memory, so that every
// size takes one path.

#pragma once

#include "common.cuh"

// ------------------------------------------------------------------------------------------------
// Instructions
// ------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
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

// Which elements of a ROWS x COLUMNS matrix, columns contiguous in shared memory, a thread copies.
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
  // All 16 bytes at `from` exist.
  __device__ void fetch_whole(T* shared, int i, const T* from) {
    if constexpr (WIDE)
      copy_16(shared + row(i) * PITCH + column(), from);
    else
      value[i] = *from;
  }
  // `count` elements at `from` exist, which may be none; the others become zeros.
  __device__ void fetch_part(T* shared, int i, const T* from, int count, const T* anything) {
    if constexpr (WIDE)
      copy_16(shared + row(i) * PITCH + column(), count > 0 ? from : anything,
              count > 0 ? min(count, piece) * static_cast<int>(sizeof(T)) : 0);
    else
      value[i] = count > 0 ? *from : T(0.0f);
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
// A tile
// ------------------------------------------------------------------------------------------------

constexpr float kLargest = 3.4028234e38f;  // of float32

// BM tokens x BN columns, BK terms in a step, warps of WM x WN; steps are copied STAGES - 1 ahead.
// K_MAJOR: the weights lie contiguously along the depth, else along the columns.
template <typename Type, int TERMS_, int BM_, int BN_, int BK_, int STAGES_, int WM_, int WN_,
          bool K_MAJOR_, bool WIDE_X_, bool WIDE_W_>
struct MmaShape {
  typedef Type T;
  static constexpr int TERMS = TERMS_, BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_;
  static constexpr int WM = WM_, WN = WN_, MT = WM / 16, NT = WN / 8;
  static constexpr bool K_MAJOR = K_MAJOR_, WIDE_X = WIDE_X_, WIDE_W = WIDE_W_;
  static constexpr bool is_float = sizeof(T) == 4;
  static constexpr int threads = BM / WM * (BN / WN) * 32;
  static constexpr int pad = 16 / sizeof(T);
  static constexpr int step = 32 / sizeof(T);  // terms of one mma
  static_assert(NT % 2 == 0 && BK % step == 0, "columns are loaded in pairs of tiles");
  static constexpr int x_pitch = BK + pad;
  // 8 floats of padding keep the four k x eight n of a fragment in different banks.
  static constexpr int w_pitch = K_MAJOR ? BK + pad : BN + 8;
  static constexpr int x_size = BM * x_pitch, w_size = (K_MAJOR ? BN : BK) * w_pitch;
  typedef Copy<T, BM, BK, x_pitch, threads, WIDE_X> CopyX;
  typedef Copy<T, K_MAJOR ? BN : BK, K_MAJOR ? BK : BN, w_pitch, threads, WIDE_W> CopyW;
  __device__ static int warp_row() { return threadIdx.x / 32 / (BN / WN) * WM; }
  __device__ static int warp_column() { return threadIdx.x / 32 % (BN / WN) * WN; }
};

// The tokens of a tile, from global memory, a step after the other. Rows past the last token repeat
// the first: what comes of them is not written.
template <typename S>
struct TokenLoader {
  typedef typename S::T T;
  typename S::CopyX copy;
  const T* at[S::CopyX::loads];
  const T* data;
  int64 column, next;
  int k;

  __device__ TokenLoader(const T* tokens, const Sizes& a, int64 first, int count, int k_begin)
      : data(tokens), column(a.token_column), next(S::BK * a.token_column) {
    k = k_begin + S::CopyX::column();
#pragma unroll
    for (int i = 0; i < S::CopyX::loads; ++i) {
      const int r = S::CopyX::row(i);
      at[i] = tokens + k * column +
              token_start(first + (r < count ? r : 0), a.inner, a.outer_stride, a.inner_stride);
    }
  }
  // Back to column k_begin.
  __device__ void rewind(int k_begin) {
    const int back = k - (k_begin + S::CopyX::column());
    k -= back;
#pragma unroll
    for (int i = 0; i < S::CopyX::loads; ++i) at[i] -= back * column;
  }
  // `whole`: all BK terms exist.
  __device__ void fetch(T* to, bool whole, int k_end) {
    if (whole) {
#pragma unroll
      for (int i = 0; i < S::CopyX::loads; ++i)
        if (S::CopyX::has(i)) copy.fetch_whole(to, i, at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < S::CopyX::loads; ++i)
        if (S::CopyX::has(i)) copy.fetch_part(to, i, at[i], k_end - k, data);
    }
#pragma unroll
    for (int i = 0; i < S::CopyX::loads; ++i) at[i] += S::WIDE_X ? S::BK : next;
    k += S::BK;
  }
};

// The columns n0 .. n0 + BN - 1 of a weight, a step after the other. Columns that do not exist
// repeat column n0: what comes of them is not written.
template <typename S>
struct WeightLoader {
  typedef typename S::T T;
  typename S::CopyW copy;
  const T* at[S::K_MAJOR ? S::CopyW::loads : 1];
  const T* data;
  int64 row_step, next;
  int k, columns;  // columns: of this thread's piece that exist

  __device__ WeightLoader(const T* w, const Side& side, int n0, int k_begin)
      : data(w), row_step(S::CopyW::row_step * side.row), next(S::BK * side.row) {
    const int64 row = side.row;
    if constexpr (S::K_MAJOR) {
      k = k_begin + S::CopyW::column();
      columns = S::CopyW::piece;
#pragma unroll
      for (int i = 0; i < S::CopyW::loads; ++i) {
        const int n = n0 + S::CopyW::row(i);
        at[i] = w + k * row + weight_column(side, n < side.columns ? n : n0);
      }
    } else {
      k = k_begin + S::CopyW::row(0);
      const int n = n0 + S::CopyW::column();
      columns = n < side.columns ? side.columns - n : S::CopyW::piece;
      at[0] = w + k * row + weight_column(side, n < side.columns ? n : n0);
    }
  }
  __device__ const T* from(int i) const {
    if constexpr (S::K_MAJOR)
      return at[i];
    else
      return at[0] + i * row_step;
  }
  __device__ void fetch(T* to, bool whole, int k_end) {
    if (whole && columns >= S::CopyW::piece) {
#pragma unroll
      for (int i = 0; i < S::CopyW::loads; ++i)
        if (S::CopyW::has(i)) copy.fetch_whole(to, i, from(i));
    } else {
#pragma unroll
      for (int i = 0; i < S::CopyW::loads; ++i) {
        const int left = S::K_MAJOR                                ? k_end - k
                         : k + i * S::CopyW::row_step < k_end ? columns
                                                                   : 0;
        if (S::CopyW::has(i)) copy.fetch_part(to, i, from(i), left, data);
      }
    }
#pragma unroll
    for (int i = 0; i < (S::K_MAJOR ? S::CopyW::loads : 1); ++i)
      at[i] += S::K_MAJOR && S::WIDE_W ? S::BK : next;
    k += S::BK;
  }
};

template <typename S>
struct MmaTile {
  typedef typename S::T T;
  float sum[S::MT][S::NT][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < S::MT; ++m)
#pragma unroll
      for (int n = 0; n < S::NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;
  }

  // Adds S::step terms: those of `x` from its column k on, and rows k .. of `w`.
  __device__ void multiply_step(const T* x, int x_pitch, int x_column, const T* w, int k) {
    constexpr int MT = S::MT, NT = S::NT;
    const int lane = threadIdx.x % 32;
    unsigned fx[MT][4], fw[NT / 2][4];
#pragma unroll
    for (int m = 0; m < MT; ++m)
      load_matrices(fx[m], x + (S::warp_row() + 16 * m + lane % 16) * x_pitch + x_column +
                               lane / 16 * (S::step / 2));
#pragma unroll
    for (int n = 0; n < NT / 2; ++n) {
      const int column = S::warp_column() + 16 * n;
      if constexpr (S::K_MAJOR) {
        load_matrices(fw[n], w + (column + lane % 8 + lane / 16 * 8) * S::w_pitch + k +
                                 lane / 8 % 2 * (S::step / 2));
      } else if constexpr (S::is_float) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          fw[n][i] = __float_as_uint(
              w[(k + lane % 4 + i % 2 * 4) * S::w_pitch + column + i / 2 * 8 + lane / 4]);
      } else {
        load_transposed(fw[n], w + (k + lane % 16) * S::w_pitch + column + lane / 16 * 8);
      }
    }
    if constexpr (!S::is_float) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
          multiply(sum[m][n], fx[m], fw[n / 2][n % 2 * 2], fw[n / 2][n % 2 * 2 + 1], T());
    } else {
      multiply_parts(fx, fw);
    }
  }

  // Tensor cores cut off what they add to a sum instead of rounding it: only the eight terms of one
  // step are summed there, and float32 additions do the rest.
  __device__ void multiply_parts(unsigned (&fx)[S::MT][4], unsigned (&fw)[S::NT / 2][4]) {
    constexpr int MT = S::MT, NT = S::NT;
    unsigned xl[MT][4], wl[NT / 2][4];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if constexpr (S::TERMS == 1)
          fx[m][i] += 0x1000u;
        else
          split(fx[m][i], fx[m][i], xl[m][i]);
#pragma unroll
    for (int n = 0; n < NT / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if constexpr (S::TERMS == 1)
          fw[n][i] += 0x1000u;
        else
          split(fw[n][i], fw[n][i], wl[n][i]);
    if constexpr (S::TERMS == 3 && MT * NT <= 4) {
      // One of the three products after the other, so that none waits for the one before it.
      float part[MT][NT][4] = {};
#pragma unroll
      for (int product = 0; product < 3; ++product)
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const int p = n / 2, q = n % 2 * 2;
            if (product == 1)
              multiply(part[m][n], fx[m], wl[p][q], wl[p][q + 1], T());
            else
              multiply(part[m][n], product == 0 ? xl[m] : fx[m], fw[p][q], fw[p][q + 1], T());
          }
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[m][n][i] += part[m][n][i];
      return;
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int p = n / 2, q = n % 2 * 2;
        if constexpr (S::TERMS == 1) {
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

  // sum += tokens @ weights over k_begin .. k_end - 1, in steps through `ring`, whose stages have
  // `stage` elements, those of the weights from `w_at` on. Where STREAMED is false, `x` has all
  // tokens from k_begin on. `started`: the first STAGES - 1 steps of the weights have been fetched
  // (WIDE_W only). All threads call it; it ends with a barrier.
  template <bool STREAMED>
  __device__ void product(T* ring, int stage, int w_at, TokenLoader<S>* tokens,
                          WeightLoader<S>& weights, const T* x, int x_pitch, int k_begin, int k_end,
                          bool started) {
    const int steps = (k_end - k_begin + S::BK - 1) / S::BK;
    auto fetch = [&](int s, T* to, bool with_weights) {
      const bool whole = k_begin + (s + 1) * S::BK <= k_end;
      if constexpr (STREAMED) tokens->fetch(to, whole, k_end);
      if (with_weights) weights.fetch(to + w_at, whole, k_end);
    };
    auto store = [&](T* to) {
      if constexpr (STREAMED) tokens->copy.store(to);
      weights.copy.store(to + w_at);
    };
    for (int s = 0; s < S::STAGES - 1; ++s) {
      if (s < steps) {
        fetch(s, ring + s * stage, !started);
        store(ring + s * stage);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int now = 0, then = S::STAGES - 1;  // the stages that are read and filled
    for (int s = 0; s < steps; ++s) {
      asm volatile("cp.async.wait_group %0;" ::"n"(S::STAGES - 2) : "memory");
      __syncthreads();
      const bool more = s + S::STAGES - 1 < steps;
      const T* const at = ring + now * stage;
#pragma unroll
      for (int k = 0; k < S::BK; k += S::step) {
        if constexpr (STREAMED)
          multiply_step(at, S::x_pitch, k, at + w_at, k);
        else
          multiply_step(x, x_pitch, s * S::BK + k, at + w_at, k);
        if (k == 0 && more) fetch(s + S::STAGES - 1, ring + then * stage, true);
      }
      if (more) store(ring + then * stage);
      asm volatile("cp.async.commit_group;" ::: "memory");
      now = now + 1 == S::STAGES ? 0 : now + 1;
      then = then + 1 == S::STAGES ? 0 : then + 1;
    }
    // No wait here: the group of the last step has been waited for, and those after it are empty.
    __syncthreads();
  }

  // The sums to `staged` [BM][pitch]. exact(row, column) forms one anew, term by term, for those
  // that are not finite: the parts of an infinity are not its sum. It ends with a barrier.
  template <typename Out, typename Exact>
  __device__ void stage(Out* staged, int pitch, int count, int columns, Exact exact) const {
    const int lane = threadIdx.x % 32;
    bool finite = true;
#pragma unroll
    for (int m = 0; m < S::MT; ++m)
#pragma unroll
      for (int n = 0; n < S::NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = S::warp_row() + 16 * m + lane / 4 + i / 2 * 8;
          const int column = S::warp_column() + 8 * n + lane % 4 * 2 + i % 2;
          narrow(sum[m][n][i], staged[row * pitch + column]);
          finite &= fabsf(sum[m][n][i]) < kLargest;
        }
    if constexpr (S::is_float && S::TERMS == 3) {
      if (__syncthreads_or(!finite)) {
#pragma unroll 1
        for (int i = threadIdx.x; i < count * S::BN; i += S::threads) {
          const int row = i / S::BN, column = i % S::BN;
          Out& result = staged[row * pitch + column];
          if (column < columns && !(fabsf(widen(result)) < kLargest))
            narrow(exact(row, column), result);
        }
      }
    }
    __syncthreads();
  }
};

// Copies columns n0 .. of `count` rows of a staged tile to the output, whole lines at a time.
template <typename Out, int BN, int THREADS>
__device__ void write_tile(const Out* staged, int pitch, Out* out, const Side& side, bool aligned,
                           int64 first, int count, int n0) {
  constexpr int piece = 16 / sizeof(Out);
  if (aligned) {
    constexpr int per_row = BN / piece;
    static_assert(THREADS % per_row == 0, "a thread keeps its columns");
    const int column = threadIdx.x % per_row * piece;
    if (n0 + column < side.columns) {
      Out* const to = out + out_column(side, n0 + column) + first * side.out_token;
      for (int row = threadIdx.x / per_row; row < count; row += THREADS / per_row)
        *reinterpret_cast<uint4*>(to + row * side.out_token) =
            *reinterpret_cast<const uint4*>(staged + row * pitch + column);
    }
  } else {
    for (int i = threadIdx.x; i < count * BN; i += THREADS) {
      const int row = i / BN, column = i % BN;
      if (n0 + column < side.columns)
        out[out_column(side, n0 + column) + (first + row) * side.out_token] =
            staged[row * pitch + column];
    }
  }
}
