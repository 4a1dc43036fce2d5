// Weights that fit into the shared memory of one block, of any sizes and strides: both products in one
// launch, by fp32 multiply-adds.
//
// A block has up to four tokens and all weights, which it asks for at the start. Where a product has
// fewer columns than the block has threads, its depth is shared out.

#include "common.cuh"

constexpr int kThreads = 512;

// Does not wait for what stores before it in the program.
__device__ __forceinline__ float load_element(const float* p) { return __ldg(p); }
__device__ __forceinline__ __half load_element(const __half* p) { return __ldg(p); }
__device__ __forceinline__ __nv_bfloat16 load_element(const __nv_bfloat16* p) { return __ldg(p); }

// A weight to `to`, by rows. Where it lies like that already, in pieces of 16 bytes.
template <typename T>
__device__ void copy_weight(T* to, const T* from, const Side& s, int rows) {
  constexpr int piece = 16 / sizeof(T);
  const int count = rows * s.columns;
  const bool dense = s.column == 1 && s.row == s.columns && (s.head == s.width || s.columns == s.width);
  int done = 0;
  if (dense && reinterpret_cast<unsigned long long>(from) % 16 == 0) {
    done = count / piece * piece;
#pragma unroll 4
    for (int i = threadIdx.x * piece; i < done; i += kThreads * piece)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(to + i))),
                   "l"(from + i)
                   : "memory");
  }
  // Eight elements at a time, all of them asked for before the first is stored.
  constexpr int batch = 8;
  for (int i0 = done + threadIdx.x; i0 < count; i0 += batch * kThreads) {
    T v[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = i0 + j * kThreads;
      if (i >= count) continue;
      if (dense) {
        v[j] = load_element(from + i);
      } else {
        const int row = i / s.columns, c = i - row * s.columns;
        v[j] = load_element(from + row * s.row + weight_column(s, c));
      }
    }
#pragma unroll
    for (int j = 0; j < batch; ++j)
      if (i0 + j * kThreads < count) to[i0 + j * kThreads] = v[j];
  }
}

// Sums of x (depth x TOKENS) times columns of a weight, each thread a share of the depth, to
// `partial` (shares x columns x TOKENS).
template <typename T, int TOKENS, typename At>
__device__ __forceinline__ void multiply(float* partial, const float* x, int depth, int columns,
                                         int shares, At weight_at) {
  for (int i = threadIdx.x; i < shares * columns; i += kThreads) {
    const int share = i / columns, c = i - share * columns;
    const T* w;
    int pitch;
    weight_at(c, w, pitch);
    float sum[TOKENS] = {};
#pragma unroll 8
    for (int k = share; k < depth; k += shares) {
      const float v = widen(w[k * pitch]);
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) sum[t] += x[k * TOKENS + t] * v;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) partial[i * TOKENS + t] = sum[t];
  }
}

// Shared memory: the three weights, each from a multiple of 16 bytes; tokens (depth x TOKENS) and
// latents (rank x TOKENS) in fp32; sums. `down`: w_down and its columns. norm_weight may be null.
template <typename T, int TOKENS>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_small(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                 const T* norm_weight, const T* k_pe, T* out0, T* out1,
                 const __grid_constant__ Sizes a, const __grid_constant__ Side down, float epsilon) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int depth = static_cast<int>(a.depth), rank = down.columns;
  const int columns0 = a.side[0].columns, columns1 = a.side[1].columns, columns = columns0 + columns1;
  auto bytes_of = [](int count) { return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16; };
  T* const wd = reinterpret_cast<T*>(memory);
  T* const wk = reinterpret_cast<T*>(memory + bytes_of(depth * rank));
  T* const wv = reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(wk) + bytes_of(rank * columns0));
  float* const x =
      reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(wv) + bytes_of(rank * columns1));
  float* const latents = x + depth * TOKENS;
  float* const partial = latents + rank * TOKENS;
  const int64 first = static_cast<int64>(blockIdx.x) * TOKENS;
  const int count = static_cast<int>(min(static_cast<int64>(TOKENS), a.tokens - first));
  wait_for_previous_kernel();
  let_next_kernel_start();

  copy_weight(wd, w_down, down, depth);
  asm volatile("cp.async.commit_group;" ::: "memory");
  constexpr int batch = 8;
  for (int t = 0; t < count; ++t) {
    const T* const from =
        hidden + token_start(first + t, a.inner, a.outer_stride, a.inner_stride);
    for (int k0 = threadIdx.x; k0 < depth; k0 += batch * kThreads) {
      T v[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (k0 + j * kThreads < depth) v[j] = load_element(from + (k0 + j * kThreads) * a.token_column);
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (k0 + j * kThreads < depth) x[(k0 + j * kThreads) * TOKENS + t] = widen(v[j]);
    }
  }
  for (int i = threadIdx.x; i < depth * (TOKENS - count); i += kThreads)
    x[i / (TOKENS - count) * TOKENS + count + i % (TOKENS - count)] = 0.0f;
  copy_weight(wk, w_up_k, a.side[0], rank);
  copy_weight(wv, w_up_v, a.side[1], rank);
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 1;" ::: "memory");
  __syncthreads();

  const int down_shares = max(1, kThreads / rank);
  multiply<T, TOKENS>(partial, x, depth, rank, down_shares, [&](int c, const T*& w, int& pitch) {
    w = wd + c, pitch = rank;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < rank * TOKENS; i += kThreads) {
    float total = 0.0f;
    for (int s = 0; s < down_shares; ++s) total += partial[s * rank * TOKENS + i];
    latents[i] = total;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  if (norm_weight != nullptr) {
    const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token < TOKENS) {
      float square = 0.0f;
      for (int r = lane; r < rank; r += 32) square += latents[r * TOKENS + token] * latents[r * TOKENS + token];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      const float scale = 1.0f / sqrtf(square / rank + epsilon);
      for (int r = lane; r < rank; r += 32) latents[r * TOKENS + token] *= scale * widen(norm_weight[r]);
    }
    __syncthreads();
  }

  const int up_shares = max(1, kThreads / columns);
  multiply<T, TOKENS>(partial, latents, rank, columns, up_shares, [&](int c, const T*& w, int& pitch) {
    const bool second = c >= columns0;
    w = second ? wv + c - columns0 : wk + c;
    pitch = second ? columns1 : columns0;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < columns * count; i += kThreads) {
    const int t = i / columns, c = i - t * columns;
    float total = 0.0f;
    for (int s = 0; s < up_shares; ++s) total += partial[(s * columns + c) * TOKENS + t];
    const bool second = c >= columns0;
    const Side& side = a.side[second];
    T* const to = (second ? out1 : out0) + out_column(side, second ? c - columns0 : c);
    narrow(total, to[(first + t) * side.out_token]);
  }
  append_rope(a, k_pe, out0, first, count, 0, columns0, threadIdx.x, kThreads);
}
