// Attention on int8 tensors with one scale per head, for CPUs.
//
// One task = one key head of one batch element and a tile of query rows. The query heads that share
// the key head are stacked into the rows (row i is query i / group of head i % group), so that a
// tile reads each key once for all of them. Keys come in blocks of KEY_BLOCK: packed, multiplied,
// soft-maxed online, and multiplied with the values.
//
// Accuracy: scores are exact int32, so the difference to the row's maximum is exact too, and its
// product with the (positive) factor c is the only rounding before the exponential. Each key block
// is summed from zero and then added to the running output, so that the rounding error grows with
// the root of the number of blocks and not of keys.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVXVNNI__)
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

// What the caller passes, packed without gaps: fields of 8 bytes only. Strides count elements; the
// innermost one is 1.
struct Problem {
    const int8_t *q, *k, *v;
    const float *q_scale, *k_scale, *v_scale;
    float* out;  // contiguous (batch, q_len, heads, dim)
    int64_t batch, q_len, heads, dim, kv_len, kv_heads;
    int64_t q_strides[3], k_strides[3], v_strides[3];  // batch, token, head
    int64_t causal;
    double scale;
};
static_assert(sizeof(Problem) == 24 * 8, "the caller packs 24 fields of 8 bytes");

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

// Four int8 products per lane, or one fp32 product where the CPU has no such instruction.
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

// What one thread needs for a tile; all pointers into one aligned allocation.
struct Scratch {
    word* queries;   // [ROW_TILE][words]
    word* keys;      // [KEY_BLOCK / VL][words][VL]
    float* values;   // [KEY_BLOCK][padded_dim]
    int32_t* scores; // [ROW_TILE][KEY_BLOCK], probabilities (float) after the softmax
    float* out;      // [ROW_TILE][padded_dim], not yet divided by the row sums
};

struct Rows {
    int count;
    int visible[ROW_TILE];  // keys that the row sees in the present block
    int32_t bias[ROW_TILE];
    int32_t maximum[ROW_TILE];
    float factor[ROW_TILE];  // scores times this are exponents of 2; positive
    float sum[ROW_TILE];
    float alpha[ROW_TILE];   // rescales what was summed before the present block
    bool negative[ROW_TILE]; // the scales' product is negative: scores change sign
    bool started[ROW_TILE];  // the row has seen a key
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
    const int64_t sizes[5] = {ROW_TILE * words, block * words, block * padded, ROW_TILE * block,
                              ROW_TILE * padded};
    int64_t offsets[6] = {0};
    for (int i = 0; i < 5; ++i) offsets[i + 1] = offsets[i] + round_up(sizes[i] * 4, 64);
    if (!buffer.reserve(static_cast<size_t>(offsets[5]))) return false;
    char* base = static_cast<char*>(buffer.data);
    s.queries = reinterpret_cast<word*>(base + offsets[0]);
    s.keys = reinterpret_cast<word*>(base + offsets[1]);
    s.values = reinterpret_cast<float*>(base + offsets[2]);
    s.scores = reinterpret_cast<int32_t*>(base + offsets[3]);
    s.out = reinterpret_cast<float*>(base + offsets[4]);
    return true;
}

void pack_queries(const Problem& p, int64_t b, int64_t kv_head, int64_t first, Scratch& s,
                  Rows& rows) {
    const int64_t group = p.heads / p.kv_heads, words = (p.dim + STEP - 1) / STEP;
    for (int r = 0; r < rows.count; ++r) {
        const int64_t t = (first + r) / group, head = kv_head * group + (first + r) % group;
        const int8_t* q =
            p.q + b * p.q_strides[0] + t * p.q_strides[1] + head * p.q_strides[2];
        int32_t sum = 0;
        for (int64_t d = 0; d < p.dim; ++d) sum += q[d];
        word* to = s.queries + r * words;
        for (int64_t w = 0; w < p.dim / STEP; ++w) to[w] = pack_query(q + w * STEP);
        if (p.dim % STEP) to[words - 1] = pack_query_end(q + (words - 1) * STEP, p.dim % STEP);
        const double factor = static_cast<double>(p.q_scale[head]) * p.k_scale[kv_head] * p.scale *
                              1.4426950408889634;  // log2(e)
        // Capped, because 0 * infinity at the maximum itself would be NaN; at the cap a score one
        // below the maximum already has the probability 0. A NaN stays.
        const double magnitude = std::fabs(factor) > 1e30 ? 1e30 : std::fabs(factor);
        rows.factor[r] = static_cast<float>(magnitude);
        rows.negative[r] = factor < 0;
        rows.bias[r] = sum * 128;
        rows.maximum[r] = INT32_MIN;
        rows.started[r] = false;
        rows.sum[r] = 0.0f;
    }
}

void pack_keys(const Problem& p, const int8_t* k, int64_t count, word* packed) {
    const int64_t words = (p.dim + STEP - 1) / STEP;
    for (int64_t key = 0; key < round_up(count, VL); ++key) {
        word* to = packed + key / VL * words * VL + key % VL;
        const int8_t* from = k + key * p.k_strides[1];
        if (key >= count) {  // never read as a score; written so that nothing is uninitialised
            for (int64_t w = 0; w < words; ++w) to[w * VL] = 0;
            continue;
        }
        for (int64_t w = 0; w < p.dim / STEP; ++w) to[w * VL] = pack_key(from + w * STEP);
        if (p.dim % STEP)
            to[(words - 1) * VL] = pack_key_end(from + (words - 1) * STEP, p.dim % STEP);
    }
}

void convert_values(const Problem& p, const int8_t* v, int64_t count, float* values) {
    const int64_t padded = round_up(p.dim, VL), whole = p.dim / VL * VL;
    for (int64_t key = 0; key < count; ++key) {
        const int8_t* from = v + key * p.v_strides[1];
        float* to = values + key * padded;
        for (int64_t d = 0; d < whole; d += VL)
#pragma omp simd
            for (int i = 0; i < VL; ++i) to[d + i] = from[d + i];
        for (int64_t d = whole; d < padded; ++d) to[d] = d < p.dim ? from[d] : 0.0f;
    }
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

int64_t visible_keys(const Problem& p, int64_t t) {
    if (!p.causal) return p.kv_len;
    const int64_t n = p.kv_len - p.q_len + t + 1;
    return n < 0 ? 0 : n;
}

void write_rows(const Problem& p, int64_t b, int64_t kv_head, int64_t first, const Scratch& s,
                const Rows& rows) {
    const int64_t group = p.heads / p.kv_heads, padded = round_up(p.dim, VL);
    for (int r = 0; r < rows.count; ++r) {
        const int64_t t = (first + r) / group, head = kv_head * group + (first + r) % group;
        float* to = p.out + ((b * p.q_len + t) * p.heads + head) * p.dim;
        const float* from = s.out + r * padded;
        const float factor = rows.started[r] ? p.v_scale[kv_head] / rows.sum[r] : 0.0f;
        for (int64_t d = 0; d < p.dim; ++d) to[d] = rows.started[r] ? from[d] * factor : 0.0f;
    }
}

void run_tile(const Problem& p, int64_t b, int64_t kv_head, int64_t first, int count, Scratch& s) {
    const int64_t group = p.heads / p.kv_heads;
    const int64_t words = (p.dim + STEP - 1) / STEP, padded = round_up(p.dim, VL);
    const int64_t block = key_block(p.dim);
    Rows rows;
    rows.count = count;
    pack_queries(p, b, kv_head, first, s, rows);
    std::memset(s.out, 0, sizeof(float) * count * padded);
    const int64_t keys = visible_keys(p, (first + count - 1) / group);
    const int8_t* k = p.k + b * p.k_strides[0] + kv_head * p.k_strides[2];
    const int8_t* v = p.v + b * p.v_strides[0] + kv_head * p.v_strides[2];
    for (int64_t start = 0; start < keys; start += block) {
        const int64_t size = keys - start < block ? keys - start : block;
        const int64_t end = round_up(size, VL);
        for (int r = 0; r < count; ++r) {
            const int64_t n = visible_keys(p, (first + r) / group) - start;
            rows.visible[r] = static_cast<int>(n < 0 ? 0 : n < size ? n : size);
        }
        pack_keys(p, k + start * p.k_strides[1], size, s.keys);
        convert_values(p, v + start * p.v_strides[1], size, s.values);
        by_register_tiles(count, ScoreTile{s, rows, words, block, end / VL});
        for (int r = 0; r < count; ++r) {
            if (rows.visible[r] > 0 || rows.started[r])
                softmax_row(s.scores + r * block, rows, r, end);
            else {
                rows.alpha[r] = 0.0f;
                std::memset(s.scores + r * block, 0, sizeof(float) * end);
            }
        }
        by_register_tiles(count, ValueTile{s, rows, block, padded});
    }
    write_rows(p, b, kv_head, first, s, rows);
}

}  // namespace

// Returns 0, or 1 where memory ran out. No size is 0.
extern "C" int kernelproof_int8_attention(const void* packed) {
    Problem p;
    std::memcpy(&p, packed, sizeof p);
    const int64_t rows = p.heads / p.kv_heads * p.q_len;
    const int64_t tiles = (rows + ROW_TILE - 1) / ROW_TILE, per_tile = (rows + tiles - 1) / tiles;
    const int64_t pairs = p.batch * p.kv_heads, tasks = pairs * tiles;
    // Waking the other threads costs about as much as 2^17 products.
    const bool parallel = tasks > 1 && p.batch * p.heads * p.q_len * p.kv_len * p.dim > 131072;
    int failed = 0;
#pragma omp parallel if (parallel) reduction(| : failed)
    {
        Scratch scratch;
        const bool ready = make_scratch(p, scratch);
        if (!ready) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            // Under the causal mask the last tile is the longest; it goes first.
            const int64_t tile = tiles - 1 - task / pairs, pair = task % pairs;
            const int64_t first = tile * per_tile;
            const int64_t count = rows - first < per_tile ? rows - first : per_tile;
            if (ready && count > 0)
                run_tile(p, pair / p.kv_heads, pair % p.kv_heads, first, static_cast<int>(count),
                         scratch);
        }
    }
    return failed;
}
