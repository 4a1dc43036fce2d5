// Latent key/value projection on the CPU.
//
//     latent = hidden @ w_down;  out[:, 0] = latent @ w_up_k;  out[:, 1] = latent @ w_up_v
//
// Both products run on one register tile of kRows tokens x kVectors vectors of columns: the weights
// are read as vectors along their columns, the tokens as broadcast scalars, so neither operand has
// to be transposed. The latents of a token block never leave the cache.
//
// Sums are formed over slices of kDepth terms that are then added up: a slice of the weights stays
// in the first-level cache, and the rounding error grows with the number of slices rather than
// with the number of terms.

#include <omp.h>

#include <algorithm>
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
constexpr int64_t kBlockTokens = 96;
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

template <class S>
inline Vector<S> load(const S* from) {
  Vector<S> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A matrix operand: element (i, j) is at data[i * row + j * column].
template <class T>
struct Matrix {
  const T* data;
  int64_t row, column;
};

// Where a register tile's sums go: added to `carry` unless it is the first slice, and kept there
// unless it is the last one, which converts and writes `out`.
template <class T>
struct Target {
  Sum<T>* carry;
  int64_t carry_pitch;
  bool first;
  T* out;  // null: keep in carry
  int64_t out_pitch;
  int64_t width;  // columns of out that exist
};

template <class T, int VECTORS>
inline void write(const Vector<Sum<T>> (&sums)[VECTORS], T* out, int64_t width) {
  using S = Sum<T>;
  if constexpr (!kConverts<T>) {
    if (width == VECTORS * kLanes<S>) {
      std::memcpy(out, sums, sizeof sums);
      return;
    }
  }
  S values[VECTORS * kLanes<S>];
  std::memcpy(values, sums, sizeof sums);
  for (int64_t j = 0; j < width; ++j) narrow(values[j], out[j]);
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
#pragma GCC unroll 1
  for (int64_t k = 0; k < depth; ++k) {
    Vector<S> weight[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) weight[j] = load(panel + j * lanes);
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
      write<T, VECTORS>(sum[i], to.out + (at + i) * to.out_pitch, to.width);
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

// `depth` rows of at most one panel of columns, as the register tile reads them: in place where
// the layout allows it, else copied to `buffer` (converted, padded with zeros).
template <class T>
const Sum<T>* weight_panel(const Matrix<T>& weight, int64_t row, int64_t depth, int64_t column,
                           int64_t width, int64_t tokens, Sum<T>* buffer, int64_t& pitch) {
  using S = Sum<T>;
  const T* from = weight.data + row * weight.row + column * weight.column;
  if constexpr (!kConverts<T>) {
    // Rows far apart fall into few sets of the first-level cache and evict one another, which
    // matters as soon as several register tiles read the panel.
    const bool crowded = tokens > 2 * kRows && weight.row * int64_t(sizeof(T)) > 1024;
    if (weight.column == 1 && width % kLanes<S> == 0 && !crowded) {
      pitch = weight.row;
      return from;
    }
  }
  pitch = ceil_div(width, kLanes<S>) * kLanes<S>;
  if (weight.column == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < width; ++j) buffer[k * pitch + j] = widen(from[k * weight.row + j]);
    }
  } else {
    for (int64_t j = 0; j < width; ++j) {
      const T* source = from + j * weight.column;
      for (int64_t k = 0; k < depth; ++k) buffer[k * pitch + j] = widen(source[k * weight.row]);
    }
  }
  if (width < pitch) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = width; j < pitch; ++j) buffer[k * pitch + j] = 0;
    }
  }
  return buffer;
}

// One slice of a product: sums of `depth` terms for all tokens of a block and one column panel.
template <class T>
void slice(int64_t tokens, const Sum<T>* const* rows, int64_t offset, int64_t step,
           const Matrix<T>& weight, int64_t row, int64_t depth, int64_t column, int64_t width,
           Sum<T>* buffer, Target<T> to) {
  using S = Sum<T>;
  int64_t pitch = 0;
  const S* panel =
      weight_panel<T>(weight, row, depth, column, width, tokens, buffer, pitch);
  to.width = width;
  switch (ceil_div(width, kLanes<S>)) {
    case 1: return all_tokens<T, 1>(tokens, depth, rows, offset, step, panel, pitch, to);
    case 2: return all_tokens<T, 2>(tokens, depth, rows, offset, step, panel, pitch, to);
    default: return all_tokens<T, 3>(tokens, depth, rows, offset, step, panel, pitch, to);
  }
}

template <class T>
struct Problem {
  const T* hidden;
  int64_t tokens, inner, hidden_outer, hidden_inner, hidden_column;
  int64_t model, rank, columns;
  Matrix<T> down, up[2];
  T* out;

  const T* token(int64_t n) const {
    return hidden + (n / inner) * hidden_outer + (n % inner) * hidden_inner;
  }
  int64_t latent_pitch() const { return ceil_div(rank, kLanes<Sum<T>>) * kLanes<Sum<T>>; }
  int64_t weight_bytes() const { return (model * rank + 2 * rank * columns) * int64_t(sizeof(T)); }
};

// Scratch of one thread, in elements.
template <class T>
constexpr int64_t kScratch = kDepth * kPanel<Sum<T>>          // weights, packed
                             + kBlockTokens * kPanel<Sum<T>>  // sums between slices
                             + (kConverts<T> ? kBlockTokens * kDepth : 0);  // tokens, converted

// One thread's share of a token block: the column panels `member`, `member + members`, ...
template <class T>
struct Share {
  const Problem<T>& problem;
  int64_t start, tokens, member, members;
  Sum<T>* latent;
  Sum<T>* scratch;

  void down() const {
    using S = Sum<T>;
    S* converted = scratch + kDepth * kPanel<S> + kBlockTokens * kPanel<S>;
    const S* rows[kBlockTokens];
    const int64_t slices = std::max<int64_t>(1, ceil_div(problem.model, kDepth));
    for (int64_t s = 0; s < slices; ++s) {
      const int64_t first = s * kDepth, depth = std::min(kDepth, problem.model - first);
      int64_t offset = 0, step = 1;
      if constexpr (kConverts<T>) {
        for (int64_t n = 0; n < tokens; ++n) {
          const T* from = problem.token(start + n) + first * problem.hidden_column;
          rows[n] = converted + n * kDepth;
          for (int64_t k = 0; k < depth; ++k)
            converted[n * kDepth + k] = widen(from[k * problem.hidden_column]);
        }
      } else {
        offset = first * problem.hidden_column;
        step = problem.hidden_column;
        for (int64_t n = 0; n < tokens && s == 0; ++n) rows[n] = problem.token(start + n);
      }
      for (int64_t c = member * kPanel<S>; c < problem.rank; c += members * kPanel<S>) {
        const int64_t pitch = problem.latent_pitch();
        const Target<T> to{latent + c, pitch, s == 0, nullptr, 0, 0};
        slice<T>(tokens, rows, offset, step, problem.down, first, depth, c,
                 std::min<int64_t>(kPanel<S>, problem.rank - c), scratch, to);
      }
    }
  }

  void up() const {
    using S = Sum<T>;
    S* carry = scratch + kDepth * kPanel<S>;
    const S* rows[kBlockTokens];
    for (int64_t n = 0; n < tokens; ++n) rows[n] = latent + n * problem.latent_pitch();
    const int64_t panels = ceil_div(problem.columns, kPanel<S>);
    const int64_t slices = std::max<int64_t>(1, ceil_div(problem.rank, kDepth));
    for (int64_t p = member; p < 2 * panels; p += members) {
      const int64_t half = p / panels, c = (p % panels) * kPanel<S>;
      T* out = problem.out + (2 * start + half) * problem.columns + c;
      for (int64_t s = 0; s < slices; ++s) {
        const int64_t first = s * kDepth, depth = std::min(kDepth, problem.rank - first);
        const Target<T> to{carry,   kPanel<S>,           s == 0, s + 1 == slices ? out : nullptr,
                           2 * problem.columns, 0};
        slice<T>(tokens, rows, first, 1, problem.up[half], first, depth, c,
                 std::min<int64_t>(kPanel<S>, problem.columns - c), scratch, to);
      }
    }
  }
};

// 0, or 1 where the scratch memory cannot be had.
template <class T>
int solve(const Problem<T>& problem, int64_t threads) {
  using S = Sum<T>;
  const int64_t work = problem.tokens * problem.rank * (problem.model + 2 * problem.columns);
  const int64_t team = work < kSerialWork ? 1 : std::max<int64_t>(1, threads);
  const int64_t share = ceil_div(ceil_div(problem.tokens, team), kRows) * kRows;
  // With few tokens per thread it is the weights that cost: then every thread takes some columns
  // of all tokens, and each weight is read by one thread.
  const bool together =
      team > 1 && share < 32 && problem.weight_bytes() > kPrivateWeightBytes;
  const int64_t block =
      std::min(kBlockTokens, together ? problem.tokens : std::max<int64_t>(share, kRows));
  const int64_t blocks = ceil_div(problem.tokens, block);
  const int64_t latents = ceil_div(block * problem.latent_pitch(), 16) * 16;
  const int64_t count = team * kScratch<T> + (together ? 1 : team) * latents;
  const int64_t bytes = ceil_div(count * int64_t(sizeof(S)), 64) * 64;
  S* memory = static_cast<S*>(std::aligned_alloc(64, size_t(bytes)));
  if (memory == nullptr) return 1;
#pragma omp parallel num_threads(int(team)) if (team > 1)
  {
    const int64_t id = omp_get_thread_num(), members = omp_get_num_threads();
    S* scratch = memory + id * kScratch<T>;
    S* latent = memory + team * kScratch<T> + (together ? 0 : id * latents);
    for (int64_t b = together ? 0 : id; b < blocks; b += together ? 1 : members) {
      const int64_t start = b * block, tokens = std::min(block, problem.tokens - start);
      const Share<T> mine{problem, start, tokens, together ? id : 0, together ? members : 1,
                          latent, scratch};
      mine.down();
      if (together) {
#pragma omp barrier
      }
      mine.up();
      if (together) {
#pragma omp barrier
      }
    }
  }
  std::free(memory);
  return 0;
}

template <class T>
int entry(const void* hidden, const void* down, const void* up_k, const void* up_v, void* out,
          const int64_t* n, int64_t threads) {
  const Problem<T> problem{static_cast<const T*>(hidden),
                           n[0], n[1], n[2], n[3], n[4],
                           n[5], n[6], n[7],
                           {static_cast<const T*>(down), n[8], n[9]},
                           {{static_cast<const T*>(up_k), n[10], n[11]},
                            {static_cast<const T*>(up_v), n[12], n[13]}},
                           static_cast<T*>(out)};
  return solve(problem, threads);
}

}  // namespace

// `layout`: tokens, tokens per outer step; element strides of hidden for the outer step, the token
// and the model axis; model, rank and column counts; row and column strides of w_down, w_up_k and
// w_up_v. `out` is contiguous (tokens, 2, columns). Returns 0, or 1 when out of memory.
#define KERNELPROOF_MLA_KV(NAME, TYPE)                                                           \
  extern "C" int NAME(const void* hidden, const void* down, const void* up_k, const void* up_v, \
                      void* out, const int64_t* layout, int64_t threads) {                      \
    return entry<TYPE>(hidden, down, up_k, up_v, out, layout, threads);                         \
  }

KERNELPROOF_MLA_KV(mla_kv_float32, float)
KERNELPROOF_MLA_KV(mla_kv_float64, double)
KERNELPROOF_MLA_KV(mla_kv_float16, Half)
KERNELPROOF_MLA_KV(mla_kv_bfloat16, Bfloat16)
