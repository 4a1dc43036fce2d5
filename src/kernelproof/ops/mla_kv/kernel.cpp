// Latent key/value projection on the CPU.
//
//     latent = hidden @ w_down            optionally: latent *= norm_weight / rms(latent)
//     k[:, h] = (latent @ w_up_k[:, h], k_pe);  v[:, h] = latent @ w_up_v[:, h]
//
// Both products run on one register tile of kRows tokens x kVectors vectors of columns: the weights
// are read as vectors along their columns, the tokens as broadcast scalars, so neither operand has
// to be transposed. The latents of a token block never leave the cache, in float32 (or double).
//
// Sums are formed over slices of kDepth terms that are then added up: a slice of the weights stays
// in the first-level cache, and the rounding error grows with the number of slices rather than
// with the number of terms. Which thread forms a sum changes nothing about its order.
//
// The instruction set is the compiler's: cpu.py compiles this file once for each that is used.

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 8;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRows = 4;  // 16 registers: 12 sums, 3 weights, 1 broadcast
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRows = 8;
#else
constexpr int kVectorBytes = 16, kRows = 4;
#endif
constexpr int kVectors = 3;
constexpr int64_t kDepth = 128;
// Tokens that are taken through both products at once, by one thread or by all together.
constexpr int64_t kBlockTokens = 192;
// Panels of weights that are packed at once: rows of 1.5 KB and more, which hardware prefetches.
constexpr int64_t kWide = 8;
// Weights below this stay in a core's second-level cache, and every thread may read all of them.
constexpr int64_t kPrivateWeightBytes = 1 << 19;
// Fewer multiply-adds than this are done before a second thread has woken up.
constexpr int64_t kSerialWork = 1 << 16;

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(Bfloat16 value) { return from_bits(uint32_t(value.bits) << 16); }
inline float widen(Half value) {
  // Exponent and mantissa move up by 13 bits and the exponent bias grows by 112: one exact product.
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const uint32_t rest = uint32_t(value.bits & 0x7fff) << 13;
  const float scaled = from_bits(rest) * from_bits(0x77800000);  // 2^112
  const uint32_t special = rest >= (0x7c00u << 13) ? 0x7f800000 : 0;
  return from_bits(sign | special | to_bits(scaled));
}

inline void narrow(float value, float& out) { out = value; }
inline void narrow(double value, double& out) { out = value; }
inline void narrow(float value, Bfloat16& out) {
  const uint32_t bits = to_bits(value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  out.bits = uint16_t(nan ? (bits >> 16) | 0x40 : rounded);
}
inline void narrow(float value, Half& out) {
  const uint32_t bits = to_bits(value), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  uint32_t result;
  if (size > 0x7f800000) {
    result = 0x7e00;
  } else if (size >= 0x477ff000) {  // 65520 and above round to infinity
    result = 0x7c00;
  } else if (size < 0x38800000) {  // subnormal: let the float adder round at 2^-24
    result = to_bits(from_bits(size) + 0.5f) - to_bits(0.5f);
  } else {
    result = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  out.bits = uint16_t(sign | result);
}

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
constexpr bool kConverts = !std::is_same_v<T, Sum<T>>;

// `a` and `b` are vectors of four; their elements are counted through.
#if defined(__clang__)
#define KERNELPROOF_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t Picks __attribute__((vector_size(16)));
#define KERNELPROOF_PICK(a, b, ...) __builtin_shuffle(a, b, Picks{__VA_ARGS__})
#endif

template <class S>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
};
template <class S>
using Vector = typename VectorOf<S>::type;
template <class S>
constexpr int kLanes = kVectorBytes / int(sizeof(S));
template <class S>
constexpr int kPanel = kVectors * kLanes<S>;

// Runs of values; where there is an instruction for it, the compiler does not find it by itself.
template <class T>
inline void widen_run(const T* from, int64_t step, int64_t count, Sum<T>* to) {
  int64_t j = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Half>) {
    if (step == 1) {
      for (; j + 8 <= count; j += 8) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j));
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(bits));
      }
    }
  }
#endif
  if (step == 1) {
    for (; j < count; ++j) to[j] = widen(from[j]);
  } else {
    for (; j < count; ++j) to[j] = widen(from[j * step]);
  }
}

template <class T>
inline void narrow_run(const Sum<T>* from, int64_t count, T* to) {
  int64_t j = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Half>) {
    for (; j + 8 <= count; j += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + j), bits);
    }
  }
#endif
  for (; j < count; ++j) narrow(from[j], to[j]);
}

template <class S>
inline Vector<S> load(const S* from) {
  Vector<S> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The position of token n in a tensor (..., M): its leading axes, the fewest that address it.
struct Leading {
  int64_t axes;
  const int64_t* sizes;
  const int64_t* strides;

  int64_t at(int64_t n) const {
    int64_t offset = 0;
    for (int64_t a = axes - 1; a > 0; --a) {
      offset += n % sizes[a] * strides[a];
      n /= sizes[a];
    }
    return axes > 0 ? offset + n * strides[0] : 0;
  }
};

// A weight of `columns` columns in heads of `head_columns`: element (i, j) is at
// data[i * row + j / head_columns * head + j % head_columns * column].
template <class T>
struct Weight {
  const T* data;
  int64_t row, head, column, head_columns, columns;
};

// An output (tokens, heads, ...): a token's columns start at out + token * token_pitch, and those
// of a head at `head_pitch` from the last one's.
template <class T>
struct Out {
  T* data;
  int64_t token_pitch, head_pitch, head_columns;

  // Where `width` columns from `column` on begin, if they lie in one head.
  T* one_head(int64_t token, int64_t column, int64_t width) const {
    const int64_t inside = column % head_columns;
    if (inside + width > head_columns) return nullptr;
    return data + token * token_pitch + column / head_columns * head_pitch + inside;
  }
};

// `run(first, count)` for the parts of `width` columns from `column` on that lie in one head.
template <class F>
inline void by_head(int64_t column, int64_t width, int64_t head_columns, F run) {
  for (int64_t j = 0; j < width;) {
    const int64_t count = std::min(width - j, head_columns - (column + j) % head_columns);
    run(j, count);
    j += count;
  }
}

// Where a register tile's sums go: added to `carry` unless it is the first slice, and kept there
// unless it is the last one, which converts and writes `out` from `column` on.
template <class T>
struct Target {
  Sum<T>* carry;
  int64_t carry_pitch;
  bool first;
  const Out<T>* out;  // null: keep in carry
  int64_t token, column, width;
  T* whole;  // of the first token, where the columns lie in one head; else null
};

// `width` sums of one token, over heads and through the conversion.
template <class T>
__attribute__((noinline)) void write_any(const Sum<T>* values, const Out<T>& out, int64_t token,
                                         int64_t column, int64_t width) {
  T* row = out.data + token * out.token_pitch;
  by_head(column, width, out.head_columns, [&](int64_t j, int64_t count) {
    const int64_t head = (column + j) / out.head_columns, inside = (column + j) % out.head_columns;
    narrow_run(values + j, count, row + head * out.head_pitch + inside);
  });
}

template <class T, int VECTORS>
inline void write(const Vector<Sum<T>> (&sums)[VECTORS], const Target<T>& to, int64_t at) {
  using S = Sum<T>;
  if constexpr (!kConverts<T>) {
    if (to.whole != nullptr && to.width == VECTORS * kLanes<S>) {
      std::memcpy(to.whole + at * to.out->token_pitch, sums, sizeof sums);
      return;
    }
  }
  S values[VECTORS * kLanes<S>];
  std::memcpy(values, sums, sizeof sums);
  write_any(values, *to.out, to.token + at, to.column, to.width);
}

template <class T, int ROWS, int VECTORS>
inline void register_tile(int64_t depth, const Sum<T>* const* rows, int64_t offset, int64_t step,
                          const Sum<T>* panel, int64_t pitch, const Target<T>& to, int64_t at) {
  using S = Sum<T>;
  constexpr int lanes = kLanes<S>;
  Vector<S> sum[ROWS][VECTORS] = {};
  const S* token[ROWS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) token[i] = rows[at + i] + offset;
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    Vector<S> weight[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) {
      weight[j] = load(panel + j * lanes);
      // With few tokens it is the weights that cost, and their rows may be pages apart.
      if constexpr (ROWS <= 2) __builtin_prefetch(panel + 8 * pitch + j * lanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) sum[i][j] += token[i][k * step] * weight[j];
    }
    panel += pitch;
  }
  S* carry = to.carry + at * to.carry_pitch;
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i, carry += to.carry_pitch) {
    if (!to.first) {
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) sum[i][j] += load(carry + j * lanes);
    }
    if (to.out != nullptr) {
      write<T, VECTORS>(sum[i], to, at + i);
    } else {
      std::memcpy(carry, sum[i], sizeof sum[i]);
    }
  }
}

template <class T, int VECTORS>
void all_tokens(int64_t tokens, int64_t depth, const Sum<T>* const* rows, int64_t offset,
                int64_t step, const Sum<T>* panel, int64_t pitch, const Target<T>& to) {
  int64_t at = 0;
  for (; at + kRows <= tokens; at += kRows)
    register_tile<T, kRows, VECTORS>(depth, rows, offset, step, panel, pitch, to, at);
  if constexpr (kRows > 4) {
    for (; at + 4 <= tokens; at += 4)
      register_tile<T, 4, VECTORS>(depth, rows, offset, step, panel, pitch, to, at);
  }
  for (; at + 2 <= tokens; at += 2)
    register_tile<T, 2, VECTORS>(depth, rows, offset, step, panel, pitch, to, at);
  for (; at < tokens; ++at)
    register_tile<T, 1, VECTORS>(depth, rows, offset, step, panel, pitch, to, at);
}

// COLUMNS sums of `depth` terms, columns `step` apart, each one's terms neighbours. Lanes add up at
// most kDepth terms before they are put aside, so that errors stay as small as in the tile.
template <class S, int COLUMNS>
inline void dots(const S* token, const S* columns, int64_t step, int64_t depth, S* sums) {
  constexpr int64_t lanes = kLanes<S>;
  Vector<S> total[COLUMNS] = {};
  int64_t k = 0;
  while (k + lanes <= depth) {
    Vector<S> part[COLUMNS] = {};
    const int64_t end = std::min(depth, k + kDepth * lanes);
    for (; k + lanes <= end; k += lanes) {
      const Vector<S> x = load(token + k);
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) part[j] += x * load(columns + j * step + k);
    }
    for (int j = 0; j < COLUMNS; ++j) total[j] += part[j];
  }
  for (int j = 0; j < COLUMNS; ++j) {
    S values[lanes];
    std::memcpy(values, &total[j], sizeof values);
    for (int64_t n = lanes / 2; n > 0; n /= 2)
      for (int64_t i = 0; i < n; ++i) values[i] += values[i + n];
    for (int64_t i = k; i < depth; ++i) values[0] += token[i] * columns[j * step + i];
    sums[j] = values[0];
  }
}

// `width` sums of one token from `column` on, of a weight in nn.Linear's form, without packing.
template <class S>
void dot_columns(const S* token, const Weight<S>& weight, int64_t depth, int64_t column,
                 int64_t width, S* sums) {
  by_head(column, width, weight.head_columns, [&](int64_t first, int64_t count) {
    const int64_t at = column + first;
    const S* from = weight.data + at / weight.head_columns * weight.head +
                    at % weight.head_columns * weight.column;
    int64_t j = 0;
    for (; j + 4 <= count; j += 4)
      dots<S, 4>(token, from + j * weight.column, weight.column, depth, sums + first + j);
    for (; j < count; ++j)
      dots<S, 1>(token, from + j * weight.column, weight.column, depth, sums + first + j);
  });
}

// Some slice of a weight as the register tile reads it: panel p starts at data + p * panel_step,
// rows are `pitch` apart.
template <class S>
struct Panels {
  const S* data;
  int64_t panel_step, pitch;
};

// `count` columns of `depth` terms each, as nn.Linear has them (a column's terms are neighbours),
// turned into rows kPanel apart.
template <class T>
inline void turned_run(const T* from, const Weight<T>& weight, int64_t depth, int64_t count,
                       Sum<T>* to) {
  constexpr int64_t pitch = kPanel<Sum<T>>;
  int64_t j = 0;
  if constexpr (std::is_same_v<T, float>) {
    // Squares of 4 x 4 in registers.
    typedef float Four __attribute__((vector_size(16)));
    for (; weight.row == 1 && j + 4 <= count; j += 4) {
      int64_t k = 0;
      for (; k + 4 <= depth; k += 4) {
        Four c[4];
        for (int i = 0; i < 4; ++i)
          std::memcpy(&c[i], from + (j + i) * weight.column + k, sizeof c[i]);
        const Four low01 = KERNELPROOF_PICK(c[0], c[1], 0, 4, 1, 5);
        const Four high01 = KERNELPROOF_PICK(c[0], c[1], 2, 6, 3, 7);
        const Four low23 = KERNELPROOF_PICK(c[2], c[3], 0, 4, 1, 5);
        const Four high23 = KERNELPROOF_PICK(c[2], c[3], 2, 6, 3, 7);
        const Four rows[4] = {KERNELPROOF_PICK(low01, low23, 0, 1, 4, 5),
                              KERNELPROOF_PICK(low01, low23, 2, 3, 6, 7),
                              KERNELPROOF_PICK(high01, high23, 0, 1, 4, 5),
                              KERNELPROOF_PICK(high01, high23, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i)
          std::memcpy(to + (k + i) * pitch + j, &rows[i], sizeof rows[i]);
      }
      for (; k < depth; ++k)
        for (int i = 0; i < 4; ++i) to[k * pitch + j + i] = from[(j + i) * weight.column + k];
    }
  }
  for (; j < count; ++j)
    for (int64_t k = 0; k < depth; ++k)
      to[k * pitch + j] = widen(from[j * weight.column + k * weight.row]);
}

// `depth` rows of `width` columns: in place where the layout allows it, else copied to `buffer`
// (converted, each panel by itself, padded with zeros).
template <class T>
Panels<Sum<T>> weight_panels(const Weight<T>& weight, int64_t row, int64_t depth, int64_t column,
                             int64_t width, int64_t tokens, Sum<T>* buffer) {
  using S = Sum<T>;
  constexpr int64_t panel = kPanel<S>;
  const T* from = weight.data + row * weight.row;
  if constexpr (!kConverts<T>) {
    // Rows far apart fall into few sets of the first-level cache and evict one another, which
    // matters as soon as several register tiles read the panel.
    const bool crowded = tokens > 2 * kRows && weight.row * int64_t(sizeof(T)) > 1024;
    const bool flat = weight.column == 1 && weight.head_columns == weight.columns;
    if (flat && width % kLanes<S> == 0 && !crowded) return {from + column, panel, weight.row};
  }
  const int64_t last = width % panel;
  const auto place = [&](int64_t k, int64_t j) {
    return buffer + j / panel * (kDepth * panel) + k * panel + j % panel;
  };
  const bool by_rows = weight.column == 1 || weight.column <= weight.row;
  by_head(column, width, weight.head_columns, [&](int64_t first, int64_t count) {
    const int64_t head = (column + first) / weight.head_columns;
    const T* part = from + head * weight.head +
                    (column + first) % weight.head_columns * weight.column;
    if (by_rows) {
      for (int64_t k = 0; k < depth; ++k) {
        const T* source = part + k * weight.row;
        for (int64_t j = 0; j < count;) {
          const int64_t run = std::min(count - j, panel - (first + j) % panel);
          widen_run(source + j * weight.column, weight.column, run, place(k, first + j));
          j += run;
        }
      }
    } else {
      for (int64_t j = 0; j < count;) {
        const int64_t run = std::min(count - j, panel - (first + j) % panel);
        turned_run<T>(part + j * weight.column, weight, depth, run, place(0, first + j));
        j += run;
      }
    }
  });
  if (last != 0) {
    for (int64_t k = 0; k < depth; ++k) {
      S* row = place(k, width - last);
      std::fill(row + last, row + panel, S(0));
    }
  }
  return {buffer, kDepth * panel, panel};
}

// Sums of `depth` terms for all tokens of a block and the columns of `panels`, whose first one
// `to` describes.
template <class T>
void products(int64_t tokens, const Sum<T>* const* rows, int64_t offset, int64_t step,
              const Panels<Sum<T>>& panels, int64_t depth, int64_t width, Target<T> to) {
  using S = Sum<T>;
  for (int64_t j = 0; j < width; j += kPanel<S>) {
    to.width = std::min<int64_t>(kPanel<S>, width - j);
    to.whole = to.out == nullptr ? nullptr : to.out->one_head(to.token, to.column, to.width);
    const S* panel = panels.data + j / kPanel<S> * panels.panel_step;
    switch (ceil_div(to.width, kLanes<S>)) {
      case 1: all_tokens<T, 1>(tokens, depth, rows, offset, step, panel, panels.pitch, to); break;
      case 2: all_tokens<T, 2>(tokens, depth, rows, offset, step, panel, panels.pitch, to); break;
      default: all_tokens<T, 3>(tokens, depth, rows, offset, step, panel, panels.pitch, to);
    }
    to.carry += kPanel<S>;
    to.column += kPanel<S>;
  }
}

template <class T>
struct Problem {
  const T* hidden;
  int64_t tokens, model, rank, hidden_column;
  Leading leading;
  Weight<T> down, up[2];
  Out<T> out[2];
  const T* norm_weight;  // null: no norm
  int64_t norm_step;
  double norm_eps;
  const T* rope;  // null: none
  int64_t heads, rope_columns, rope_step;
  Leading rope_leading;

  // With so few tokens, turning a weight costs more than the products. It goes by the tokens of
  // the call, not of a block: a token's bits may not depend on the number of threads.
  bool takes_dots(const Weight<T>& weight) const {
    return !kConverts<T> && tokens <= 2 && weight.row == 1 && weight.column != 1;
  }
  int64_t latent_pitch() const { return ceil_div(rank, kLanes<Sum<T>>) * kLanes<Sum<T>>; }
  int64_t columns() const { return up[0].columns + up[1].columns; }
  int64_t weight_bytes() const { return rank * (model + columns()) * int64_t(sizeof(T)); }
};

// How a problem is divided: `together`, all threads work on one block of tokens and split the
// columns; otherwise each has blocks of its own. `wide` panels of weights are packed at a time.
struct Plan {
  int64_t team, together, block, down_wide, up_wide;
};

template <class T>
Plan make_plan(const Problem<T>& problem, int64_t threads) {
  const int64_t work = problem.tokens * problem.rank * (problem.model + problem.columns());
  const int64_t team = work < kSerialWork ? 1 : std::max<int64_t>(1, threads);
  const int64_t share = ceil_div(ceil_div(problem.tokens, team), kRows) * kRows;
  // With few tokens per thread it is the weights that cost: then every thread takes some columns
  // of all tokens, and each weight is read, and packed, by one thread.
  const bool together =
      team > 1 && share < kBlockTokens / 2 && problem.weight_bytes() > kPrivateWeightBytes;
  const int64_t block =
      std::min(kBlockTokens, together ? problem.tokens : std::max<int64_t>(share, kRows));
  const auto wide = [&](int64_t columns) {
    const int64_t panels = ceil_div(ceil_div(columns, kPanel<Sum<T>>), together ? team : 1);
    return std::min(kWide, std::max<int64_t>(1, panels));
  };
  return {team, together, block, wide(problem.rank), wide(problem.columns())};
}

// One thread's share of a token block: the groups of column panels `member`, `member + members`..
template <class T>
struct Share {
  using S = Sum<T>;
  const Problem<T>& problem;
  const Plan& plan;
  int64_t start, tokens, member, members;
  S* latent;
  S* scratch;

  // Scratch of one thread, in elements: packed weights, sums between slices, tokens.
  static int64_t carry_pitch(const Plan& plan) { return plan.up_wide * kPanel<S>; }
  static int64_t packed_size(const Plan& plan) {
    return std::max(plan.down_wide, plan.up_wide) * kPanel<S> * kDepth;
  }
  static int64_t scratch_size(const Plan& plan) {
    return packed_size(plan) + plan.block * (carry_pitch(plan) + kDepth);
  }

  void down() const {
    S* copied = scratch + packed_size(plan) + plan.block * carry_pitch(plan);
    const S* rows[kBlockTokens];
    const T* tokens_at[kBlockTokens];
    for (int64_t n = 0; n < tokens; ++n)
      tokens_at[n] = problem.hidden + problem.leading.at(start + n);
    const int64_t slices = std::max<int64_t>(1, ceil_div(problem.model, kDepth));
    const int64_t width = plan.down_wide * kPanel<S>, pitch = problem.latent_pitch();
    if constexpr (!kConverts<T>) {
      if (problem.takes_dots(problem.down) && problem.hidden_column == 1) {
        for (int64_t c = member * width; c < problem.rank; c += members * width) {
          const int64_t columns = std::min(width, problem.rank - c);
          for (int64_t n = 0; n < tokens; ++n)
            dot_columns(tokens_at[n], problem.down, problem.model, c, columns,
                        latent + n * pitch + c);
        }
        return;
      }
    }
    // A token's slice is read once for each panel: from a copy where it has to be converted, or
    // is spread out, or where tokens that lie pages apart would evict one another.
    const bool spread = problem.hidden_column != 1 ||
                        (tokens > kRows && problem.model * int64_t(sizeof(T)) >= 2048);
    const bool copies = kConverts<T> || (spread && problem.rank > 2 * kPanel<S>);
    for (int64_t s = 0; s < slices; ++s) {
      const int64_t first = s * kDepth, depth = std::min(kDepth, problem.model - first);
      int64_t offset = 0, step = 1;
      if (copies) {
        for (int64_t n = 0; n < tokens; ++n) {
          rows[n] = copied + n * kDepth;
          widen_run(tokens_at[n] + first * problem.hidden_column, problem.hidden_column, depth,
                    copied + n * kDepth);
        }
      } else if constexpr (!kConverts<T>) {
        offset = first * problem.hidden_column;
        step = problem.hidden_column;
        if (s == 0) std::copy(tokens_at, tokens_at + tokens, rows);
      }
      for (int64_t c = member * width; c < problem.rank; c += members * width) {
        const int64_t columns = std::min(width, problem.rank - c);
        const auto panels =
            weight_panels<T>(problem.down, first, depth, c, columns, tokens, scratch);
        const Target<T> to{latent + c, pitch, s == 0, nullptr, 0, 0, 0, nullptr};
        products<T>(tokens, rows, offset, step, panels, depth, columns, to);
      }
    }
  }

  // The squares are summed in double: those of large float latents do not overflow.
  void norm() const {
    for (int64_t n = member; n < tokens; n += members) {
      S* row = latent + n * problem.latent_pitch();
      double squares = 0;
      for (int64_t r = 0; r < problem.rank; ++r) squares += double(row[r]) * double(row[r]);
      const S scale = S(1 / std::sqrt(squares / double(problem.rank) + problem.norm_eps));
      for (int64_t r = 0; r < problem.rank; ++r)
        row[r] = row[r] * scale * widen(problem.norm_weight[r * problem.norm_step]);
    }
  }

  void up() const {
    S* carry = scratch + packed_size(plan);
    const S* rows[kBlockTokens];
    for (int64_t n = 0; n < tokens; ++n) rows[n] = latent + n * problem.latent_pitch();
    const int64_t width = plan.up_wide * kPanel<S>;
    const int64_t keys = ceil_div(problem.up[0].columns, width);
    const int64_t groups = keys + ceil_div(problem.up[1].columns, width);
    const int64_t slices = std::max<int64_t>(1, ceil_div(problem.rank, kDepth));
    for (int64_t g = member; g < groups; g += members) {
      const int64_t half = g >= keys, c = (g - half * keys) * width;
      const int64_t columns = std::min(width, problem.up[half].columns - c);
      if constexpr (!kConverts<T>) {
        if (problem.takes_dots(problem.up[half])) {
          for (int64_t n = 0; n < tokens; ++n) {
            dot_columns(rows[n], problem.up[half], problem.rank, c, columns, carry);
            write_any<T>(carry, problem.out[half], start + n, c, columns);
          }
          continue;
        }
      }
      for (int64_t s = 0; s < slices; ++s) {
        const int64_t first = s * kDepth, depth = std::min(kDepth, problem.rank - first);
        const auto panels =
            weight_panels<T>(problem.up[half], first, depth, c, columns, tokens, scratch);
        const Target<T> to{carry, carry_pitch(plan), s == 0,
                           s + 1 == slices ? &problem.out[half] : nullptr, start, c, 0, nullptr};
        products<T>(tokens, rows, first, 1, panels, depth, columns, to);
      }
    }
  }

  // The rotary part is a copy: the same for every head.
  void rope() const {
    const Out<T>& keys = problem.out[0];
    const int64_t key_columns = problem.up[0].columns / problem.heads;
    for (int64_t n = member; n < tokens; n += members) {
      const T* from = problem.rope + problem.rope_leading.at(start + n);
      T* to = keys.data + (start + n) * keys.token_pitch + key_columns;
      for (int64_t h = 0; h < problem.heads; ++h, to += keys.head_pitch)
        for (int64_t j = 0; j < problem.rope_columns; ++j) to[j] = from[j * problem.rope_step];
    }
  }
};

// 0, or 1 where the scratch memory cannot be had.
template <class T>
int solve(const Problem<T>& problem, int64_t threads) {
  using S = Sum<T>;
  const Plan plan = make_plan(problem, threads);
  const bool together = plan.together;
  const int64_t blocks = ceil_div(problem.tokens, plan.block);
  const int64_t latents = ceil_div(plan.block * problem.latent_pitch(), 16) * 16;
  const int64_t own = ceil_div(Share<T>::scratch_size(plan), 16) * 16;
  const int64_t count = plan.team * own + (together ? 1 : plan.team) * latents;
  const int64_t bytes = ceil_div(count * int64_t(sizeof(S)), 64) * 64;
  S* memory = static_cast<S*>(std::aligned_alloc(64, size_t(bytes)));
  if (memory == nullptr) return 1;
#pragma omp parallel num_threads(int(plan.team)) if (plan.team > 1)
  {
    const int64_t id = omp_get_thread_num(), members = omp_get_num_threads();
    S* scratch = memory + id * own;
    S* latent = memory + plan.team * own + (together ? 0 : id * latents);
    for (int64_t b = together ? 0 : id; b < blocks; b += together ? 1 : members) {
      const int64_t start = b * plan.block, tokens = std::min(plan.block, problem.tokens - start);
      const Share<T> mine{problem, plan, start, tokens, together ? id : 0, together ? members : 1,
                          latent, scratch};
      mine.down();
      if (together) {
#pragma omp barrier
      }
      if (problem.norm_weight != nullptr) {
        mine.norm();
        if (together) {
#pragma omp barrier
        }
      }
      mine.up();
      if (problem.rope != nullptr) mine.rope();
      if (together && b + 1 < blocks) {
#pragma omp barrier
      }
    }
  }
  std::free(memory);
  return 0;
}

// Reads the layout array; see layout.py, which writes it.
template <class T>
Problem<T> read(const void* const* tensors, const int64_t* n, double norm_eps) {
  const auto leading = [](const int64_t* from) {
    return Leading{from[0], from + 1, from + 1 + from[0]};
  };
  const auto weight = [](const void* data, const int64_t* from) {
    return Weight<T>{static_cast<const T*>(data), from[0], from[1], from[2], from[3], from[4]};
  };
  const auto out = [](const void* data, const int64_t* from) {
    return Out<T>{static_cast<T*>(const_cast<void*>(data)), from[0], from[1], from[2]};
  };
  const int64_t* axes = n + 29;
  return {static_cast<const T*>(tensors[0]), n[0], n[1], n[2], n[3], leading(axes),
          weight(tensors[1], n + 4),
          {weight(tensors[2], n + 9), weight(tensors[3], n + 14)},
          {out(tensors[6], n + 19), out(tensors[7], n + 22)},
          static_cast<const T*>(tensors[4]), n[25], norm_eps,
          static_cast<const T*>(tensors[5]), n[26], n[27], n[28],
          leading(axes + 1 + 2 * axes[0])};
}

}  // namespace

// `tensors`: hidden, w_down, w_up_k, w_up_v, norm_weight or null, k_pe or null, k, v. Returns 0, or
// 1 when out of memory. NAME_plan writes what `Plan` of cpu.py names.
#define KERNELPROOF_MLA_KV(NAME, TYPE)                                                            \
  extern "C" int NAME(const void* const* tensors, const int64_t* layout, double norm_eps,        \
                      int64_t threads) {                                                         \
    return solve(read<TYPE>(tensors, layout, norm_eps), threads);                                \
  }                                                                                              \
  extern "C" void NAME##_plan(const int64_t* layout, int64_t threads, int64_t* facts) {          \
    const void* none[8] = {};                                                                    \
    const Plan plan = make_plan(read<TYPE>(none, layout, 0), threads);                           \
    const int64_t panel = kPanel<Sum<TYPE>>;                                                     \
    const int64_t found[] = {plan.team, plan.together, plan.block,         kRows,                \
                             panel,     kDepth,        panel * plan.up_wide};                    \
    std::copy(found, found + 7, facts);                                                          \
  }

KERNELPROOF_MLA_KV(mla_kv_float32, float)
KERNELPROOF_MLA_KV(mla_kv_float64, double)
KERNELPROOF_MLA_KV(mla_kv_float16, Half)
KERNELPROOF_MLA_KV(mla_kv_bfloat16, Bfloat16)
