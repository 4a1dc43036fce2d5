// Gradients of a small contiguous fp32 projection without norm or rotary part, in two launches.
//
//     by_latent = grad_k @ w_up_k^T + grad_v @ w_up_v^T      by_hidden = by_latent @ w_down^T
//     by_down = hidden^T @ by_latent                         by_up = latent^T @ grad
//
// The first launch goes along the tokens and forms the latents anew, the second along the columns
// of the weights, with sums over all tokens. All sums are of fp32 multiply-adds in a fixed order.

#include "common.cuh"

constexpr int kThreads = 384;

// Volatile, so that the compiler keeps the order of the loads and all of them in flight.
__device__ __forceinline__ float4 load_quad(const float* from) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void copy_quad(float* shared, const float* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ void add_product(float4& sum, float x, float4 w) {
  sum.x = fmaf(x, w.x, sum.x);
  sum.y = fmaf(x, w.y, sum.y);
  sum.z = fmaf(x, w.z, sum.z);
  sum.w = fmaf(x, w.w, sum.w);
}

// Floats of shared memory of mla_kv_token_gradients.
template <int M, int R, int U, int TOKENS>
struct TokenShape {
  static constexpr int down_pitch = R + 4;  // rows of w_down, in different banks
  static constexpr int quads = R / 4, groups = kThreads / quads;
  static constexpr int partial_pitch = TOKENS * R + 4;
  static constexpr int down = M * down_pitch, tokens = TOKENS * M, grads = TOKENS * 2 * U;
  static constexpr int partials = groups * partial_pitch;
  static constexpr int all = down + tokens + grads + partials + TOKENS * R;
};

// A block: TOKENS tokens. hidden, grad_k and grad_v have contiguous rows of M, U and U values,
// `hidden_pitch`, `k_pitch` and `v_pitch` elements apart; the weights and results are contiguous, all
// 16-byte aligned, M, R and U multiples of 4, and 2 U one of 32. latent and by_latent: tokens x R.
// Dynamic shared memory: TokenShape.
template <int M, int R, int U, int TOKENS>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_token_gradients(const float* grad_k, const float* grad_v, const float* hidden,
                           const float* w_down, const float* w_up_k, const float* w_up_v,
                           float* latent, float* by_latent, float* by_hidden, int tokens,
                           int64 k_pitch, int64 v_pitch, int64 hidden_pitch) {
  typedef TokenShape<M, R, U, TOKENS> S;
  extern __shared__ __align__(16) float shared[];
  float* const down = shared;               // [M][R + 4]
  float* const inputs = down + S::down;     // [TOKENS][M]
  float* const grads = inputs + S::tokens;  // [TOKENS][2 U]
  float* const partial = grads + S::grads;
  float* const by = partial + S::partials;  // [TOKENS][R]
  const int tid = threadIdx.x, first = blockIdx.x * TOKENS;
  const int count = min(TOKENS, tokens - first);

  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int i = tid; i < TOKENS * U / 2; i += kThreads) {
    const int t = i / (U / 2), c = i % (U / 2) * 4;
    float* const to = grads + t * 2 * U + c;
    if (t < count)
      copy_quad(to, c < U ? grad_k + (first + t) * k_pitch + c : grad_v + (first + t) * v_pitch + c - U);
    else
      *reinterpret_cast<float4*>(to) = make_float4(0, 0, 0, 0);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  // Eight threads a row of the up-projections, each of them a quad in 32 columns.
  constexpr int row_step = kThreads / 8, row_passes = ceil_div(R, row_step), pieces = 2 * U / 32;
  constexpr int kept = row_passes * pieces <= 16 ? pieces : 1;  // in registers, of each pass
  const int part = tid % 8, row = tid / 8;
  auto up_at = [&](int r, int j) {
    const int c = part * 4 + 32 * j;
    return c < U ? w_up_k + r * U + c : w_up_v + r * U + c - U;
  };
  float4 up[row_passes][kept];
#pragma unroll
  for (int p = 0; p < row_passes; ++p)
#pragma unroll
    for (int j = 0; j < kept; ++j)
      if (R % row_step == 0 || row + p * row_step < R) up[p][j] = load_quad(up_at(row + p * row_step, j));
  for (int i = tid; i < TOKENS * M / 4; i += kThreads) {
    const int t = i / (M / 4), m = i % (M / 4) * 4;
    if (t < count)
      copy_quad(inputs + t * M + m, hidden + (first + t) * hidden_pitch + m);
    else
      *reinterpret_cast<float4*>(inputs + t * M + m) = make_float4(0, 0, 0, 0);
  }
  for (int i = tid; i < M * S::quads; i += kThreads)
    copy_quad(down + i / S::quads * S::down_pitch + i % S::quads * 4, w_down + 4 * i);
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 1;" ::: "memory");
  __syncthreads();

#pragma unroll
  for (int p = 0; p < row_passes; ++p) {
    const int r = row + p * row_step;
    float sum[TOKENS] = {};
#pragma unroll
    for (int j = 0; j < pieces; ++j) {
      float4 w = make_float4(0, 0, 0, 0);
      if (R % row_step == 0 || r < R) w = j < kept ? up[p][j < kept ? j : 0] : load_quad(up_at(r, j));
#pragma unroll
      for (int t = 0; t < TOKENS; ++t)
        sum[t] = dot(*reinterpret_cast<const float4*>(grads + t * 2 * U + part * 4 + 32 * j), w, sum[t]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
      for (int d = 1; d < 8; d *= 2) sum[t] += __shfl_xor_sync(~0u, sum[t], d);
      if (part == 0 && (R % row_step == 0 || r < R)) {
        by[t * R + r] = sum[t];
        if (t < count) by_latent[(first + t) * R + r] = sum[t];
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  const int group = tid / S::quads, quad = tid % S::quads;
  if (S::groups * S::quads == kThreads || group < S::groups) {
    float4 sum[TOKENS] = {};
#pragma unroll 8
    for (int m = group; m < M; m += S::groups) {
      const float4 w = *reinterpret_cast<const float4*>(down + m * S::down_pitch + 4 * quad);
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) add_product(sum[t], inputs[t * M + m], w);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      *reinterpret_cast<float4*>(partial + group * S::partial_pitch + t * R + 4 * quad) = sum[t];
  }
  for (int m = tid; m < M; m += kThreads) {
    float sum[TOKENS] = {};
#pragma unroll
    for (int q = 0; q < S::quads; ++q) {
      const float4 w = *reinterpret_cast<const float4*>(down + m * S::down_pitch + 4 * q);
#pragma unroll
      for (int t = 0; t < TOKENS; ++t)
        sum[t] = dot(*reinterpret_cast<const float4*>(by + t * R + 4 * q), w, sum[t]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      if (t < count) by_hidden[static_cast<int64>(first + t) * M + m] = sum[t];
  }
  __syncthreads();
  for (int i = tid; i < count * R; i += kThreads) {
    float total = 0.0f;
#pragma unroll
    for (int g = 0; g < S::groups; ++g) total += partial[g * S::partial_pitch + i];
    latent[static_cast<int64>(first) * R + i] = total;
  }
}

// A block: four columns of hidden, or of the gradients, whose products with all by_latent, or all
// latent, it sums. Blocks are numbered hidden first, then grad_k, then grad_v. Arguments as above;
// BATCH tokens of a thread are on their way at a time. It follows mla_kv_token_gradients, which does
// not write hidden, grad_k or grad_v: they are read at once.
template <int M, int R, int U, int BATCH>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_weight_gradients(const float* grad_k, const float* grad_v, const float* hidden,
                            const float* latent, const float* by_latent, float* by_down,
                            float* by_up_k, float* by_up_v, int tokens, int64 k_pitch,
                            int64 v_pitch, int64 hidden_pitch) {
  constexpr int quads = R / 4, groups = kThreads / quads, pitch = 16 * quads + 4;
  __shared__ __align__(16) float partial[groups * pitch];
  const int tid = threadIdx.x, group = tid / quads, quad = tid % quads;
  const bool active = groups * quads == kThreads || group < groups;
  const int column = 4 * blockIdx.x;
  const bool of_hidden = column < M, of_keys = column < M + U;
  const float* const wide = of_hidden ? hidden + column
                            : of_keys ? grad_k + column - M
                                      : grad_v + column - M - U;
  const int64 wide_pitch = of_hidden ? hidden_pitch : of_keys ? k_pitch : v_pitch;
  const float* const narrow = (of_hidden ? by_latent : latent) + 4 * quad;

  float4 sum[4] = {};  // for each of the four columns, a quad of R
  float4 x[BATCH];
  auto load_wide = [&](int t0) {
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int t = t0 + i * groups;
      x[i] = make_float4(0, 0, 0, 0);
      if (active && t < tokens) x[i] = load_quad(wide + t * wide_pitch);
    }
  };
  load_wide(group);
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int t0 = group; t0 < tokens; t0 += BATCH * groups) {
    if (t0 != group) load_wide(t0);
    float4 l[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int t = t0 + i * groups;
      l[i] = make_float4(0, 0, 0, 0);
      if (active && t < tokens) l[i] = load_quad(narrow + static_cast<int64>(t) * R);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      add_product(sum[0], x[i].x, l[i]);
      add_product(sum[1], x[i].y, l[i]);
      add_product(sum[2], x[i].z, l[i]);
      add_product(sum[3], x[i].w, l[i]);
    }
  }
  // [group][4 columns][R]
  if (active) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<float4*>(partial + group * pitch + j * R + 4 * quad) = sum[j];
  }
  __syncthreads();
  for (int i = tid; i < 4 * R; i += kThreads) {
    // Neighbours write neighbours: along R of by_down, along the columns of by_up.
    const int j = of_hidden ? i / R : i % 4, r = of_hidden ? i % R : i / 4;
    float total = 0.0f;
#pragma unroll 16
    for (int g = 0; g < groups; ++g) total += partial[g * pitch + j * R + r];
    if (of_hidden)
      by_down[static_cast<int64>(column + j) * R + r] = total;
    else if (of_keys)
      by_up_k[static_cast<int64>(r) * U + column - M + j] = total;
    else
      by_up_v[static_cast<int64>(r) * U + column - M - U + j] = total;
  }
}
