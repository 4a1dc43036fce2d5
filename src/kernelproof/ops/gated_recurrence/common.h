// What the CPU kernels of the gated recurrence share: vectors, conversions, and how rows of the
// tensors are reached. REAL is the type of states and sums: float, or double for float64 inputs.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <omp.h>

#ifndef REAL
#define REAL float
#endif

namespace {

typedef REAL Real;

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 24;  // 32 registers: 24 of state, the rest v, gate, sums, product
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 8;
#elif defined(__aarch64__)
constexpr int BYTES = 16, ROWS = 24;
#else
constexpr int BYTES = 16, ROWS = 8;
#endif
constexpr int W = BYTES / sizeof(Real);  // of a vector
constexpr int PIECE = 64;  // steps; v, gate and y of a piece and tile stay in the L1 cache

typedef Real Vec __attribute__((vector_size(BYTES)));

inline Vec load(const Real* from) {
  Vec x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(Real* to, Vec x) { std::memcpy(to, &x, sizeof x); }

struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float to_float(float x) { return x; }
inline double to_float(double x) { return x; }
inline float to_float(BFloat x) { return bits_to_float(uint32_t(x.bits) << 16); }
inline float to_float(Half x) {
#if defined(__FLT16_MAX__)
  _Float16 h;
  std::memcpy(&h, &x.bits, sizeof h);
  return float(h);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Scaling by 2^112 moves the exponent bias of half to that of float, subnormals included.
  return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
#endif
}

inline void from_float(float x, float* to) { *to = x; }
inline void from_float(double x, double* to) { *to = x; }
inline void from_float(float x, BFloat* to) {
  const uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    to->bits = 0x7fc0;
    return;
  }
  to->bits = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // round to nearest even
}
inline void from_float(float x, Half* to) {
#if defined(__FLT16_MAX__)
  const _Float16 h = _Float16(x);
  std::memcpy(&to->bits, &h, sizeof h);
#else
  const uint32_t bits = float_to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  uint32_t half;
  if (rest > 0x7f800000) {
    half = 0x7e00;
  } else if (rest >= 0x477ff000) {
    half = 0x7c00;  // 65520 and above round to infinity
  } else if (rest < 0x38800000) {
    // Subnormal: adding 0.5 aligns the last bit of half with the last bit of float.
    half = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
  } else {
    half = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  }
  to->bits = uint16_t(sign | half);
#endif
}

struct Strides { int64_t b, t, h, d; };

// Laid out by cpu.py (_plan); all fields are int64.
struct Plan {
  int64_t element, gate;  // 0 float, 1 half, 2 bfloat16, 3 double
  int64_t log;            // gates are given as logarithms
  int64_t N, T, H, K, V;  // N sequences; T is the size of the axis, of all sequences where packed
  int64_t group;          // heads of v to a head of q and k
  Strides q, k, v, gate_k, gate_v, gate_head;
  Strides initial, last;  // of states: sequence, head, row, column; `last` of its gradient too
  Strides grad;           // of the gradient of y
};

// The steps of one sequence: `steps` from t0 on, at index b of the batch.
struct Span { int64_t b, t0, steps; };

// `bounds`: the first token of each of the N sequences, and the end; null for a plain batch.
inline Span span_of(const Plan& n, const int64_t* bounds, int64_t sequence) {
  if (bounds == nullptr) return {sequence, 0, n.T};
  return {0, bounds[sequence], bounds[sequence + 1] - bounds[sequence]};
}

// The rows of q, k or gate_k for one piece: in place where they are float with unit stride,
// else converted into `space`.
struct Rows {
  const Real* at;
  ptrdiff_t step;
};

template <class E>
void convert_rows(const void* source, const Strides& s, int64_t steps, int64_t width,
                  Real* to) {
  const E* from = static_cast<const E*>(source);
  for (int64_t t = 0; t < steps; ++t, from += s.t, to += width) {
    if (s.d == 1) {
      for (int64_t i = 0; i < width; ++i) to[i] = to_float(from[i]);
    } else {
      for (int64_t i = 0; i < width; ++i) to[i] = to_float(from[i * s.d]);
    }
  }
}

// Calls part(first, std::integral_constant<int, count>) for runs that cover 0 ... columns: a few
// fixed sizes compile to vector moves, where a loop of unknown length would not.
template <class F>
inline void in_runs(int columns, F part) {
  if (columns == W) return part(0, std::integral_constant<int, W>{});
  int j = 0;
  for (; columns - j >= 8; j += 8) part(j, std::integral_constant<int, 8>{});
  if (columns - j >= 4) part(j, std::integral_constant<int, 4>{}), j += 4;
  for (; j < columns; ++j) part(j, std::integral_constant<int, 1>{});
}

// One tile of v or gate_v: (steps, W) floats, zeros beyond `columns`.
template <class E>
void convert_tile(const void* source, const Strides& s, int64_t steps, int columns, Real* to) {
  const E* from = static_cast<const E*>(source);
  if (columns < W) std::memset(to, 0, steps * W * sizeof(Real));
  for (int64_t t = 0; t < steps; ++t, to += W, from += s.t) {
    if (s.d == 1) {
      in_runs(columns, [&](int j, auto count) {
        for (int i = 0; i < count; ++i) to[j + i] = to_float(from[j + i]);
      });
    } else {
      for (int j = 0; j < columns; ++j) to[j] = to_float(from[j * s.d]);
    }
  }
}

// One tile of y, times scale, to rows `step` elements apart.
template <class E>
void write_tile(const Real* y, Real scale, int64_t steps, int columns, void* target,
                int64_t step) {
  E* to = static_cast<E*>(target);
  for (int64_t t = 0; t < steps; ++t, y += W, to += step)
    in_runs(columns, [&](int j, auto count) {
      for (int i = 0; i < count; ++i) from_float(y[j + i] * scale, to + j + i);
    });
}

// What depends on the dtype, by its code in Plan. The rest works on Real.
struct Element {
  int64_t size;
  void (*rows)(const void*, const Strides&, int64_t, int64_t, Real*);
  void (*tile)(const void*, const Strides&, int64_t, int, Real*);
  void (*write)(const Real*, Real, int64_t, int, void*, int64_t);
};
template <class E>
constexpr Element element() {
  return {sizeof(E), convert_rows<E>, convert_tile<E>, write_tile<E>};
}
constexpr bool DOUBLE = sizeof(Real) == sizeof(double);
constexpr int OWN = DOUBLE ? 3 : 0;  // the code of Real
const Element ELEMENTS[] = {element<float>(), element<Half>(), element<BFloat>(),
                            element<std::conditional_t<DOUBLE, double, float>>()};

// Element (b, t, h, d) of a tensor, as a pointer into it.
inline const char* at(const void* tensor, const Element& e, const Strides& s, int64_t b,
                      int64_t t, int64_t h, int64_t d) {
  return static_cast<const char*>(tensor) + (b * s.b + t * s.t + h * s.h + d * s.d) * e.size;
}

inline void exponentials(Real* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = std::exp(x[i]);
}

// `log`: the numbers are logarithms of gates.
inline Rows rows(const void* from, int64_t code, const Strides& s, int64_t steps, int64_t width,
                 Real* space, bool log = false) {
  if (code == OWN && (s.d == 1 || width == 1) && !log)
    return {static_cast<const Real*>(from), ptrdiff_t(s.t)};
  ELEMENTS[code].rows(from, s, steps, width, space);
  if (log) exponentials(space, steps * width);
  return {space, ptrdiff_t(width)};
}

// One tile of v or gate_v: in place where it is a full tile of Real with unit stride.
inline Rows tile(const void* from, int64_t code, const Strides& s, int64_t steps, int columns,
                 Real* space, bool log = false) {
  if (code == OWN && s.d == 1 && columns == W && !log)
    return {static_cast<const Real*>(from), ptrdiff_t(s.t)};
  ELEMENTS[code].tile(from, s, steps, columns, space);
  if (log) exponentials(space, steps * W);
  return {space, W};
}

// One tile of gate_v (null: all 1) times gate_head. Two finite gates do not leave the range of Real
// together: a state of zero has to stay zero.
inline void times_heads(Rows values, const Real* heads, int64_t steps, Real* to) {
  constexpr Real most = std::numeric_limits<Real>::max();
  for (int64_t t = 0; t < steps; ++t)
    for (int j = 0; j < W; ++j) {
      const Real value = values.at != nullptr ? values.at[t * values.step + j] : Real(1);
      const Real gate = value * heads[t];
      const bool left = std::abs(gate) > most && std::abs(value) <= most &&
                        std::abs(heads[t]) <= most;
      to[t * W + j] = left ? std::copysign(most, gate) : gate;
    }
}

// What a thread asks for: so many Reals, up to whole cache lines; null where there is no memory.
inline Real* scratch_of(int64_t reals) {
  const size_t bytes = (size_t(reals) * sizeof(Real) + 63) / 64 * 64;
  return static_cast<Real*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes));
}

// One tile of a state, (K, W) from the K rows of a matrix with strides (row, column); zeros beyond
// `columns`, and everywhere where there is no matrix.
inline void load_state(const Real* from, const Strides& s, int64_t K, int columns, Real* to) {
  if (columns < W || from == nullptr) std::memset(to, 0, K * W * sizeof(Real));
  if (from == nullptr) return;
  for (int64_t i = 0; i < K; ++i, from += s.h, to += W) {
    if (s.d == 1) {
      std::memcpy(to, from, columns * sizeof(Real));
    } else {
      for (int j = 0; j < columns; ++j) to[j] = from[j * s.d];
    }
  }
}
inline void store_state(const Real* from, const Strides& s, int64_t K, int columns, Real* to) {
  for (int64_t i = 0; i < K; ++i, from += W, to += s.h) {
    if (s.d == 1) {
      std::memcpy(to, from, columns * sizeof(Real));
    } else {
      for (int j = 0; j < columns; ++j) to[j * s.d] = from[j];
    }
  }
}

}  // namespace
