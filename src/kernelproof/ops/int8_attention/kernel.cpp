// Attention on int8 queries and keys and int8 or fp16 values, with float scales, for CPUs.
//
// One task = one key head of one sequence, a tile of query rows and a range of keys. The query heads
// that share the key head are stacked into the rows (row i is query i / group of head i % group), so
// that a tile reads each key once for all of them. Keys come in blocks of KEY_BLOCK: packed,
// multiplied, soft-maxed online, and multiplied with the values. Where there is one tile only, the
// keys are split in ranges of SPLIT_KEYS, whose results are merged in their order.
//
// Accuracy: scores are exact int32, so the difference to the row's maximum is exact too, and its
// product with the (positive) factor c is the only rounding before the exponential. With scales per
// key the product of score and scale is kept as a pair of floats, to the same effect. Each key block
// is summed from zero and then added to the running output, so that the rounding error grows with
// the root of the number of blocks and not of keys.
//
// The instruction set is the compiler's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int VL = 16;  // 32-bit lanes of one vector
#elif defined(__AVX__)
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif

typedef float vfloat __attribute__((vector_size(VL * 4), may_alias));
typedef int32_t vint __attribute__((vector_size(VL * 4), may_alias));

constexpr int KEY_BLOCK = 128;  // keys per block; scores of a tile stay in the first-level cache
constexpr int ROW_TILE = 64;    // query rows per task at most
constexpr int WIDE_HEAD = 512;  // above this head dimension the key block shrinks to one vector
constexpr int64_t SPLIT_KEYS = 2048;  // of one task, where there is one tile of rows; 16 blocks
constexpr double LOG2_E = 1.4426950408889634;

enum OutKind { OUT_FLOAT, OUT_BFLOAT, OUT_HALF };

// What the caller passes, packed without gaps: fields of 8 bytes only. Strides count elements.
// Scales per head have strides of 0 for batch and block.
struct Problem {
    const int8_t *q, *k;
    const void* v;
    const float *q_scale, *k_scale, *v_scale;
    void* out;   // contiguous (batch, q_len, heads, dim)
    float* lse;  // contiguous (batch, q_len, heads), or null
    const int32_t *cu_q, *cu_k, *kv_lens, *table;  // contiguous, or null
    int64_t batch, q_len, heads, dim, kv_len, kv_heads;  // with a table, kv_len is that of a page
    int64_t q_strides[4], k_strides[4], v_strides[4];  // batch (or page), token, head, innermost
    int64_t q_scale_strides[3], k_scale_strides[3], v_scale_strides[3];  // batch, block, head
    int64_t blocks[3];                                 // tokens per scale, of q, k, v
    int64_t keys_scaled, values_scaled;  // whether these have scales per token or block
    int64_t sequences, pages_per_sequence, v_half, out_kind, causal;
    double scale;
};
static_assert(sizeof(Problem) == 50 * 8, "the caller packs 50 fields of 8 bytes");

inline vfloat splat(float x) { return x - vfloat{}; }
inline vint splat(int32_t x) { return x - vint{}; }

template <class V, class T>
inline V load(const T* p) {
    return *reinterpret_cast<const V*>(p);
}

template <class V, class T>
inline void store(T* p, V x) {
    *reinterpret_cast<V*>(p) = x;
}

// a b + c with one rounding, on every instruction set.
inline vfloat fused(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < VL; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

// Four int8 products per lane, or two of int16, or one fp32 product where the CPU has no such
// instruction.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define KERNELPROOF_DOT4 1
inline vint dot4(vint acc, vint keys, int32_t query) {
    return (vint)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)keys, _mm512_set1_epi32(query));
}
#elif !defined(__AVX512F__) && defined(__AVXVNNI__)
#define KERNELPROOF_DOT4 1
inline vint dot4(vint acc, vint keys, int32_t query) {
    return (vint)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)keys, _mm256_set1_epi32(query));
}
#elif defined(__AVX512F__) && defined(__AVX512BW__)
#define KERNELPROOF_DOT2 1
inline vint dot2(vint acc, vint keys, int32_t query) {
    return acc + (vint)_mm512_madd_epi16((__m512i)keys, _mm512_set1_epi32(query));
}
#elif !defined(__AVX512F__) && defined(__AVX2__)
#define KERNELPROOF_DOT2 1
inline vint dot2(vint acc, vint keys, int32_t query) {
    return acc + (vint)_mm256_madd_epi16((__m256i)keys, _mm256_set1_epi32(query));
}
#endif

#ifdef KERNELPROOF_DOT4

constexpr int STEP = 4;  // elements of the head dimension in one packed word
typedef int32_t word;

// The instruction multiplies unsigned by signed: keys are biased by 128 here, and the rows' sums
// take the bias out again.
constexpr word KEY_BIAS = static_cast<word>(0x80808080u);

inline word pack_query(const int8_t* p) {
    word w;
    std::memcpy(&w, p, 4);
    return w;
}

inline word pack_key(const int8_t* p) { return pack_query(p) ^ KEY_BIAS; }

// The last, incomplete word of a row. Where a key's bytes are missing the query's are zero.
inline word pack_query_end(const int8_t* p, int64_t left) {
    word w = 0;
    for (int64_t i = 0; i < left; ++i)
        w |= static_cast<word>(static_cast<uint32_t>(static_cast<uint8_t>(p[i])) << (8 * i));
    return w;
}

inline word pack_key_end(const int8_t* p, int64_t left) {
    return pack_query_end(p, left) ^ KEY_BIAS;
}

// scores[r][0..VL) of ROWS rows; `bias[r]` is 128 times the sum of row r's query.
template <int ROWS>
inline void dot_rows(const word* queries, const word* keys, const int32_t* bias, int64_t words,
                     vint* result) {
    for (int r = 0; r < ROWS; ++r) result[r] = splat(-bias[r]);
    for (int64_t d = 0; d < words; ++d) {
        const vint key = load<vint>(keys + d * VL);
        for (int r = 0; r < ROWS; ++r) result[r] = dot4(result[r], key, queries[r * words + d]);
    }
}

#elif defined(KERNELPROOF_DOT2)

constexpr int STEP = 2;
typedef int32_t word;

inline word pair(int32_t low, int32_t high) {
    return static_cast<word>((static_cast<uint32_t>(high) << 16) | (static_cast<uint32_t>(low) & 0xffff));
}

inline word pack_query(const int8_t* p) { return pair(p[0], p[1]); }
inline word pack_key(const int8_t* p) { return pair(p[0], p[1]); }
inline word pack_query_end(const int8_t* p, int64_t) { return pair(p[0], 0); }
inline word pack_key_end(const int8_t* p, int64_t) { return pair(p[0], 0); }

template <int ROWS>
inline void dot_rows(const word* queries, const word* keys, const int32_t*, int64_t words,
                     vint* result) {
    for (int r = 0; r < ROWS; ++r) result[r] = vint{};
    for (int64_t d = 0; d < words; ++d) {
        const vint key = load<vint>(keys + d * VL);
        for (int r = 0; r < ROWS; ++r) result[r] = dot2(result[r], key, queries[r * words + d]);
    }
}

#else

constexpr int STEP = 1;
typedef float word;

inline word pack_query(const int8_t* p) { return static_cast<float>(*p); }
inline word pack_key(const int8_t* p) { return static_cast<float>(*p); }
inline word pack_query_end(const int8_t*, int64_t) { return 0.0f; }  // words are never incomplete
inline word pack_key_end(const int8_t*, int64_t) { return 0.0f; }

// fp32 holds sums of up to 1024 products of two int8 exactly (2^24), hence the chunks of 512.
template <int ROWS>
inline void dot_rows(const word* queries, const word* keys, const int32_t*, int64_t words,
                     vint* result) {
    for (int r = 0; r < ROWS; ++r) result[r] = vint{};
    for (int64_t start = 0; start < words; start += 512) {
        const int64_t end = start + 512 < words ? start + 512 : words;
        vfloat sum[ROWS] = {};
        for (int64_t d = start; d < end; ++d) {
            const vfloat key = load<vfloat>(keys + d * VL);
            for (int r = 0; r < ROWS; ++r) sum[r] += key * queries[r * words + d];
        }
        for (int r = 0; r < ROWS; ++r) result[r] += __builtin_convertvector(sum[r], vint);
    }
}

#endif

// 2^t for t <= 0, relative error about 1e-7; 0 below -126.5; NaN stays NaN.
inline vfloat exp2_vector(vfloat t) {
    t = t < splat(-127.0f) ? splat(-127.0f) : t;
    const vfloat magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const vfloat shifted = t + magic;
    const vfloat f = t - (shifted - magic);  // in [-0.5, 0.5]
    // Minimax polynomial of Cephes' exp2f.
    vfloat p = splat(1.535336188319500e-4f);
    p = p * f + 1.339887440266574e-3f;
    p = p * f + 9.618437357674640e-3f;
    p = p * f + 5.550332471162809e-2f;
    p = p * f + 2.402264791363012e-1f;
    p = p * f + 6.931472028550421e-1f;
    p = p * f + 1.0f;
    const vint exponent = ((vint)shifted + (127 - 0x4B400000)) << 23;
    return p * (vfloat)exponent;
}

#if defined(__AVX512F__)
inline float sum_lanes(vfloat x) { return _mm512_reduce_add_ps((__m512)x); }
inline int32_t max_lanes(vint x) { return _mm512_reduce_max_epi32((__m512i)x); }
#else
inline float sum_lanes(vfloat x) {
    float lanes[VL];
    std::memcpy(lanes, &x, sizeof lanes);
    for (int n = VL / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
    return lanes[0];
}

inline int32_t max_lanes(vint x) {
    int32_t top = x[0];
    for (int i = 1; i < VL; ++i) top = x[i] > top ? x[i] : top;
    return top;
}
#endif

// ---- 16-bit floats ----

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, mantissa = h & 0x3ff;
    const uint32_t exponent = (h >> 10) & 31;
    uint32_t bits;
    if (exponent == 0) {
        const float f = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
    bits |= sign;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
    if (bits < 0x38800000) {  // below 2^-14: subnormal; the sum rounds to its last place
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
}

inline uint16_t float_to_bfloat(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- one tile ----

// What one thread needs for a tile; all pointers into one aligned allocation.
struct Scratch {
    word* queries;   // [ROW_TILE][words]
    word* keys;      // [KEY_BLOCK / VL][words][VL]
    float* values;   // [KEY_BLOCK][padded_dim]
    int32_t* scores; // [ROW_TILE][KEY_BLOCK], probabilities (float) after the softmax
    float* out;      // [ROW_TILE][padded_dim], not yet divided by the row sums
    char* row;       // one row of q, k or v, where its elements are not neighbours
};

// Where the keys of one block are, and their scales.
struct Keys {
    const int8_t* key[KEY_BLOCK];
    const char* value[KEY_BLOCK];
    alignas(64) float key_scale[KEY_BLOCK];
    float value_scale[KEY_BLOCK];
};

struct Rows {
    int count;
    int visible[ROW_TILE];  // keys that the row sees in the present block
    int32_t bias[ROW_TILE];
    int32_t maximum[ROW_TILE];  // of the scores
    float top[ROW_TILE];        // of the scores times the keys' scales, where those differ
    float factor[ROW_TILE];  // scores times this are exponents of 2; positive
    float sum[ROW_TILE];
    float alpha[ROW_TILE];   // rescales what was summed before the present block
    bool negative[ROW_TILE]; // the scales' product is negative: scores change sign
    bool started[ROW_TILE];  // the row has seen a key
};

// One sequence: where its tokens are, and how many.
struct Span {
    int64_t batch, q_first, q_len, k_first, kv_len;
};

struct Task {
    Span span;
    int64_t kv_head, first;  // first row
    int64_t begin, end;      // keys
    int64_t part;            // first row of its part, or -1: it writes the output itself
    int count;               // rows
};

// One row of a part: its output is relative to the maximum `top`.
struct PartRow {
    double top;
    float sum, factor;
    bool started;
};

inline int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

int64_t key_block(int64_t dim) { return dim > WIDE_HEAD ? VL : KEY_BLOCK; }

// Kept between calls: a fresh allocation of this size costs page faults every time.
struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(data); }
    bool reserve(size_t bytes) {
        if (bytes <= size) return true;
        std::free(data);
        size = 0;
        data = std::aligned_alloc(64, round_up(bytes, 64));
        if (data == nullptr) return false;
        size = bytes;
        return true;
    }
};

bool make_scratch(const Problem& p, Scratch& s) {
    static thread_local Buffer buffer;
    const int64_t words = (p.dim + STEP - 1) / STEP, padded = round_up(p.dim, VL);
    const int64_t block = key_block(p.dim);
    const int64_t sizes[6] = {ROW_TILE * words, block * words, block * padded, ROW_TILE * block,
                              ROW_TILE * padded, padded};
    int64_t offsets[7] = {0};
    for (int i = 0; i < 6; ++i) offsets[i + 1] = offsets[i] + round_up(sizes[i] * 4, 64);
    if (!buffer.reserve(static_cast<size_t>(offsets[6]))) return false;
    char* base = static_cast<char*>(buffer.data);
    s.queries = reinterpret_cast<word*>(base + offsets[0]);
    s.keys = reinterpret_cast<word*>(base + offsets[1]);
    s.values = reinterpret_cast<float*>(base + offsets[2]);
    s.scores = reinterpret_cast<int32_t*>(base + offsets[3]);
    s.out = reinterpret_cast<float*>(base + offsets[4]);
    s.row = base + offsets[5];
    return true;
}

int64_t visible_keys(const Problem& p, const Span& span, int64_t t) {
    if (!p.causal) return span.kv_len;
    const int64_t n = span.kv_len - span.q_len + t + 1;
    return n < 0 ? 0 : n;
}

// Where the scale of a token is. Divisions are what costs here, and most calls need none.
inline int64_t scale_at(int64_t batch, int64_t token, int64_t head, int64_t block,
                        const int64_t (&strides)[3]) {
    const int64_t number = block == 1 || strides[1] == 0 ? token : token / block;
    return batch * strides[0] + number * strides[1] + head * strides[2];
}

// `from` itself where its `dim` elements are neighbours, else a copy of them in `room`.
template <class T>
inline const T* gathered(const T* from, int64_t stride, int64_t dim, char* room) {
    if (stride == 1) return from;
    T* to = reinterpret_cast<T*>(room);
    for (int64_t d = 0; d < dim; ++d) to[d] = from[d * stride];
    return to;
}

void pack_queries(const Problem& p, const Task& task, Scratch& s, Rows& rows) {
    const int64_t group = p.heads / p.kv_heads, words = (p.dim + STEP - 1) / STEP;
    const int64_t b = task.span.batch;
    for (int r = 0; r < rows.count; ++r) {
        const int64_t token = task.span.q_first + (task.first + r) / group;
        const int64_t head = task.kv_head * group + (task.first + r) % group;
        const int8_t* q = gathered(
            p.q + b * p.q_strides[0] + token * p.q_strides[1] + head * p.q_strides[2],
            p.q_strides[3], p.dim, s.row);
        int32_t sum = 0;
        for (int64_t d = 0; d < p.dim; ++d) sum += q[d];
        word* to = s.queries + r * words;
        for (int64_t w = 0; w < p.dim / STEP; ++w) to[w] = pack_query(q + w * STEP);
        if (p.dim % STEP) to[words - 1] = pack_query_end(q + (words - 1) * STEP, p.dim % STEP);
        double factor = p.q_scale[scale_at(b, token, head, p.blocks[0], p.q_scale_strides)];
        if (!p.keys_scaled) factor *= p.k_scale[task.kv_head * p.k_scale_strides[2]];
        factor *= p.scale * LOG2_E;
        // Capped, because 0 * infinity at the maximum itself would be NaN; at the cap a score one
        // below the maximum already has the probability 0. A NaN stays.
        const double magnitude = std::fabs(factor) > 1e30 ? 1e30 : std::fabs(factor);
        rows.factor[r] = static_cast<float>(magnitude);
        rows.negative[r] = factor < 0;
        rows.bias[r] = sum * 128;
        rows.maximum[r] = INT32_MIN;
        rows.top[r] = -INFINITY;
        rows.started[r] = false;
        rows.sum[r] = 0.0f;
    }
}

// Looks up `count` keys from `start` on; the rest of the last vector gets the scale 0.
void find_keys(const Problem& p, const Task& task, int64_t start, int64_t count, Keys& keys) {
    const int64_t bytes = p.v_half ? 2 : 1;
    const char* v = static_cast<const char*>(p.v);
    if (p.table == nullptr && !p.keys_scaled && !p.values_scaled) {
        const int64_t b = task.span.batch, first = task.span.k_first + start;
        const int8_t* key = p.k + b * p.k_strides[0] + first * p.k_strides[1] +
                            task.kv_head * p.k_strides[2];
        v += bytes * (b * p.v_strides[0] + first * p.v_strides[1] + task.kv_head * p.v_strides[2]);
        for (int64_t i = 0; i < count; ++i) keys.key[i] = key + i * p.k_strides[1];
        for (int64_t i = 0; i < count; ++i) keys.value[i] = v + i * bytes * p.v_strides[1];
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        int64_t b = task.span.batch, token = task.span.k_first + start + i;
        if (p.table != nullptr) {
            b = p.table[b * p.pages_per_sequence + token / p.kv_len];
            token %= p.kv_len;
        }
        keys.key[i] = p.k + b * p.k_strides[0] + token * p.k_strides[1] +
                      task.kv_head * p.k_strides[2];
        keys.value[i] = v + bytes * (b * p.v_strides[0] + token * p.v_strides[1] +
                                     task.kv_head * p.v_strides[2]);
        if (p.keys_scaled)
            keys.key_scale[i] =
                p.k_scale[scale_at(b, token, task.kv_head, p.blocks[1], p.k_scale_strides)];
        if (p.values_scaled)
            keys.value_scale[i] =
                p.v_scale[scale_at(b, token, task.kv_head, p.blocks[2], p.v_scale_strides)];
    }
    if (p.keys_scaled)
        for (int64_t i = count; i < round_up(count, VL); ++i) keys.key_scale[i] = 0.0f;
}

void pack_keys(const Problem& p, const Keys& keys, int64_t count, word* packed, char* room) {
    const int64_t words = (p.dim + STEP - 1) / STEP;
    for (int64_t key = 0; key < round_up(count, VL); ++key) {
        word* to = packed + key / VL * words * VL + key % VL;
        if (key >= count) {  // never read as a score; written so that nothing is uninitialised
            for (int64_t w = 0; w < words; ++w) to[w * VL] = 0;
            continue;
        }
        const int8_t* from = gathered(keys.key[key], p.k_strides[3], p.dim, room);
        for (int64_t w = 0; w < p.dim / STEP; ++w) to[w * VL] = pack_key(from + w * STEP);
        if (p.dim % STEP)
            to[(words - 1) * VL] = pack_key_end(from + (words - 1) * STEP, p.dim % STEP);
    }
}

inline void widen_values(const int8_t* from, int64_t dim, float* to) {
    const int64_t whole = dim / VL * VL;
    for (int64_t d = 0; d < whole; d += VL)
#pragma omp simd
        for (int i = 0; i < VL; ++i) to[d + i] = from[d + i];
    for (int64_t d = whole; d < dim; ++d) to[d] = from[d];
}

inline void widen_values(const uint16_t* from, int64_t dim, float* to) {
    int64_t d = 0;
#if defined(__AVX512F__)
    for (; d + 16 <= dim; d += 16) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d));
        _mm512_storeu_ps(to + d, _mm512_cvtph_ps(bits));
    }
#elif defined(__F16C__)
    for (; d + 8 <= dim; d += 8) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + d));
        _mm256_storeu_ps(to + d, _mm256_cvtph_ps(bits));
    }
#endif
    for (; d < dim; ++d) to[d] = half_to_float(from[d]);
}

// Returns whether all values are finite.
bool convert_values(const Problem& p, const Keys& keys, int64_t count, float* values, char* room) {
    const int64_t padded = round_up(p.dim, VL);
    vfloat nothing = {};
    for (int64_t key = 0; key < count; ++key) {
        float* to = values + key * padded;
        if (p.v_half)
            widen_values(gathered(reinterpret_cast<const uint16_t*>(keys.value[key]),
                                  p.v_strides[3], p.dim, room), p.dim, to);
        else
            widen_values(gathered(reinterpret_cast<const int8_t*>(keys.value[key]), p.v_strides[3],
                                  p.dim, room), p.dim, to);
        if (p.values_scaled) {
            const float scale = keys.value_scale[key];
            for (int64_t d = 0; d < p.dim; ++d) to[d] *= scale;
        }
        for (int64_t d = p.dim; d < padded; ++d) to[d] = 0.0f;
        if (p.v_half || p.values_scaled)
            for (int64_t d = 0; d < padded; d += VL) nothing += load<vfloat>(to + d) * 0.0f;
    }
    return sum_lanes(nothing) == 0.0f;
}

template <int ROWS>
void score_rows(const Scratch& s, const Rows& rows, int first, int64_t words, int64_t block,
                int64_t groups) {
    for (int64_t g = 0; g < groups; ++g) {
        vint result[ROWS];
        dot_rows<ROWS>(s.queries + first * words, s.keys + g * words * VL, rows.bias + first, words,
                       result);
        for (int r = 0; r < ROWS; ++r)
            store(s.scores + (first + r) * block + g * VL,
                  rows.negative[first + r] ? -result[r] : result[r]);
    }
}

// Scores of one row become probabilities relative to the row's running maximum; zeros up to `end`.
void softmax_row(int32_t* scores, Rows& rows, int r, int64_t end) {
    const int visible = rows.visible[r];
    vint lanes;
    for (int i = 0; i < VL; ++i) lanes[i] = i;
    vint top = splat(INT32_MIN);
    for (int64_t j = 0; j < visible; j += VL) {
        vint x = load<vint>(scores + j);
        x = lanes < splat(static_cast<int32_t>(visible - j)) ? x : splat(INT32_MIN);
        top = x > top ? x : top;
    }
    const int32_t block_maximum = max_lanes(top);
    const int32_t maximum = block_maximum > rows.maximum[r] ? block_maximum : rows.maximum[r];
    const float c = rows.factor[r];
    rows.alpha[r] = 0.0f;
    if (rows.started[r])
        rows.alpha[r] = exp2_vector(splat(static_cast<float>(rows.maximum[r] - maximum) * c))[0];
    rows.maximum[r] = maximum;
    rows.started[r] = rows.started[r] || visible > 0;
    vfloat sum = {};
    int64_t j = 0;
    for (; j < visible; j += VL) {
        const vint x = load<vint>(scores + j) - maximum;
        vfloat p = exp2_vector(__builtin_convertvector(x, vfloat) * c);
        p = lanes < splat(static_cast<int32_t>(visible - j)) ? p : vfloat{};
        sum += p;
        store(scores + j, p);
    }
    for (; j < end; j += VL) store(scores + j, vfloat{});
    rows.sum[r] = rows.sum[r] * rows.alpha[r] + sum_lanes(sum);
}

// The same where keys have scales of their own. Score times scale is the pair hi + lo, so that only
// the difference to the maximum, which is small where it matters, is rounded.
void softmax_scaled_row(int32_t* scores, const float* scales, Rows& rows, int r, int64_t end) {
    const int visible = rows.visible[r];
    vint lanes;
    for (int i = 0; i < VL; ++i) lanes[i] = i;
    vfloat tops = splat(-INFINITY);
    for (int64_t j = 0; j < visible; j += VL) {
        vfloat x = __builtin_convertvector(load<vint>(scores + j), vfloat) * load<vfloat>(scales + j);
        x = lanes < splat(static_cast<int32_t>(visible - j)) ? x : splat(-INFINITY);
        tops = x > tops ? x : tops;
    }
    float top = rows.top[r];
    for (int i = 0; i < VL; ++i) top = tops[i] > top ? tops[i] : top;
    // Where all are NaN, any finite maximum will do.
    if (top == -INFINITY) top = 0.0f;
    const float c = rows.factor[r];
    rows.alpha[r] = 0.0f;
    if (rows.started[r]) rows.alpha[r] = exp2_vector(splat((rows.top[r] - top) * c))[0];
    rows.top[r] = top;
    rows.started[r] = rows.started[r] || visible > 0;
    vfloat sum = {};
    int64_t j = 0;
    for (; j < visible; j += VL) {
        const vint score = load<vint>(scores + j);
        const vfloat whole = __builtin_convertvector(score, vfloat), scale = load<vfloat>(scales + j);
        // Above 2^24 the conversion rounds.
        const vint left = score - __builtin_convertvector(whole, vint);
        const vfloat hi = whole * scale;
        vfloat lo = fused(whole, scale, -hi);
        lo = fused(__builtin_convertvector(left, vfloat), scale, lo);
        // An infinite product stays one: infinity minus itself would be NaN.
        lo = hi - hi == vfloat{} ? lo : vfloat{};
        vfloat p = exp2_vector(((hi - top) + lo) * c);
        p = lanes < splat(static_cast<int32_t>(visible - j)) ? p : vfloat{};
        sum += p;
        store(scores + j, p);
    }
    for (; j < end; j += VL) store(scores + j, vfloat{});
    rows.sum[r] = rows.sum[r] * rows.alpha[r] + sum_lanes(sum);
}

// out[row] = out[row] * alpha + probabilities[row] @ values, for VECTORS vectors of columns.
template <int ROWS, int VECTORS>
inline void value_panel(const float* probabilities, const float* values, const float* alpha,
                        float* out, int64_t block, int64_t padded, int64_t keys) {
    vfloat acc[ROWS][VECTORS] = {};
    for (int64_t j = 0; j < keys; ++j) {
        vfloat value[VECTORS];
        for (int n = 0; n < VECTORS; ++n) value[n] = load<vfloat>(values + j * padded + n * VL);
        for (int r = 0; r < ROWS; ++r)
            for (int n = 0; n < VECTORS; ++n) acc[r][n] += value[n] * probabilities[r * block + j];
    }
    for (int r = 0; r < ROWS; ++r)
        for (int n = 0; n < VECTORS; ++n) {
            float* to = out + r * padded + n * VL;
            store(to, load<vfloat>(to) * alpha[r] + acc[r][n]);
        }
}

template <int ROWS>
void value_rows(const Scratch& s, const Rows& rows, int first, int64_t block, int64_t padded) {
    int keys = 0;
    for (int r = 0; r < ROWS; ++r)
        keys = rows.visible[first + r] > keys ? rows.visible[first + r] : keys;
    const float* p = reinterpret_cast<const float*>(s.scores) + first * block;
    float* out = s.out + first * padded;
    const float* alpha = rows.alpha + first;
    int64_t d = 0;
    for (; d + 2 * VL <= padded; d += 2 * VL)
        value_panel<ROWS, 2>(p, s.values + d, alpha, out + d, block, padded, keys);
    if (d < padded) value_panel<ROWS, 1>(p, s.values + d, alpha, out + d, block, padded, keys);
}

// The same for blocks with a NaN or an infinity among the values: 0 times those is NaN, so rows that
// do not see the key must leave it out.
void values_singly(const Scratch& s, const Rows& rows, int64_t block, int64_t padded) {
    const float* p = reinterpret_cast<const float*>(s.scores);
    for (int r = 0; r < rows.count; ++r)
        for (int64_t d = 0; d < padded; ++d) {
            float sum = 0.0f;
            for (int j = 0; j < rows.visible[r]; ++j)
                sum += p[r * block + j] * s.values[j * padded + d];
            float& to = s.out[r * padded + d];
            to = to * rows.alpha[r] + sum;
        }
}

// f(rows in a register tile, first row) over all rows of the tile.
template <class F>
inline void by_register_tiles(int count, F f) {
    int r = 0;
    for (; r + 8 <= count; r += 8) f.template operator()<8>(r);
    if (r + 4 <= count) f.template operator()<4>(r), r += 4;
    if (r + 2 <= count) f.template operator()<2>(r), r += 2;
    if (r < count) f.template operator()<1>(r);
}

struct ScoreTile {
    const Scratch& s;
    const Rows& rows;
    int64_t words, block, groups;
    template <int ROWS>
    void operator()(int first) {
        score_rows<ROWS>(s, rows, first, words, block, groups);
    }
};

struct ValueTile {
    const Scratch& s;
    const Rows& rows;
    int64_t block, padded;
    template <int ROWS>
    void operator()(int first) {
        value_rows<ROWS>(s, rows, first, block, padded);
    }
};

// One row of the output and its logarithm of the sum of exponentials. `from` is relative to `top`.
void write_row(const Problem& p, const Task& task, int64_t row, const float* from, double top,
               float sum, float factor, bool started) {
    const int64_t group = p.heads / p.kv_heads;
    const int64_t token = task.span.q_first + row / group;
    const int64_t head = task.kv_head * group + row % group;
    const int64_t place = (task.span.batch * p.q_len + token) * p.heads + head;
    const float scale = p.values_scaled ? 1.0f : p.v_scale[task.kv_head * p.v_scale_strides[2]];
    const float y = started ? scale / sum : 0.0f;
    if (p.out_kind == OUT_FLOAT) {
        float* to = static_cast<float*>(p.out) + place * p.dim;
        for (int64_t d = 0; d < p.dim; ++d) to[d] = started ? from[d] * y : 0.0f;
    } else {
        uint16_t* to = static_cast<uint16_t*>(p.out) + place * p.dim;
        for (int64_t d = 0; d < p.dim; ++d) {
            const float x = started ? from[d] * y : 0.0f;
            to[d] = p.out_kind == OUT_HALF ? float_to_half(x) : float_to_bfloat(x);
        }
    }
    if (p.lse != nullptr)
        p.lse[place] = started ? static_cast<float>(top * factor / LOG2_E + std::log(double(sum)))
                               : -INFINITY;
}

double row_top(const Problem& p, const Rows& rows, int r) {
    return p.keys_scaled ? static_cast<double>(rows.top[r]) : static_cast<double>(rows.maximum[r]);
}

void run_tile(const Problem& p, const Task& task, Scratch& s, PartRow* part, float* part_out) {
    const int64_t group = p.heads / p.kv_heads;
    const int64_t words = (p.dim + STEP - 1) / STEP, padded = round_up(p.dim, VL);
    const int64_t block = key_block(p.dim);
    const int count = task.count;
    Rows rows;
    Keys keys;
    rows.count = count;
    pack_queries(p, task, s, rows);
    std::memset(s.out, 0, sizeof(float) * count * padded);
    const int64_t seen = visible_keys(p, task.span, (task.first + count - 1) / group);
    const int64_t last = seen < task.end ? seen : task.end;
    for (int64_t start = task.begin; start < last; start += block) {
        const int64_t size = last - start < block ? last - start : block;
        const int64_t end = round_up(size, VL);
        for (int r = 0; r < count; ++r) {
            const int64_t n = visible_keys(p, task.span, (task.first + r) / group) - start;
            rows.visible[r] = static_cast<int>(n < 0 ? 0 : n < size ? n : size);
        }
        find_keys(p, task, start, size, keys);
        pack_keys(p, keys, size, s.keys, s.row);
        const bool finite = convert_values(p, keys, size, s.values, s.row);
        by_register_tiles(count, ScoreTile{s, rows, words, block, end / VL});
        for (int r = 0; r < count; ++r) {
            if (rows.visible[r] == 0 && !rows.started[r]) {
                rows.alpha[r] = 0.0f;
                std::memset(s.scores + r * block, 0, sizeof(float) * end);
            } else if (p.keys_scaled) {
                softmax_scaled_row(s.scores + r * block, keys.key_scale, rows, r, end);
            } else {
                softmax_row(s.scores + r * block, rows, r, end);
            }
        }
        if (finite)
            by_register_tiles(count, ValueTile{s, rows, block, padded});
        else
            values_singly(s, rows, block, padded);
    }
    for (int r = 0; r < count; ++r) {
        if (part != nullptr) {
            part[r] = {row_top(p, rows, r), rows.sum[r], rows.factor[r], rows.started[r]};
            std::memcpy(part_out + r * padded, s.out + r * padded, sizeof(float) * padded);
        } else {
            write_row(p, task, task.first + r, s.out + r * padded, row_top(p, rows, r), rows.sum[r],
                      rows.factor[r], rows.started[r]);
        }
    }
}

// The parts of one tile, in their order, into `out` [padded], row by row.
void merge_parts(const Problem& p, const Task& task, int parts, const PartRow* rows,
                 const float* outs, float* out) {
    const int64_t padded = round_up(p.dim, VL);
    for (int r = 0; r < task.count; ++r) {
        double top = -INFINITY;
        bool started = false;
        for (int i = 0; i < parts; ++i) {
            const PartRow& part = rows[i * task.count + r];
            if (part.started && part.top > top) top = part.top;
            started = started || part.started;
        }
        float sum = 0.0f;
        std::fill(out, out + padded, 0.0f);
        for (int i = 0; i < parts; ++i) {
            const PartRow& part = rows[i * task.count + r];
            if (!part.started) continue;
            const float weight = static_cast<float>(std::exp2((part.top - top) * part.factor));
            sum += part.sum * weight;
            const float* from = outs + (i * task.count + r) * padded;
            for (int64_t d = 0; d < padded; ++d) out[d] += from[d] * weight;
        }
        write_row(p, task, task.first + r, out, top, sum, rows[r].factor, started);
    }
}

Span span_of(const Problem& p, int64_t sequence) {
    if (p.cu_q != nullptr)
        return {0, p.cu_q[sequence], p.cu_q[sequence + 1] - p.cu_q[sequence], p.cu_k[sequence],
                p.cu_k[sequence + 1] - p.cu_k[sequence]};
    return {sequence, 0, p.q_len, 0, p.kv_lens != nullptr ? p.kv_lens[sequence] : p.kv_len};
}

// All tasks, the longest first (under the causal mask the last tiles); returns the rows of all parts.
int64_t make_tasks(const Problem& p, std::vector<Task>& tasks) {
    const int64_t group = p.heads / p.kv_heads;
    int64_t most = 0, parts = 0;
    for (int64_t n = 0; n < p.sequences; ++n)
        most = std::max(most, (group * span_of(p, n).q_len + ROW_TILE - 1) / ROW_TILE);
    tasks.clear();
    for (int64_t tile = most - 1; tile >= 0; --tile)
        for (int64_t n = 0; n < p.sequences; ++n) {
            const Span span = span_of(p, n);
            const int64_t rows = group * span.q_len, tiles = (rows + ROW_TILE - 1) / ROW_TILE;
            if (tile >= tiles) continue;
            const int64_t per_tile = (rows + tiles - 1) / tiles, first = tile * per_tile;
            if (first >= rows) continue;
            const int count = static_cast<int>(std::min(per_tile, rows - first));
            for (int64_t head = 0; head < p.kv_heads; ++head) {
                if (tiles > 1 || span.kv_len < 2 * SPLIT_KEYS) {
                    tasks.push_back({span, head, first, 0, span.kv_len, -1, count});
                    continue;
                }
                for (int64_t begin = 0; begin < span.kv_len; begin += SPLIT_KEYS) {
                    const int64_t end = std::min(begin + SPLIT_KEYS, span.kv_len);
                    tasks.push_back({span, head, first, begin, end, parts, count});
                    parts += count;
                }
            }
        }
    return parts;
}

}  // namespace

// Returns 0, or 1 where memory ran out. No size is 0, but for lengths of sequences.
extern "C" int kernelproof_int8_attention(const void* packed) {
    Problem p;
    std::memcpy(&p, packed, sizeof p);
    static thread_local std::vector<Task> own_tasks;
    static thread_local Buffer part_buffer;
    // Named outside of the parallel region: inside, each thread would see its own.
    std::vector<Task>& tasks = own_tasks;
    const int64_t parts = make_tasks(p, tasks), padded = round_up(p.dim, VL);
    const int64_t count = static_cast<int64_t>(tasks.size());
    PartRow* part_rows = nullptr;
    float* part_outs = nullptr;
    if (parts > 0) {
        const int64_t bytes = round_up(parts * int64_t(sizeof(PartRow)), 64);
        if (!part_buffer.reserve(bytes + parts * padded * sizeof(float))) return 1;
        part_rows = static_cast<PartRow*>(part_buffer.data);
        part_outs = reinterpret_cast<float*>(static_cast<char*>(part_buffer.data) + bytes);
    }
    double work = 0;
    for (const Task& task : tasks) work += double(task.count) * (task.end - task.begin) * p.dim;
    // Waking the other threads costs about as much as 2^17 products.
    const bool parallel = count > 1 && work > 131072;
    int failed = 0;
#pragma omp parallel if (parallel) reduction(| : failed)
    {
        Scratch scratch;
        const bool ready = make_scratch(p, scratch);
        if (!ready) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < count; ++n) {
            const Task& task = tasks[n];
            if (!ready) continue;
            if (task.part < 0)
                run_tile(p, task, scratch, nullptr, nullptr);
            else
                run_tile(p, task, scratch, part_rows + task.part,
                         part_outs + task.part * padded);
        }
        if (parts > 0) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < count; ++n) {
                const Task& task = tasks[n];
                if (!ready || task.part < 0 || task.begin > 0) continue;
                const int own = static_cast<int>((task.span.kv_len + SPLIT_KEYS - 1) / SPLIT_KEYS);
                merge_parts(p, task, own, part_rows + task.part, part_outs + task.part * padded,
                            scratch.out);
            }
        }
    }
    return failed;
}

// The instruction set that this was compiled for.
extern "C" const char* kernelproof_int8_attention_target() {
#if defined(KERNELPROOF_DOT4) && defined(__AVX512F__)
    return "AVX512-VNNI";
#elif defined(KERNELPROOF_DOT4)
    return "AVX-VNNI";
#elif defined(KERNELPROOF_DOT2) && defined(__AVX512F__)
    return "AVX512 (int16 products)";
#elif defined(KERNELPROOF_DOT2)
    return "AVX2 (int16 products)";
#else
    return "plain C++ (fp32 products)";
#endif
}
