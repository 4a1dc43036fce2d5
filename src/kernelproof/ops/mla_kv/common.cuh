// What all kernels of mla_kv share: sizes and strides, conversions, where a result is written.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long int64;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }

// One weight and where its product is written. Column c belongs to head c / width; element (r, c)
// of the weight is at r * row + c / width * head + c % width * column, and the product of token n
// at out_offset + n * out_token + c / width * out_head + c % width of the output.
struct Side {
  int64 row, head, column;
  int64 out_token, out_head, out_offset;
  int width, columns;
};

// One product: tokens (tokens x depth) times the weights of one or two sides.
// Token n starts at (n / inner) * outer_stride + (n % inner) * inner_stride of its tensor.
// k_pe of token n likewise; its `rope` values follow the `width` columns of every head of side 0.
struct Sizes {
  int64 tokens, inner, outer_stride, inner_stride, token_column;
  int64 depth, split_depth;  // a split sums split_depth terms; its output follows that of the last
  Side side[2];
  int64 rope_inner, rope_outer_stride, rope_inner_stride, rope_column;
  int rope, token_tiles, tiles0, tiles1;  // tiles of columns of each side
  int aligned, rope_aligned;              // every 16 bytes of a result, or of k_pe, can be one access
};

// Every kernel here may be launched programmatically, while the previous kernel in the stream is
// still running: nothing but what no kernel of this operator writes is read before that one has
// finished. Only then may the next kernel start, which may therefore read weights at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& to) { to = x; }
__device__ __forceinline__ void narrow(double x, double& to) { to = x; }
__device__ __forceinline__ void narrow(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

__device__ __forceinline__ unsigned packed(float a, float b, __half) {
  const __half2 v = __floats2half2_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&v);
}

__device__ __forceinline__ unsigned packed(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&v);
}

template <typename T>
struct SumOf {
  typedef float type;
};
template <>
struct SumOf<double> {
  typedef double type;
};

__device__ __forceinline__ float inverse_root(float x) { return 1.0f / sqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }

__device__ __forceinline__ int64 token_start(int64 n, int64 inner, int64 outer_stride,
                                             int64 inner_stride) {
  if (n < inner) return n * inner_stride;  // always so where one stride leads to every token
  return n / inner * outer_stride + n % inner * inner_stride;
}

__device__ __forceinline__ int64 weight_column(const Side& s, int c) {
  if (s.head == s.width * s.column) return c * s.column;
  return static_cast<int64>(c / s.width) * s.head + static_cast<int64>(c % s.width) * s.column;
}

__device__ __forceinline__ int64 out_column(const Side& s, int c) {
  if (s.out_head == s.width) return s.out_offset + c;
  return s.out_offset + static_cast<int64>(c / s.width) * s.out_head + c % s.width;
}

// Copies k_pe of tokens first .. first + count - 1 behind the heads of side 0 whose first column
// lies in n0 .. n0 + width - 1. `threads` threads take part, this one being `thread`.
template <typename T>
__device__ void append_rope(const Sizes& a, const T* k_pe, T* out, int64 first, int count, int n0,
                            int width, int thread, int threads) {
  const Side& s = a.side[0];
  const int head0 = (n0 + s.width - 1) / s.width;
  const int head1 = (min(n0 + width, s.columns) + s.width - 1) / s.width;
  if (a.rope == 0 || head1 <= head0) return;
  constexpr int piece = 16 / sizeof(T);
  const int pieces = a.rope_aligned ? a.rope / piece : a.rope;
  for (int i = thread; i < count * pieces; i += threads) {
    const int64 n = first + i / pieces;
    const int j = i % pieces;
    const T* from = k_pe + token_start(n, a.rope_inner, a.rope_outer_stride, a.rope_inner_stride);
    T* to = out + s.out_offset + n * s.out_token + s.width;
    if (a.rope_aligned) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + j * piece);
      for (int h = head0; h < head1; ++h)
        *reinterpret_cast<uint4*>(to + h * s.out_head + j * piece) = v;
    } else {
      const T v = from[j * a.rope_column];
      for (int h = head0; h < head1; ++h) to[h * s.out_head + j] = v;
    }
  }
}
