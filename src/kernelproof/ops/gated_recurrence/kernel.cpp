// Gated recurrence on the CPU.
//
// One task is one (batch, head) and a run of column tiles; a tile is one SIMD vector of columns.
// Columns of the state never meet, so a tile walks through time on its own. Time is cut into
// pieces of PIECE steps; within a piece a block of rows of the state stays in registers while it
// passes all steps, and its share of y is added to a small buffer. Every (row, column, step) is
// computed by the same operations whatever the threads, so results do not depend on their number,
// and y[t] does not depend on anything after t.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <omp.h>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, ROWS = 24;  // 32 registers: 24 of state, the rest v, gate, sums, product
#elif defined(__AVX__)
constexpr int W = 8, ROWS = 8;
#elif defined(__aarch64__)
constexpr int W = 4, ROWS = 24;
#else
constexpr int W = 4, ROWS = 8;
#endif
constexpr int PIECE = 64;  // steps; v, gate and y of a piece and tile stay in the L1 cache

typedef float Vec __attribute__((vector_size(W * sizeof(float))));

inline Vec load(const float* from) {
  Vec x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }

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

// Laid out by cpu.py (class Plan); all fields are int64.
struct Plan {
  int64_t element, gate;  // 0 float, 1 half, 2 bfloat16
  int64_t B, T, H, K, V;
  Strides q, k, v, gate_k, gate_v, gate_head, initial;  // initial: b, h, K, V
};

// The rows of q, k or gate_k for one piece: in place where they are float with unit stride,
// else converted into `space`.
struct Rows {
  const float* at;
  ptrdiff_t step;
};

template <class E>
void convert_rows(const void* source, const Strides& s, int64_t steps, int64_t width,
                  float* to) {
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
void convert_tile(const void* source, const Strides& s, int64_t steps, int columns, float* to) {
  const E* from = static_cast<const E*>(source);
  if (columns < W) std::memset(to, 0, steps * W * sizeof(float));
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
void write_tile(const float* y, float scale, int64_t steps, int columns, void* target,
                int64_t step) {
  E* to = static_cast<E*>(target);
  for (int64_t t = 0; t < steps; ++t, y += W, to += step)
    in_runs(columns, [&](int j, auto count) {
      for (int i = 0; i < count; ++i) from_float(y[j + i] * scale, to + j + i);
    });
}

// What depends on the dtype, by its code in Plan. The rest works on floats.
struct Element {
  int64_t size;
  void (*rows)(const void*, const Strides&, int64_t, int64_t, float*);
  void (*tile)(const void*, const Strides&, int64_t, int, float*);
  void (*write)(const float*, float, int64_t, int, void*, int64_t);
};
template <class E>
constexpr Element element() {
  return {sizeof(E), convert_rows<E>, convert_tile<E>, write_tile<E>};
}
const Element ELEMENTS[] = {element<float>(), element<Half>(), element<BFloat>()};

// Element (b, t, h, d) of a tensor, as a pointer into it.
inline const char* at(const void* tensor, const Element& e, const Strides& s, int64_t b,
                      int64_t t, int64_t h, int64_t d) {
  return static_cast<const char*>(tensor) + (b * s.b + t * s.t + h * s.h + d * s.d) * e.size;
}

Rows rows(const void* from, int64_t code, const Strides& s, int64_t steps, int64_t width,
          float* space) {
  if (code == 0 && (s.d == 1 || width == 1))
    return {static_cast<const float*>(from), ptrdiff_t(s.t)};
  ELEMENTS[code].rows(from, s, steps, width, space);
  return {space, ptrdiff_t(width)};
}

// One tile of v or gate_v: in place where it is a full tile of floats with unit stride.
Rows tile(const void* from, int64_t code, const Strides& s, int64_t steps, int columns,
          float* space) {
  if (code == 0 && s.d == 1 && columns == W)
    return {static_cast<const float*>(from), ptrdiff_t(s.t)};
  ELEMENTS[code].tile(from, s, steps, columns, space);
  return {space, W};
}

struct Piece {
  Rows q, k, gate_k, v, gate;
  float* y;  // (steps, W)
  int64_t steps;
};

// R rows of one tile through the steps of a piece; the first rows of a tile set y, others add.
template <int R, bool KEY_GATE, bool COLUMN_GATE>
__attribute__((noinline)) void advance(const Piece& p, int64_t row, float* state) {
  Vec s[R];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) s[r] = load(state + r * W);
  const float *q = p.q.at + row, *k = p.k.at + row, *gk = KEY_GATE ? p.gate_k.at + row : nullptr;
  const float *v_at = p.v.at, *g_at = p.gate.at;
  float* y = p.y;
  for (int64_t t = 0; t < p.steps; ++t) {
    const Vec v = load(v_at), g = COLUMN_GATE ? load(g_at) : Vec{};
    Vec sum[4] = {};
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
      Vec old = s[r];
      if (KEY_GATE) old = old * gk[r];
      if (COLUMN_GATE) old = old * g;
      s[r] = old + v * k[r];
      sum[r & 3] += s[r] * q[r];
    }
    const Vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store(y, row == 0 ? all : load(y) + all);
    q += p.q.step;
    k += p.k.step;
    v_at += p.v.step;
    y += W;
    if (KEY_GATE) gk += p.gate_k.step;
    if (COLUMN_GATE) g_at += p.gate.step;
  }
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) store(state + r * W, s[r]);
}

// All K rows of one tile. Blocks of exact size instead of padded rows: a padded row would turn
// an infinite gate into NaN.
template <bool KEY_GATE, bool COLUMN_GATE>
void advance_all(const Piece& p, int64_t K, float* state) {
  int64_t row = 0;
  for (; K - row >= ROWS; row += ROWS)
    advance<ROWS, KEY_GATE, COLUMN_GATE>(p, row, state + row * W);
  for (; K - row >= 8; row += 8) advance<8, KEY_GATE, COLUMN_GATE>(p, row, state + row * W);
  if (K - row >= 4) {
    advance<4, KEY_GATE, COLUMN_GATE>(p, row, state + row * W);
    row += 4;
  }
  for (; row < K; ++row) advance<1, KEY_GATE, COLUMN_GATE>(p, row, state + row * W);
}

struct Pointers {
  const void *q, *k, *v, *gate_k, *gate_v, *gate_head;
  const float* initial;
  void* y;
  float* state;
  float scale;
};

// Scratch of one thread, in floats.
int64_t scratch_size(const Plan& n, int64_t tiles) {
  return 3 * PIECE * n.K + tiles * n.K * W + 3 * PIECE * W;
}

// The gate of the columns of one tile: gate_v times gate_head, whichever are given.
Rows column_gate(const Plan& n, const Pointers& p, int64_t b, int64_t h, int64_t column,
                 int columns, int64_t t0, int64_t steps, float* space) {
  const Element& e = ELEMENTS[n.gate];
  Rows gate{nullptr, 0};
  if (p.gate_v != nullptr)
    gate = tile(at(p.gate_v, e, n.gate_v, b, t0, h, column), n.gate, n.gate_v, steps, columns,
                space);
  if (p.gate_head == nullptr) return gate;
  float heads[PIECE];
  e.rows(at(p.gate_head, e, n.gate_head, b, t0, h, 0), n.gate_head, steps, 1, heads);
  for (int64_t t = 0; t < steps; ++t)
    for (int j = 0; j < W; ++j)
      space[t * W + j] = gate.at != nullptr ? gate.at[t * gate.step + j] * heads[t] : heads[t];
  return {space, W};
}

// Columns first * W ... of one (batch, head), from the first step to the last.
void task(const Plan& n, const Pointers& p, int64_t b, int64_t h, int64_t first, int64_t tiles,
          float* scratch) {
  const Element &e = ELEMENTS[n.element], &ge = ELEMENTS[n.gate];
  float* const packed = scratch;
  float* const states = packed + 3 * PIECE * n.K;
  float* const v = states + tiles * n.K * W;
  float* const gate = v + PIECE * W;
  float* const y = gate + PIECE * W;
  const bool key_gate = p.gate_k != nullptr;
  const bool with_column_gate = p.gate_v != nullptr || p.gate_head != nullptr;
  auto columns_of = [&](int64_t x) {
    const int64_t left = n.V - (first + x) * W;
    return int(left < W ? left : W);
  };

  std::memset(states, 0, tiles * n.K * W * sizeof(float));
  if (p.initial != nullptr) {
    const float* const from = p.initial + b * n.initial.b + h * n.initial.t;
    for (int64_t x = 0; x < tiles; ++x)
      for (int64_t i = 0; i < n.K; ++i)
        for (int j = 0; j < columns_of(x); ++j)
          states[(x * n.K + i) * W + j] =
              from[i * n.initial.h + ((first + x) * W + j) * n.initial.d];
  }

  Piece piece{};
  piece.y = y;
  if (n.K == 0) std::memset(y, 0, PIECE * W * sizeof(float));  // no row will set it
  for (int64_t t0 = 0; t0 < n.T; t0 += PIECE) {
    piece.steps = n.T - t0 < PIECE ? n.T - t0 : PIECE;
    piece.q = rows(at(p.q, e, n.q, b, t0, h, 0), n.element, n.q, piece.steps, n.K, packed);
    piece.k = rows(at(p.k, e, n.k, b, t0, h, 0), n.element, n.k, piece.steps, n.K,
                   packed + PIECE * n.K);
    if (key_gate)
      piece.gate_k = rows(at(p.gate_k, ge, n.gate_k, b, t0, h, 0), n.gate, n.gate_k, piece.steps,
                          n.K, packed + 2 * PIECE * n.K);
    for (int64_t x = 0; x < tiles; ++x) {
      const int64_t column = (first + x) * W;
      const int columns = columns_of(x);
      piece.v = tile(at(p.v, e, n.v, b, t0, h, column), n.element, n.v, piece.steps, columns, v);
      if (with_column_gate)
        piece.gate = column_gate(n, p, b, h, column, columns, t0, piece.steps, gate);
      float* const state = states + x * n.K * W;
      if (key_gate && with_column_gate) advance_all<true, true>(piece, n.K, state);
      else if (key_gate) advance_all<true, false>(piece, n.K, state);
      else if (with_column_gate) advance_all<false, true>(piece, n.K, state);
      else advance_all<false, false>(piece, n.K, state);
      const int64_t out = ((b * n.T + t0) * n.H + h) * n.V + column;
      e.write(y, p.scale, piece.steps, columns, static_cast<char*>(p.y) + out * e.size, n.H * n.V);
    }
  }

  if (p.state == nullptr) return;
  for (int64_t x = 0; x < tiles; ++x)
    for (int64_t i = 0; i < n.K; ++i)
      std::memcpy(p.state + ((b * n.H + h) * n.K + i) * n.V + (first + x) * W,
                  states + (x * n.K + i) * W, columns_of(x) * sizeof(float));
}

int run(const Plan& n, const Pointers& p) {
  const int64_t heads = n.B * n.H, all_tiles = (n.V + W - 1) / W;
  const int threads = omp_get_max_threads();
  // Whole heads share the conversion of q and k; split them only to keep all threads busy.
  const int64_t wanted = (4 * threads + heads - 1) / heads;
  const int64_t runs = wanted < all_tiles ? wanted : all_tiles;
  const int64_t tiles = (all_tiles + runs - 1) / runs;
  const int64_t tasks_per_head = (all_tiles + tiles - 1) / tiles, tasks = heads * tasks_per_head;
  const size_t bytes = (scratch_size(n, tiles) * sizeof(float) + 63) / 64 * 64;
  // Below this many multiply-adds, waking other threads costs more than they save.
  const bool parallel = tasks > 1 && double(heads) * (n.T + 1) * n.K * n.V > 65536;
  int failed = 0;
#pragma omp parallel if (parallel) reduction(| : failed)
  {
    float* const scratch = static_cast<float*>(std::aligned_alloc(64, bytes));
    failed |= scratch == nullptr;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks; ++i) {
      if (scratch == nullptr) continue;
      const int64_t head = i / tasks_per_head, first = i % tasks_per_head * tiles;
      const int64_t count = all_tiles - first < tiles ? all_tiles - first : tiles;
      task(n, p, head / n.H, head % n.H, first, count, scratch);
    }
    std::free(scratch);
  }
  return failed;
}

}  // namespace

// Returns 0, or 1 where scratch memory could not be had (y is then incomplete).
extern "C" int gated_recurrence(const int64_t* plan, const void* q, const void* k, const void* v,
                                const void* gate_k, const void* gate_v, const void* gate_head,
                                const float* initial, void* y, float* state, float scale) {
  static_assert(sizeof(Plan) == 35 * sizeof(int64_t), "cpu.py fills 35 numbers");
  Plan n;
  std::memcpy(&n, plan, sizeof n);
  const Pointers p{q, k, v, gate_k, gate_v, gate_head, initial, y, state, scale};
  if (n.B == 0 || n.H == 0 || n.V == 0) return 0;
  return run(n, p);
}
