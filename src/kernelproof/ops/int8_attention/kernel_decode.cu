// A few int8 queries against a long int8 cache: what counts is that every byte of the cache is read
// once, and that enough reads are under way at any time. For sm_80 and later.
//
// Queries of all heads that share a key head are stacked into rows (row i is query i / group of head
// i % group), in tiles of 8. A warp takes one key head and steps of 16 keys; its own ring of buffers
// in shared memory is filled by asynchronous copies that run STAGES - 1 steps ahead, so warps wait
// for no other warp before they are done. The HEADS warps of a block that read neighbouring key heads
// at the same keys read neighbouring memory at about the same time.
//
// Scores are (rows) x (keys), so a lane holds those of row g with keys 2t, 2t + 1, 2t + 8, 2t + 9:
// just what the second product, values^T (columns x keys) times probabilities^T (keys x rows), wants
// of its right operand. Nothing is exchanged between lanes, and 8 rows cost half of 16.
//
// Accuracy. As in kernel_general.cu, but the score that exponents refer to moves only when another
// exceeds it by 2^ROOM; likewise the unit of the weights p * v_scale, where values have scales.

#include "form.cuh"

constexpr int DECODE_WARPS = 8;
constexpr int STEP = 16;     // keys of a step
constexpr float ROOM = 5.0f; // probabilities reach 2^(10 + ROOM), which fp16 holds
constexpr float LARGEST_WEIGHT = 32768.0f, SMALLEST_UNIT = 1e-37f;

template <int DIM>
struct Step {
    static constexpr int PIECES = DIM / 16;       // of 16 bytes in a row, and lanes that copy it
    static constexpr int OPERAND = STEP * DIM;    // bytes of the keys, or of the values
    static constexpr int BYTES = 2 * OPERAND + 128;  // and a scale of each
    static constexpr int STAGES = DIM == 64 ? 12 : 3;
    static constexpr int K_PIECES = DIM / 64;     // that a lane takes of a key
    static constexpr int V_PIECES = DIM / 128 > 0 ? DIM / 128 : 1;
    static constexpr int V_WORDS = DIM / 128 > 0 ? 4 : 2;  // of each
};

// Addresses in shared memory are 32 bits wide here: what a lane adds to that of a buffer is known
// before the loop.
template <int BYTES>
__device__ __forceinline__ void load_at(u32* to, u32 address) {
    if constexpr (BYTES == 16) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
    } else {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address)
                     : "memory");
    }
}

__device__ __forceinline__ void copy_to(u32 address, const i8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// Where a piece of a row lies in its buffer: the lanes of one access fall on different banks.
template <int DIM>
__device__ __forceinline__ int piece_at(int row, int piece) {
    const int turned = DIM == 64 ? piece ^ (row >> 1 & 3) : piece ^ (row & 7);
    return row * DIM + turned * 16;
}

// From an address of piece_at to that of the same piece `rows` rows further on, which is right where
// the row's number and `rows` have no bit in common, or where `rows` is a multiple of 8.
template <int DIM>
__device__ __forceinline__ u32 rows_on(u32 address, int rows) {
    return DIM == 64 ? address + rows * DIM : (address ^ (rows & 7) * 16) + rows * DIM;
}

// Pieces of a key that lane t takes, the same of a query.
template <int DIM>
__device__ __forceinline__ int key_piece(int i, int t) {
    return DIM == 64 ? t : 2 * t + (i & 1) + 8 * (i >> 1);
}

// The cache of one sequence and key head.
struct Cache {
    const i8 *k, *v;
    const float* scale;              // of keys for lanes 0 to 15, of values for the others, or null
    i64 scale_batch, scale_block;
    int scale_tokens;                // of one scale
    const int* table;                // this sequence's row
    int last;                        // key
    int shift;                       // of the page size, -1 where it is no power of two
    bool whole;                      // steps never cross pages
    const i8 *k_lane, *v_lane;       // k and v, and what this lane copies first of a step
};

template <bool PAGED>
__device__ __forceinline__ Place place_in(const Form& f, const Cache& cache, int key) {
    if constexpr (PAGED) {
        const u32 page = cache.shift >= 0
                             ? static_cast<u32>(key) >> cache.shift
                             : static_cast<u32>(key) / static_cast<u32>(f.kv_len);
        return {__ldg(cache.table + page), key - static_cast<int>(page * static_cast<u32>(f.kv_len))};
    } else {
        return {0, key};  // the batch is in the pointers
    }
}

// Token strides fit into 31 bits.
template <bool PAGED>
__device__ __forceinline__ i64 offset_of(const Place& p, i64 batch, i64 token) {
    const i64 within = static_cast<i64>(static_cast<int>(p.token)) * static_cast<int>(token);
    return PAGED ? p.batch * batch + within : within;
}

// Starts the copies of one step that lies within the cache, and in one page. k, v: what this lane
// copies first, and `to` where to.
template <int DIM>
__device__ __forceinline__ void fetch_whole(u32 to, const i8* k, const i8* v, const Form& f) {
    constexpr int PIECES = Step<DIM>::PIECES, COPIES = STEP * PIECES / 32, ROWS = 32 / PIECES;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const u32 at = rows_on<DIM>(to, i * ROWS);
        copy_to(at, k);
        copy_to(at + Step<DIM>::OPERAND, v);
        k += ROWS * static_cast<int>(f.k_token);
        v += ROWS * static_cast<int>(f.v_token);
    }
}

// The same of any step. Keys past the last are copies of it, masked later.
template <int DIM, bool PAGED>
__device__ __forceinline__ void fetch_any(u32 to, const Form& f, const Cache& cache, int step,
                                          int lane) {
    constexpr int PIECES = Step<DIM>::PIECES;
#pragma unroll 1
    for (int i = lane; i < STEP * PIECES; i += 32) {
        const int row = i / PIECES, piece = i % PIECES;
        const Place p = place_in<PAGED>(f, cache, min(step * STEP + row, cache.last));
        const u32 at = to + piece_at<DIM>(row, piece);
        copy_to(at, cache.k + offset_of<PAGED>(p, f.k_batch, f.k_token) + 16 * piece);
        copy_to(at + Step<DIM>::OPERAND,
                cache.v + offset_of<PAGED>(p, f.v_batch, f.v_token) + 16 * piece);
    }
}

template <int DIM, bool PAGED>
__device__ __forceinline__ void fetch_step(u32 to, const Form& f, const Cache& cache, int step,
                                           int lane, u32 copied) {
    if (!cache.whole || step * STEP + STEP - 1 > cache.last) {
        fetch_any<DIM, PAGED>(to, f, cache, step, lane);
        return;
    }
    const Place p = place_in<PAGED>(f, cache, step * STEP);
    fetch_whole<DIM>(to + copied, cache.k_lane + offset_of<PAGED>(p, f.k_batch, f.k_token),
                     cache.v_lane + offset_of<PAGED>(p, f.v_batch, f.v_token), f);
}

// Key n (of four) of lane t.
__device__ __forceinline__ int own_key(int step, int n, int t) {
    return step * STEP + (n >> 1) * 8 + 2 * t + (n & 1);
}

struct Scales {
    float k[4], v[4];  // of this lane's keys
};

// Starts the copies of a step's scales, one for each lane.
template <int DIM, bool PAGED>
__device__ __forceinline__ void fetch_scales(u32 to, const Cache& cache, const Form& f, int step,
                                             int lane) {
    if (cache.scale == nullptr) return;
    const Place p = place_in<PAGED>(f, cache, min(step * STEP + (lane & 15), cache.last));
    const int token = static_cast<int>(p.token);
    const i64 block = cache.scale_tokens == 1 ? token : token / cache.scale_tokens;
    const float* from = cache.scale + p.batch * cache.scale_batch + block * cache.scale_block;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     to + 2 * Step<DIM>::OPERAND + 4 * lane), "l"(from) : "memory");
}

template <int DIM>
__device__ __forceinline__ void load_scales(Scales& s, const Form& f, u32 buffer, int t) {
    u32 words[8];
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_at<8>(&words[2 * i], buffer + 2 * Step<DIM>::OPERAND + 32 * i + 8 * t);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        s.k[n] = f.keys_scaled ? __uint_as_float(words[n]) : 1.0f;
        s.v[n] = f.values_scaled ? __uint_as_float(words[4 + n]) : 1.0f;
    }
}

// Of a lane: row g of each tile, and of the output^T the rows 2t, 2t + 1 of each tile.
template <int DIM, int TILES>
struct Rows {
    u32 query[TILES + TILES % 2][DIM / 16];  // zeros in what pads a pair of tiles
    float c[TILES], sign[TILES];
    int limit[TILES];  // last visible key
    float m[TILES];    // what exponents refer to: a product of score and key scale
    float l[TILES];    // this lane's part of the sum of probabilities
    float unit[TILES], inverse[TILES];  // of the output, where values have scales
    float o[DIM / 16][TILES][4];  // [0], [1]: one column of rows 2t, 2t + 1; [2], [3]: the next
};

// Products of scores and key scales, as pairs (x, low) where keys have scales.
template <int DIM, int TILES, bool SCALED>
__device__ __forceinline__ void score_step(float (&x)[TILES][4], float (&low)[TILES][4],
                                           const Rows<DIM, TILES>& rows, const Scales& scales,
                                           u32 keys) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 k[DIM / 16];
#pragma unroll
        for (int i = 0; i < Step<DIM>::K_PIECES; i++)
            // Pieces 2t and 2t + 1, and those eight further on.
            load_at<16>(&k[4 * i], (keys ^ (i & 1) * 16) + (i >> 1) * 128 + 8 * j * DIM);
#pragma unroll
        for (int pair = 0; pair < (TILES + 1) / 2; pair++) {
            int d[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
            constexpr bool BOTH = TILES > 1;
#pragma unroll
            for (int i = 0; i < DIM / 32; i++)
                mma_s8(d, rows.query[2 * pair][2 * i], rows.query[2 * pair + 1][2 * i],
                       rows.query[2 * pair][2 * i + 1], rows.query[2 * pair + 1][2 * i + 1],
                       k[2 * i], k[2 * i + 1]);
#pragma unroll
            for (int e = 0; e < (BOTH ? 4 : 2); e++) {
                const int tile = 2 * pair + (e >> 1), n = 2 * j + (e & 1);
                const float score = (__int_as_float(d[e]) - 12582912.0f) * rows.sign[tile];
                if constexpr (SCALED) {
                    x[tile][n] = __fmul_rn(score, scales.k[n]);
                    // An infinite product stays one: infinity minus itself would be NaN.
                    low[tile][n] = fabsf(x[tile][n]) < infinity()
                                       ? fmaf(score, scales.k[n], -x[tile][n]) : 0.0f;
                } else {
                    x[tile][n] = score;
                }
            }
        }
    }
}

// Probabilities (times PROBABILITY_SCALE), and weights of the values in units of the output. Returns
// whether something exceeds what fp16 may hold, so that the references have to move first.
template <int DIM, int TILES, bool SCALED, bool MASK>
__device__ __forceinline__ bool weigh(float (&p)[TILES][4], float (&y)[TILES][4],
                                      const float (&x)[TILES][4], const float (&low)[TILES][4],
                                      const Rows<DIM, TILES>& rows, const Scales& scales, int step,
                                      int t) {
    bool beyond = false;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const bool seen = !MASK || own_key(step, n, t) <= rows.limit[tile];
            float z = x[tile][n] - rows.m[tile];
            if (SCALED) z += low[tile][n];
            z *= rows.c[tile];
            // NaN, too: nothing was seen before, or a scale is NaN.
            beyond = beyond || (seen && !(z <= ROOM));
            p[tile][n] = seen ? exp2_fast(z) * PROBABILITY_SCALE : 0.0f;
            if constexpr (SCALED) {
                y[tile][n] = seen ? p[tile][n] * scales.v[n] * rows.inverse[tile] : 0.0f;
                beyond = beyond || !(fabsf(y[tile][n]) <= LARGEST_WEIGHT);
            } else {
                y[tile][n] = p[tile][n];
            }
        }
    }
    return beyond;
}

// The references become the largest seen so far, and earlier sums are brought to them.
template <int DIM, int TILES, bool SCALED, bool MASK>
__device__ __forceinline__ void move_references(Rows<DIM, TILES>& rows, const float (&x)[TILES][4],
                                                const float (&low)[TILES][4], const Scales& scales,
                                                int step, int t) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        float top = rows.m[tile];
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (!MASK || own_key(step, n, t) <= rows.limit[tile]) top = fmaxf(top, x[tile][n]);
        top = group_max(top);
        // Nothing seen so far: nothing to rescale either.
        float factor = rows.m[tile] == minus_infinity()
                           ? 0.0f : exp2_fast((rows.m[tile] - top) * rows.c[tile]);
        rows.m[tile] = top;
        rows.l[tile] *= factor;
        if constexpr (SCALED) {
            float largest = 0.0f;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const bool seen = !MASK || own_key(step, n, t) <= rows.limit[tile];
                const float p = exp2_fast(((x[tile][n] - top) + low[tile][n]) * rows.c[tile]);
                const float weight = fabsf(p * scales.v[n]);
                if (seen && weight < infinity()) largest = fmaxf(largest, weight);
            }
            const float before = factor * rows.unit[tile];
            rows.unit[tile] = fmaxf(fmaxf(group_max(largest), before), SMALLEST_UNIT);
            rows.inverse[tile] = 1.0f / rows.unit[tile];
            factor = before / rows.unit[tile];
        }
        // Rows 2t and 2t + 1 are those of the lanes with that g.
        const float first = __shfl_sync(~0u, factor, 8 * t), second = __shfl_sync(~0u, factor, 8 * t + 4);
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
#pragma unroll
            for (int n = 0; n < 4; n++) rows.o[i][tile][n] *= n & 1 ? second : first;
    }
}

template <int DIM, int TILES, bool STRICT>
__device__ __forceinline__ void add_values(Rows<DIM, TILES>& rows, const float (&y)[TILES][4],
                                           u32 values) {
    u32 high[TILES][2], low[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float a = y[tile][2 * j], b = y[tile][2 * j + 1];
            const __half2 rounded = __floats2half2_rn(a, b);
            high[tile][j] = as_bits(rounded);
            if constexpr (STRICT) {
                const float2 back = __half22float2(rounded);
                // What is infinite stays so: infinity minus itself would be NaN.
                low[tile][j] = as_bits(__floats2half2_rn(
                    fabsf(a) < infinity() ? a - back.x : 0.0f,
                    fabsf(b) < infinity() ? b - back.y : 0.0f));
            }
        }
    constexpr int WORDS = Step<DIM>::V_WORDS;
#pragma unroll
    for (int i = 0; i < Step<DIM>::V_PIECES; i++) {
        u32 v[4][WORDS];
#pragma unroll
        for (int n = 0; n < 4; n++)
            load_at<4 * WORDS>(v[n], rows_on<DIM>(values, (n >> 1) * 8 + (n & 1)) + 128 * i);
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            u32 b[4][2];
            value_pairs(b, v[0][w], v[1][w], v[2][w], v[3][w]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 a[4] = {b[2 * half][0], b[2 * half + 1][0], b[2 * half][1],
                                  b[2 * half + 1][1]};
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    float(&o)[4] = rows.o[(i * WORDS + w) * 2 + half][tile];
                    if constexpr (STRICT) {
                        // From zero: tensor cores truncate sums, which would add up.
                        float d[4] = {};
                        mma_f16(d, a, low[tile][0], low[tile][1]);
                        mma_f16(d, a, high[tile][0], high[tile][1]);
#pragma unroll
                        for (int n = 0; n < 4; n++) o[n] += d[n];
                    } else {
                        mma_f16(o, a, high[tile][0], high[tile][1]);
                    }
                }
            }
        }
    }
}

template <int DIM, int TILES, bool STRICT, bool SCALED, bool MASK>
__device__ __forceinline__ void take_step(Rows<DIM, TILES>& rows, const Scales& scales,
                                          u32 keys, u32 values, int step, int t) {
    float x[TILES][4], low[TILES][4], p[TILES][4], y[TILES][4];
    score_step<DIM, TILES, SCALED>(x, low, rows, scales, keys);
    const bool beyond = weigh<DIM, TILES, SCALED, MASK>(p, y, x, low, rows, scales, step, t);
    if (__any_sync(~0u, beyond)) {
        move_references<DIM, TILES, SCALED, MASK>(rows, x, low, scales, step, t);
        weigh<DIM, TILES, SCALED, MASK>(p, y, x, low, rows, scales, step, t);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        rows.l[tile] += (p[tile][0] + p[tile][1]) + (p[tile][2] + p[tile][3]);
    add_values<DIM, TILES, STRICT>(rows, y, values);
}

// Shared memory after the last step: of each warp the rows of its output, then maximum, sum and
// factor of each.
template <int DIM, int TILES>
struct Ends {
    static constexpr int ROWS = 8 * TILES, PITCH = DIM + 4, FACTS = ROWS * PITCH;
    static constexpr int FLOATS = FACTS + 4 * ROWS;
};

template <int DIM, int TILES, bool SCALED>
__device__ __forceinline__ void share_rows(float* own, const Rows<DIM, TILES>& rows, int g, int t) {
    constexpr int PITCH = Ends<DIM, TILES>::PITCH, WORDS = Step<DIM>::V_WORDS;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const float unit = SCALED ? rows.unit[tile] : 1.0f;
        const float units[2] = {__shfl_sync(~0u, unit, 8 * t), __shfl_sync(~0u, unit, 8 * t + 4)};
#pragma unroll
        for (int w = 0; w < DIM / 32; w++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float(&a)[4] = rows.o[2 * w][tile];
                const float(&b)[4] = rows.o[2 * w + 1][tile];
                const int column = DIM == 64 ? 8 * g + 4 * w
                                             : w / WORDS * 128 + 16 * g + w % WORDS * 4;
                *reinterpret_cast<float4*>(&own[(8 * tile + 2 * t + r) * PITCH + column]) =
                    make_float4(a[r] * units[r], a[r + 2] * units[r], b[r] * units[r],
                                b[r + 2] * units[r]);
            }
        const float sum = group_sum(rows.l[tile]);
        if (t == 0)
            *reinterpret_cast<float4*>(&own[Ends<DIM, TILES>::FACTS + 4 * (8 * tile + g)]) =
                make_float4(rows.m[tile], sum, rows.c[tile], 0.0f);
    }
}

// grid: key heads / HEADS x splits x sequences x tiles in one axis, block 32 * DECODE_WARPS. `tiles`
// and parts: as of attend_general. DIM: 64, 128 or 256, all rows aligned to 16 bytes. 8 * TILES rows.
// SCALED: keys or values have scales of their own. HEADS: key heads of a block, a divisor of
// DECODE_WARPS; warps of the same one take steps in turn.
template <int DIM, int TILES, bool STRICT, bool SCALED, bool PAGED, int HEADS>
__global__ void __launch_bounds__(32 * DECODE_WARPS)
attend_decode(const i8* q, const i8* k, const i8* v, const float* q_scale, const float* k_scale,
              const float* v_scale, void* out, float* lse, float* parts, int splits, i64 tiles,
              FORM_PARAMETERS) {
    extern __shared__ __align__(128) i8 memory[];
    constexpr int STAGES = Step<DIM>::STAGES, SHARE = DECODE_WARPS / HEADS;
    const Form f = {FORM_ARGUMENTS};
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    wait_for_previous_kernel();
    // Divisions of 32 bits, which take a fraction of the time of others; blocks are counted by them.
    const u32 own_heads = static_cast<u32>(group);
    const u32 head_groups = static_cast<u32>(heads) / own_heads / HEADS;
    u32 index = blockIdx.x;
    const i64 first_head = index % head_groups * HEADS, head = first_head + warp % HEADS;
    index /= head_groups;
    const int split = static_cast<int>(index % static_cast<u32>(splits));
    index /= static_cast<u32>(splits);
    const i64 sequence = index % static_cast<u32>(sequences);
    const int first = static_cast<int>(index / static_cast<u32>(sequences)) * 8 * TILES;
    const Span span = span_of(f, sequence);
    const int count = static_cast<int>(span.q_len * group), keys = static_cast<int>(span.keys);
    const int late = keys - static_cast<int>(span.q_len);

    constexpr int PIECES = Step<DIM>::PIECES;
    const bool of_keys = lane < 16;
    Cache cache = {};
    cache.k = k + head * k_head;
    cache.v = v + head * v_head;
    if (of_keys && keys_scaled) cache.scale = k_scale + head * ks_head;
    if (!of_keys && values_scaled) cache.scale = v_scale + head * vs_head;
    cache.scale_batch = of_keys ? ks_batch : vs_batch;
    cache.scale_block = of_keys ? ks_block : vs_block;
    cache.scale_tokens = of_keys ? k_block : v_block;
    cache.last = keys - 1;
    cache.shift = -1;
    cache.whole = true;
    if constexpr (PAGED) {
        cache.table = table + span.batch * pages;
        const int page = static_cast<int>(kv_len);
        if ((page & (page - 1)) == 0) cache.shift = 31 - __clz(page);
        cache.whole = page % STEP == 0;
    } else {
        cache.k += span.batch * k_batch;
        cache.v += span.batch * v_batch;
        if (cache.scale != nullptr) cache.scale += span.batch * cache.scale_batch;
    }
    cache.k_lane = cache.k + lane / PIECES * k_token + 16 * (lane % PIECES);
    cache.v_lane = cache.v + lane / PIECES * v_token + 16 * (lane % PIECES);
    const int last_own = static_cast<u32>(min(first + 8 * TILES - 1, count - 1)) / own_heads;
    const int visible = causal ? max(0, min(keys, last_own + late + 1)) : keys;
    const int steps = (visible + STEP - 1) / STEP, chunk = (steps + splits - 1) / splits;
    const int end = min(steps, (split + 1) * chunk);
    int step = split * chunk + warp / HEADS;

    constexpr u32 BYTES = Step<DIM>::BYTES;
    const u32 ring = static_cast<u32>(__cvta_generic_to_shared(memory)) + warp * STAGES * BYTES;
    // Where this lane's copies, keys and values of a buffer begin.
    u32 copied = piece_at<DIM>(lane / PIECES, lane % PIECES);
    u32 keys_at = piece_at<DIM>(g, key_piece<DIM>(0, t));
    u32 values_at = Step<DIM>::OPERAND + piece_at<DIM>(2 * t, DIM == 64 ? g >> 1 : g) +
                    (DIM == 64 ? 8 * (g & 1) : 0);
    asm volatile("" : "+r"(copied), "+r"(keys_at), "+r"(values_at));  // not computed again
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (step + s * SHARE < end) {
            fetch_step<DIM, PAGED>(ring + s * BYTES, f, cache, step + s * SHARE, lane, copied);
            if (SCALED) fetch_scales<DIM, PAGED>(ring + s * BYTES, cache, f, step + s * SHARE, lane);
        }
        commit_copies();  // an empty group counts too
    }
    Rows<DIM, TILES> rows;
    int all_see = keys - 1;  // last key that all rows see
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        // Rows past the end are read as the last row, and not written.
        const u32 row = min(first + 8 * n + g, count - 1);
        const int own = row / own_heads;
        const i64 token = span.q_first + own, row_head = head * group + row % own_heads;
        const i8* from = q + span.batch * q_batch + token * q_token + row_head * q_head;
#pragma unroll
        for (int i = 0; i < Step<DIM>::K_PIECES; i++)
            load_global<16>(&rows.query[n][4 * i], from + 16 * key_piece<DIM>(i, t));
        float signed_factor = factor * __ldg(q_scale + span.batch * qs_batch +
                                             static_cast<u32>(token) / static_cast<u32>(q_block) * qs_block +
                                             row_head * qs_head);
        if (!keys_scaled) signed_factor *= __ldg(k_scale + head * ks_head);
        rows.c[n] = capped(signed_factor);
        rows.sign[n] = signed_factor < 0.0f ? -1.0f : 1.0f;
        rows.limit[n] = causal ? min(keys - 1, own + late) : keys - 1;
        rows.m[n] = minus_infinity();
        rows.l[n] = 0.0f;
        rows.unit[n] = SMALLEST_UNIT;
        rows.inverse[n] = 1.0f / SMALLEST_UNIT;
    }
    if constexpr (TILES % 2 == 1)
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) asm volatile("mov.u32 %0, 0;" : "=r"(rows.query[TILES][i]));
    if (causal) all_see = min(all_see, static_cast<int>(static_cast<u32>(first) / own_heads) + late);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rows.o[i][n][e] = 0.0f;

    u32 buffer = ring, refilled = ring + (STAGES - 1) * BYTES;
    for (; step < end; step += SHARE) {
        wait_copies<STAGES - 2>();
        __syncwarp();  // every lane's copies have arrived, and the buffer of the last step is free
        const int ahead = step + (STAGES - 1) * SHARE;
        if (ahead < end) {
            fetch_step<DIM, PAGED>(refilled, f, cache, ahead, lane, copied);
            if (SCALED) fetch_scales<DIM, PAGED>(refilled, cache, f, ahead, lane);
        }
        commit_copies();
        Scales scales = {};
        if (SCALED) load_scales<DIM>(scales, f, buffer, t);
        if (step * STEP + STEP - 1 <= all_see)
            take_step<DIM, TILES, STRICT, SCALED, false>(rows, scales, buffer + keys_at, buffer + values_at, step,
                                                              t);
        else
            take_step<DIM, TILES, STRICT, SCALED, true>(rows, scales, buffer + keys_at, buffer + values_at, step,
                                                              t);
        buffer = buffer + BYTES == ring + STAGES * BYTES ? ring : buffer + BYTES;
        refilled = refilled + BYTES == ring + STAGES * BYTES ? ring : refilled + BYTES;
    }
    let_next_kernel_start();
    __syncthreads();  // all buffers are free

    using E = Ends<DIM, TILES>;
    float* const shared = reinterpret_cast<float*>(memory);
    share_rows<DIM, TILES, SCALED>(shared + warp * E::FLOATS, rows, g, t);
    __syncthreads();
#pragma unroll 1
    for (int n = warp; n < HEADS * min(E::ROWS, count - first); n += DECODE_WARPS) {
        const i64 of_head = first_head + n % HEADS;
        const int local = n / HEADS, row = first + local;
        const float* const own = shared + n % HEADS * E::FLOATS;
        const float* const facts = own + E::FACTS + 4 * local;  // of the first warp of the head
        float top = minus_infinity(), sum = 0.0f;
        const float c = facts[2];
#pragma unroll
        for (int w = 0; w < SHARE; w++) top = fmaxf(top, facts[w * HEADS * E::FLOATS]);
        float weight[SHARE];
#pragma unroll
        for (int w = 0; w < SHARE; w++) {
            weight[w] = part_weight(facts[w * HEADS * E::FLOATS], top, c);
            sum = fmaf(facts[w * HEADS * E::FLOATS + 1], weight[w], sum);
        }
        const i64 token = span.q_first + static_cast<u32>(row) / own_heads;
        const i64 place = (span.batch * q_len + token) * heads + of_head * group +
                          static_cast<u32>(row) % own_heads;
        float* const part = parts == nullptr ? nullptr : parts + (place * splits + split) * (DIM + 3);
        const float last_scale = values_scaled ? 1.0f : __ldg(v_scale + of_head * vs_head);
        // A sum of exactly 0 means that no key was visible: such rows are zeros by definition.
        const float last = sum == 0.0f ? 0.0f : last_scale / sum;
#pragma unroll
        for (int column = lane; column < DIM; column += 32) {
            float y = 0.0f;
#pragma unroll
            for (int w = 0; w < SHARE; w++)
                y = fmaf(own[w * HEADS * E::FLOATS + local * E::PITCH + column], weight[w], y);
            if (parts != nullptr)
                part[column] = y;
            else
                write_out(out, place * DIM + column, sum == 0.0f ? 0.0f : y * last, out_kind);
        }
        if (lane > 0) continue;
        if (parts != nullptr) {
            part[DIM] = top;
            part[DIM + 1] = sum;
            part[DIM + 2] = c;
        } else if (lse != nullptr) {
            lse[place] = row_lse(top, c, sum * (1.0f / PROBABILITY_SCALE));
        }
    }
}
