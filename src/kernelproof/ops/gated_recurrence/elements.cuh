// What the CUDA kernels of the gated recurrence share: types of elements, strides, packed sequences.

#pragma once

typedef long long int64;

struct half16 { unsigned short bits; };
struct bfloat { unsigned short bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(half16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
// A gate that is given as its logarithm.
template <class Element>
struct logarithm { Element x; };
template <class Element>
__device__ __forceinline__ float to_float(logarithm<Element> gate) {
  return expf(to_float(gate.x));
}
__device__ __forceinline__ void from_float(float x, float* to) { *to = x; }
__device__ __forceinline__ void from_float(float x, bfloat* to) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}
__device__ __forceinline__ void from_float(float x, half16* to) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}

struct Strides { int64 b, t, h, d; };

// Strides as arguments of a kernel.
#define STRIDES(name) int64 name##_b, int64 name##_t, int64 name##_h, int64 name##_d
#define GIVEN(name) Strides{name##_b, name##_t, name##_h, name##_d}

// The start of packed sequence n, within 0 ... T whatever the numbers: they come from the caller.
__device__ __forceinline__ int bound(const void* bounds, int bounds_64, int64 n, int T) {
  const int64 at = bounds_64 ? static_cast<const int64*>(bounds)[n]
                             : static_cast<const int*>(bounds)[n];
  return static_cast<int>(at < 0 ? 0 : at > T ? T : at);
}

// The gate of a column: gate_v times gate_head, which do not leave the range of float together
// where neither does alone (a state of zero has to stay zero).
__device__ __forceinline__ float column_gate(float value, float head) {
  const float gate = value * head;
  return isinf(gate) && !isinf(value) && !isinf(head) ? copysignf(0x1.fffffep127f, gate) : gate;
}

// The product D of gates as it is handed on: NaN where it is too big (2^60 leaves room for states
// up to 2^67), not a number, or where a part of it may have underflowed although the whole did
// not: `growth`, the product of max(1, |gate|), bounds how far D has risen from its least part.
// With no gate above one, growth is 1, and what underflows is below 2^-126 of the state.
__device__ __forceinline__ float checked_decay(float D, float growth) {
  const bool good = fabsf(D) <= 0x1p60f && (growth == 1.0f || fabsf(D) >= growth * 0x1p-100f);
  return good ? D : __int_as_float(0x7fffffff);
}
