// Gradients of 8 steps of two rows of the state, by halves; see backward_chunks.cu for the method.

#pragma once

#include "backward_chunks.cuh"

struct Outputs {
  bfloat *dq, *dk;  // (B, T, H, rows); dq also where it is called y, (B, T, H, columns)
  bfloat* dv;       // (B, T, H, columns), or null
  float* dv_parts;  // (groups of rows, B, T, H, columns), where there is more than one
  float *y_parts, *dg;
};

// B[r][s], s <= r, of 8 steps times the scale: 8 rows (s) of 32 bytes.
__device__ __forceinline__ float product_of_steps(u32 near, int s, int r) {
  return load_float(near + s * 32 + r * 4);
}

// Steps from FIRST on, N of them. x[r]: S dy_r times the scale, with S as it is before the first of
// them; y[s]: D v_s, with D as it is after the last; z: the sum over columns of S * D. `x`, `y` are
// changed. `put(t, dq, dk, dg)` takes the results.
template <bool GATES, int FIRST, int N>
struct Halves {
  template <class Put>
  static __device__ __forceinline__ void run(const Steps<8>& w, float2 (&x)[8], float2 (&y)[8],
                                             float2 z, u32 near, const Put& put) {
    constexpr int HALF = N / 2, MIDDLE = FIRST + HALF;
    const float2 one = make_float2(1.0f, 1.0f);
    float2 key[HALF], query[HALF], first = one, second = one;
#pragma unroll
    for (int i = HALF - 1; i >= 0; --i) {  // times the gates after the step
      key[i] = unpack(w.k[FIRST + i]);
      if (GATES && i < HALF - 1) key[i] = key[i] * first;
      if (GATES) first = i < HALF - 1 ? first * w.g[FIRST + i] : w.g[FIRST + i];
    }
#pragma unroll
    for (int i = 0; i < HALF; ++i) {  // times the gates up to and with the step
      if (GATES) second = i ? second * w.g[MIDDLE + i] : w.g[MIDDLE];
      query[i] = unpack(w.q[MIDDLE + i]);
      if (GATES) query[i] = query[i] * second;
    }
    float2 before = z, after = z;
    if (GATES) {
      before = z * second, after = z * first;
#pragma unroll
      for (int i = 0; i < HALF; ++i) {
        before = fma2(query[i], x[MIDDLE + i], before);
        after = fma2(key[i], y[FIRST + i], after);
        x[MIDDLE + i] = x[MIDDLE + i] * first;
        y[FIRST + i] = y[FIRST + i] * second;
      }
    }
#pragma unroll
    for (int s = 0; s < HALF; ++s) {
      float b[HALF];
      if constexpr (HALF == 4) {
        const uint4 four = load128(near + (FIRST + s) * 32 + MIDDLE * 4);
        b[0] = __uint_as_float(four.x), b[1] = __uint_as_float(four.y);
        b[2] = __uint_as_float(four.z), b[3] = __uint_as_float(four.w);
      } else if constexpr (HALF == 2) {
        const float2 two = load64(near + (FIRST + s) * 32 + MIDDLE * 4);
        b[0] = two.x, b[1] = two.y;
      } else {
        b[0] = product_of_steps(near, FIRST + s, MIDDLE);
      }
#pragma unroll
      for (int r = 0; r < HALF; ++r) {
        x[MIDDLE + r] = fma2(key[s], b[r], x[MIDDLE + r]);
        y[FIRST + s] = fma2(query[r], b[r], y[FIRST + s]);
      }
    }
    Halves<GATES, FIRST, HALF>::run(w, x, y, before, near, put);
    Halves<GATES, MIDDLE, HALF>::run(w, x, y, after, near, put);
  }
};

template <bool GATES, int T>
struct Halves<GATES, T, 1> {
  template <class Put>
  static __device__ __forceinline__ void run(const Steps<8>& w, float2 (&x)[8], float2 (&y)[8],
                                             float2 z, u32 near, const Put& put) {
    const float2 q = unpack(w.q[T]), k = unpack(w.k[T]);
    const float b = product_of_steps(near, T, T);
    put(T, fma2(k, b, GATES ? x[T] * w.g[T] : x[T]), fma2(q, b, y[T]), fma2(q, x[T], z));
  }
};
