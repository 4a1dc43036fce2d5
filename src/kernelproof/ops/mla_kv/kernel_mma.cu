// Products on tensor cores for any sizes (mma.cuh): one product a launch, or both in one; and latents
// from partial sums.

#include "mma.cuh"

// out[n] = tokens[n] @ weight. Blocks are numbered token tile first, then column tile (those of side
// 0, then of side 1), then split.
// EARLY: the previous kernel in the stream is one of this operator, so weights may be read at once.
template <typename T, int TERMS, int BM, int BN, int BK, int STAGES, int WM, int WN, bool K_MAJOR,
          bool WIDE_X, bool WIDE_W, bool EARLY, typename Out>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    mla_kv_mma(const T* tokens, const T* w0, const T* w1, Out* out0, Out* out1, const Out* k_pe,
               const Sizes a) {
  typedef MmaShape<T, TERMS, BM, BN, BK, STAGES, WM, WN, K_MAJOR, WIDE_X, WIDE_W> S;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const ring = reinterpret_cast<T*>(memory);

  if (!EARLY) wait_for_previous_kernel();
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

  constexpr int stage = S::x_size + S::w_size;
  TokenLoader<S> loader(tokens, a, first, count, k_begin);
  WeightLoader<S> weights(w, side, n0, k_begin);
  if constexpr (EARLY && WIDE_W) {
    for (int s = 0; s < STAGES - 1; ++s)
      if (k_begin + s * BK < k_end)
        weights.fetch(ring + s * stage + S::x_size, k_begin + (s + 1) * BK <= k_end, k_end);
  }
  if (EARLY) wait_for_previous_kernel();
  let_next_kernel_start();
  MmaTile<S> block;
  block.clear();
  block.template product<true>(ring, stage, S::x_size, &loader, weights, nullptr, 0, k_begin, k_end,
                               EARLY && WIDE_W);

  Out* const staged = reinterpret_cast<Out*>(memory);
  constexpr int pitch = BN + 16 / sizeof(Out);
  block.stage(staged, pitch, count, side.columns - n0, [&](int row, int column) {
    const T* from = tokens + token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
    const T* by = w + weight_column(side, n0 + column);
    float value = 0.0f;
    for (int k = k_begin; k < k_end; ++k)
      value = fmaf(widen(from[k * a.token_column]), widen(by[k * side.row]), value);
    return value;
  });
  Out* const out = (second ? out1 : out0) +
                   split_index * a.tokens * static_cast<int64>(a.side[0].columns);
  write_tile<Out, BN, S::threads>(staged, pitch, out, side, a.aligned, first, count, n0);
  if (!second)
    append_rope(a, k_pe, out0, first, count, n0, BN, static_cast<int>(threadIdx.x), S::threads);
}

// Both products in one launch: the latents of BM tokens stay in shared memory, and their norm
// unless norm_weight is null. Blocks are numbered token tile first, then chunks of `tiles` column
// tiles: those of side 0, then of side 1. `down` is the side of w_down, of which rank is columns and
// model is depth. `latent_pitch`: elements, at least rank rounded up to BN, plus 16 bytes.
template <typename T, int TERMS, int BM, int BN, int BK, int STAGES, int WM, int WN, bool K_MAJOR,
          bool WIDE_X, bool WIDE_DOWN, bool WIDE_UP>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    mla_kv_block(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                 const T* norm_weight, const T* k_pe, T* out0, T* out1, const Sizes a,
                 const Side down, int tiles, int latent_pitch, float epsilon) {
  typedef MmaShape<T, TERMS, BM, BN, BK, STAGES, WM, WN, K_MAJOR, WIDE_X, WIDE_DOWN> S;
  typedef MmaShape<T, TERMS, BM, BN, BK, STAGES, WM, WN, K_MAJOR, WIDE_X, WIDE_UP> U;
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int stage = S::x_size + S::w_size, pitch = BN + S::pad;
  T* const ring = reinterpret_cast<T*>(memory);
  T* const staged = ring + STAGES * stage;
  T* const latents = staged + BM * pitch;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64 first = static_cast<int64>(blockIdx.x % a.token_tiles) * BM;
  const int chunk = blockIdx.x / a.token_tiles;
  const int count = static_cast<int>(min(static_cast<int64>(BM), a.tokens - first));
  const int model = static_cast<int>(a.depth), rank = down.columns;

  {
    TokenLoader<S> loader(hidden, a, first, count, 0);
    MmaTile<S> block;
    for (int r0 = 0; r0 < rank; r0 += BN) {
      WeightLoader<S> weights(w_down, down, r0, 0);
      loader.rewind(0);
      block.clear();
      block.template product<true>(ring, stage, S::x_size, &loader, weights, nullptr, 0, 0, model,
                                   false);
      block.stage(latents + r0, latent_pitch, count, rank - r0, [&](int row, int column) {
        const T* from = hidden + token_start(first + row, a.inner, a.outer_stride, a.inner_stride);
        const T* by = w_down + weight_column(down, r0 + column);
        float value = 0.0f;
        for (int k = 0; k < model; ++k)
          value = fmaf(widen(from[k * a.token_column]), widen(by[k * down.row]), value);
        return value;
      });
    }
  }
  // Columns past the rank must be zero even where the tokens hold infinities.
  const int padded = (rank + BN - 1) / BN * BN;
  for (int i = threadIdx.x; i < BM * (padded - rank); i += S::threads)
    latents[i / (padded - rank) * latent_pitch + rank + i % (padded - rank)] = T(0.0f);
  if (norm_weight != nullptr) {
    constexpr int helpers = S::threads / BM >= 32 ? 32 : S::threads / BM;
    for (int row = threadIdx.x / helpers; row < BM; row += S::threads / helpers) {
      T* const at = latents + row * latent_pitch;
      float square = 0.0f;
      for (int r = threadIdx.x % helpers; r < rank; r += helpers) square += widen(at[r]) * widen(at[r]);
#pragma unroll
      for (int d = helpers / 2; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      const float scale = 1.0f / sqrtf(square / rank + epsilon);
      for (int r = threadIdx.x % helpers; r < rank; r += helpers)
        narrow(widen(at[r]) * scale * widen(norm_weight[r]), at[r]);
    }
  }
  // No barrier here: the product below has one between its first copies and its first reads.
  const int end = min((chunk + 1) * tiles, a.tiles0 + a.tiles1);
  for (int tile = chunk * tiles; tile < end; ++tile) {
    const bool second = tile >= a.tiles0;
    const Side& side = a.side[second];
    const T* const w = second ? w_up_v : w_up_k;
    const int n0 = (second ? tile - a.tiles0 : tile) * BN;
    WeightLoader<U> weights(w, side, n0, 0);
    MmaTile<U> block;
    block.clear();
    block.template product<false>(ring, stage, S::x_size, nullptr, weights, latents, latent_pitch, 0,
                                  rank, false);
    block.stage(staged, pitch, count, side.columns - n0, [&](int row, int column) {
      const T* by = w + weight_column(side, n0 + column);
      float value = 0.0f;
      for (int k = 0; k < rank; ++k)
        value = fmaf(widen(latents[row * latent_pitch + k]), widen(by[k * side.row]), value);
      return value;
    });
    write_tile<T, BN, S::threads>(staged, pitch, second ? out1 : out0, side, a.aligned, first,
                                  count, n0);
    if (!second)
      append_rope(a, k_pe, out0, first, count, n0, BN, static_cast<int>(threadIdx.x), S::threads);
  }
}

// ------------------------------------------------------------------------------------------------
// Latents from partial sums
// ------------------------------------------------------------------------------------------------

// WIDTH neighbouring values, read by volatile loads: else the compiler keeps few of them in flight.
template <typename P, int WIDTH>
struct Piece {
  unsigned words[WIDTH * sizeof(P) / 4 > 0 ? WIDTH * sizeof(P) / 4 : 1];

  __device__ void load(const P* from) {
    constexpr int bytes = WIDTH * sizeof(P);
    if constexpr (bytes == 16)
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(from));
    else if constexpr (bytes == 8)
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "l"(from));
    else if constexpr (bytes == 4)
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
    else
      *reinterpret_cast<P*>(words) = *from;
  }
  __device__ P operator[](int i) const { return reinterpret_cast<const P*>(words)[i]; }
};

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T v[N];
};

// latent[n] = (partial[0][n] + partial[1][n] + ...), `splits` terms in this order; with norm_weight
// then its RMS norm. WARPS of a block share a token; a lane has WIDTH neighbours at a time, a divisor
// of rank, in PASSES passes over the rank; BATCH partial latents are loaded at a time, or those of all
// passes where BATCH, and `splits` with it, is 1. norm_weight may be null. Dynamic shared memory: rank
// sums for each token of a block where PASSES is above kRegisterPasses.
constexpr int kLatentThreads = 128, kRegisterPasses = 8;

template <typename P, typename W, typename T, typename Sum, int WIDTH, int PASSES, int WARPS,
          int BATCH>
__global__ void __launch_bounds__(kLatentThreads)
    mla_kv_latent(const P* partial, const W* norm_weight, T* latent, int64 tokens, int rank,
                  int splits, double epsilon) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Sum squares[kLatentThreads / 32];
  constexpr bool in_registers = PASSES <= kRegisterPasses;
  constexpr int lanes = 32 * WARPS;
  constexpr int tokens_of_block = kLatentThreads / lanes;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64 n = static_cast<int64>(blockIdx.x) * tokens_of_block + threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const int64 pitch = tokens * rank;
  const bool active = n < tokens;
  Sum* const kept = reinterpret_cast<Sum*>(memory) + threadIdx.x / lanes * rank;
  Sum sum[in_registers ? PASSES : 1][WIDTH];
  Sum square = Sum(0);
  Piece<P, WIDTH> single[BATCH == 1 && in_registers ? PASSES : 1];
  if constexpr (BATCH == 1 && in_registers) {
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
      const int r = (p * lanes + lane) * WIDTH;
      if (active && r < rank) single[p].load(partial + n * rank + r);
    }
  }
#pragma unroll (in_registers ? PASSES : 1)
  for (int p = 0; p < PASSES; ++p) {
    const int r = (p * lanes + lane) * WIDTH, q = in_registers ? p : 0;
    if (!active || r >= rank) continue;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[q][i] = Sum(0);
    const P* from = partial + n * rank + r;
    if constexpr (BATCH == 1 && in_registers) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum[q][i] = widen(single[q][i]);
    } else {
      for (int s0 = 0; s0 < splits; s0 += BATCH) {
        Piece<P, WIDTH> piece[BATCH];
#pragma unroll
        for (int s = 0; s < BATCH; ++s)
          if (s0 + s < splits) piece[s].load(from + (s0 + s) * pitch);
#pragma unroll
        for (int s = 0; s < BATCH; ++s)
          if (s0 + s < splits)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sum[q][i] += widen(piece[s][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      square += sum[q][i] * sum[q][i];
      if (!in_registers) kept[r + i] = sum[q][i];
    }
  }
  Sum scale = Sum(1);
  if (norm_weight != nullptr) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
    if constexpr (WARPS > 1) {
      if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
      __syncthreads();
      square = Sum(0);
#pragma unroll
      for (int i = 0; i < WARPS; ++i) square += squares[threadIdx.x / lanes * WARPS + i];
    }
    scale = inverse_root(square / Sum(rank) + Sum(epsilon));
  }
#pragma unroll (in_registers ? PASSES : 1)
  for (int p = 0; p < PASSES; ++p) {
    const int r = (p * lanes + lane) * WIDTH;
    if (!active || r >= rank) continue;
    Vector<T, WIDTH> result;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      Sum value = in_registers ? sum[in_registers ? p : 0][i] : kept[r + i];
      value *= scale;
      if (norm_weight != nullptr) value *= widen(norm_weight[r + i]);
      narrow(value, result.v[i]);
    }
    *reinterpret_cast<Vector<T, WIDTH>*>(latent + n * rank + r) = result;
  }
}
