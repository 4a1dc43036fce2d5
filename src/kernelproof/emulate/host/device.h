// What nvcc and torch's headers give to device code and NVRTC does not: fixed-width integers, the
// part of the C++ library that kernels use, and torch's 16-bit types.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

// Of cuda.h, which is for the host: what a tensor copy is told, opaque to programs.
struct alignas(64) CUtensorMap_st {
  unsigned long long opaque[16];
};
typedef CUtensorMap_st CUtensorMap;

typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace std {

template <class T>
__device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T>
__device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T>
__device__ inline void swap(T& a, T& b) { T c = a; a = b; b = c; }

using ::abs; using ::ceil; using ::cos; using ::erf; using ::exp; using ::exp2; using ::expm1;
using ::fabs; using ::floor; using ::fma; using ::fmax; using ::fmin; using ::fmod; using ::isinf;
using ::isnan; using ::log; using ::log1p; using ::log2; using ::pow; using ::round; using ::sin;
using ::sqrt; using ::tan; using ::tanh; using ::trunc;

template <class T, T v>
struct integral_constant { static constexpr T value = v; };
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;

template <class T> struct numeric_limits;
#define KERNELPROOF_LIMITS(T, low, small, high, inf)                       \
  template <> struct numeric_limits<T> {                                   \
    __device__ static constexpr T lowest() { return low; }                 \
    __device__ static constexpr T min() { return small; }                  \
    __device__ static constexpr T max() { return high; }                   \
    __device__ static T infinity()           { return inf; }               \
  };
KERNELPROOF_LIMITS(float, -FLT_MAX, FLT_MIN, FLT_MAX, __int_as_float(0x7f800000))
KERNELPROOF_LIMITS(double, -DBL_MAX, 2.2250738585072014e-308, DBL_MAX, __longlong_as_double(0x7ff0000000000000ll))
KERNELPROOF_LIMITS(int, INT_MIN, INT_MIN, INT_MAX, 0)
KERNELPROOF_LIMITS(unsigned, 0, 0, 4294967295u, 0)
KERNELPROOF_LIMITS(long, (-9223372036854775807l - 1), (-9223372036854775807l - 1),
                   9223372036854775807l, 0)
KERNELPROOF_LIMITS(long long, (-9223372036854775807ll - 1), (-9223372036854775807ll - 1),
                   9223372036854775807ll, 0)
#undef KERNELPROOF_LIMITS

}  // namespace std

namespace c10 {

#define KERNELPROOF_HALF(Name, Raw, from_float, to_float)                                  \
  struct alignas(2) Name {                                                                 \
    unsigned short x;                                                                      \
    Name() = default;                                                                      \
    __device__ Name(float value) : Name(from_float(value)) {}                              \
    __device__ Name(Raw value) : x(*reinterpret_cast<unsigned short*>(&value)) {}          \
    __device__ operator float() const { return to_float(*reinterpret_cast<const Raw*>(&x)); } \
    __device__ operator Raw() const { return *reinterpret_cast<const Raw*>(&x); }          \
    __device__ Name& operator+=(Name o) { return *this = Name(float(*this) + float(o)); }  \
    __device__ Name& operator-=(Name o) { return *this = Name(float(*this) - float(o)); }  \
    __device__ Name& operator*=(Name o) { return *this = Name(float(*this) * float(o)); }  \
    __device__ Name& operator/=(Name o) { return *this = Name(float(*this) / float(o)); }  \
  };                                                                                       \
  KERNELPROOF_OPERATOR(Name, +) KERNELPROOF_OPERATOR(Name, -)                              \
  KERNELPROOF_OPERATOR(Name, *) KERNELPROOF_OPERATOR(Name, /)                              \
  KERNELPROOF_COMPARE(Name, <) KERNELPROOF_COMPARE(Name, >) KERNELPROOF_COMPARE(Name, <=)  \
  KERNELPROOF_COMPARE(Name, >=) KERNELPROOF_COMPARE(Name, ==) KERNELPROOF_COMPARE(Name, !=) \
  __device__ inline Name operator-(Name a) { return Name(-float(a)); }

#define KERNELPROOF_COMPARE(Name, op)                                                      \
  __device__ inline bool operator op(Name a, Name b) { return float(a) op float(b); }      \
  __device__ inline bool operator op(Name a, float b) { return float(a) op b; }            \
  __device__ inline bool operator op(float a, Name b) { return a op float(b); }            \
  __device__ inline bool operator op(Name a, int b) { return float(a) op float(b); }       \
  __device__ inline bool operator op(Name a, double b) { return double(float(a)) op b; }

#define KERNELPROOF_OPERATOR(Name, op)                                                     \
  __device__ inline Name operator op(Name a, Name b) { return Name(float(a) op float(b)); } \
  __device__ inline float operator op(Name a, float b) { return float(a) op b; }           \
  __device__ inline float operator op(float a, Name b) { return a op float(b); }           \
  __device__ inline double operator op(Name a, double b) { return double(float(a)) op b; } \
  __device__ inline double operator op(double a, Name b) { return a op double(float(b)); } \
  __device__ inline Name operator op(Name a, int b) { return a op Name(float(b)); }        \
  __device__ inline Name operator op(int a, Name b) { return Name(float(a)) op b; }        \
  __device__ inline Name operator op(Name a, long b) { return a op Name(float(b)); }       \
  __device__ inline Name operator op(long a, Name b) { return Name(float(a)) op b; }

KERNELPROOF_HALF(Half, __half, __float2half, __half2float)
KERNELPROOF_HALF(BFloat16, __nv_bfloat16, __float2bfloat16, __bfloat162float)

#undef KERNELPROOF_HALF
#undef KERNELPROOF_OPERATOR
#undef KERNELPROOF_COMPARE

}  // namespace c10

namespace at {
using c10::BFloat16;
using c10::Half;
}  // namespace at
namespace torch {
using c10::BFloat16;
using c10::Half;
}  // namespace torch
