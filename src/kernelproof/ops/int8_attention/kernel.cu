// Attention on int8 tensors with one scale per head, for sm_80 and later.
//
// attend<...>: tensor cores. One block = 16 query rows of one head; its warps share out the keys in
//   steps of 16 and merge their results through shared memory at the end.
// attend_blocks: tensor cores, for long sequences. One block = 64 query rows of one head; its four
//   warps share key and value tiles in shared memory.
// Both take dense tensors with scales per head and int8 values; `attend` is strict with an fp32
// output. kernel_general.cu has everything else.
//
// Accuracy. q k^T is exact (int8 tensor cores, int32 sums), and so is the difference of a score to
// the row's maximum; its product with the (positive) factor c is the only rounding before the
// exponential. Probabilities enter the second product as fp16 pairs hi + lo (22 bits), values are
// exact in fp16. Tensor cores truncate when they accumulate, which would add up over a long
// sequence; so each step of 16 (or 64) keys is summed from zero and added to the output by an fp32 FMA.

#include "common.cuh"

// The factor on integer scores (exponents of 2), made positive. Kept within bounds that change no
// result: below 1e-20 every probability is 1 to the last bit, yet the mask value -1e30 must stay
// far below; above 1e30 infinity * 0 would be NaN. A NaN stays.
__device__ __forceinline__ float positive_factor(float c) {
    c = fabsf(c);
    c = c < 1e-20f ? 1e-20f : c;
    return c > 1e30f ? 1e30f : c;
}

constexpr float MASKED = -1e30f;
constexpr float NO_MAXIMUM = -3e7f;  // below every score (-2^24), far above MASKED

template <int DIM, bool EXACT>
__device__ __forceinline__ void load_v(u32 (&to)[DIM / 32], const i8* row, int g, int dim) {
    constexpr int VEC = Widths<DIM>::V;
#pragma unroll
    for (int i = 0; i < DIM / (8 * VEC); i++)
        load_piece<VEC, EXACT>(&to[i * VEC / 4], row, i * 8 * VEC + g * VEC, dim);
}

// The 16-key step's fragments in registers.
template <int DIM>
struct Step {
    u32 k[2][DIM / 16];  // keys g and g + 8
    u32 v[4][DIM / 32];  // values of keys 2t, 2t + 1, 2t + 8, 2t + 9
};

template <int DIM, bool EXACT>
__device__ __forceinline__ void load_keys(Step<DIM>& s, const i8* k, int k_token, int step, int last,
                                          int g, int t, int dim) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const i64 key = min(step * 16 + 8 * j + g, last);
        load_qk<DIM, EXACT>(s.k[j], k + key * k_token, t, dim);
    }
}

template <int DIM, bool EXACT>
__device__ __forceinline__ void load_values(Step<DIM>& s, const i8* v, int v_token, int step,
                                            int last, int g, int t, int dim) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
        const i64 key = min(step * 16 + (u >> 1) * 8 + 2 * t + (u & 1), last);
        load_v<DIM, EXACT>(s.v[u], v + key * v_token, g, dim);
    }
}

// Running softmax of rows g and g + 8 (index 0 and 1) over the steps of one warp.
template <int DIM>
struct State {
    float m[2];          // largest score, as the float of MAGIC
    float l[2];          // this lane's part of the sum of probabilities
    float o[DIM / 8][4]; // output tiles: [0], [1] row g, [2], [3] row g + 8
};

// Scores of 8 keys: x is (row g, keys first_key, +1) and (row g + 8, the same keys).
template <int DIM, bool MASK>
__device__ __forceinline__ void score_tile(float (&x)[4], const u32 (&q)[2][DIM / 16],
                                           const u32 (&k)[DIM / 16], float sign,
                                           const int (&limit)[2], int first_key) {
    int d[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
#pragma unroll
    for (int i = 0; i < DIM / 32; i++)
        mma_s8(d, q[0][2 * i], q[1][2 * i], q[0][2 * i + 1], q[1][2 * i + 1], k[2 * i],
               k[2 * i + 1]);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        x[e] = __int_as_float(d[e]) * sign;
        if (MASK) x[e] = first_key + (e & 1) <= limit[e >> 1] ? x[e] : MASKED;
    }
}

// One step of the running softmax over TILES tiles of 8 keys: scores become probabilities (times
// PROBABILITY_SCALE) as fp16 pairs hi + lo in the layout of the second product's left operand.
// `alpha` is what earlier sums must be multiplied with. ONLY: there are no earlier ones.
template <int TILES, bool ONLY>
__device__ __forceinline__ void softmax_step(float (&x)[TILES][4], float (&m)[2], float (&l)[2],
                                             float (&alpha)[2], u32 (&hi)[TILES / 2][4],
                                             u32 (&lo)[TILES / 2][4], float c) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(x[0][2 * r], x[0][2 * r + 1]);
#pragma unroll
        for (int j = 1; j < TILES; j++) top = fmaxf(top, fmaxf(x[j][2 * r], x[j][2 * r + 1]));
        top = fmaxf(m[r], group_max(top));
        alpha[r] = ONLY ? 0.0f : exp2_fast((m[r] - top) * c);
        m[r] = top;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++)
                x[j][e] = exp2_fast((x[j][e] - top) * c) * PROBABILITY_SCALE;
            sum += x[j][2 * r] + x[j][2 * r + 1];
        }
        l[r] = ONLY ? sum : fmaf(l[r], alpha[r], sum);
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float a = x[j][2 * r], b = x[j][2 * r + 1];
            const __half2 high = __floats2half2_rn(a, b);
            const float2 f = __half22float2(high);
            hi[j / 2][j % 2 * 2 + r] = as_bits(high);
            lo[j / 2][j % 2 * 2 + r] = as_bits(__floats2half2_rn(a - f.x, b - f.y));
        }
}

// Adds one step of 16 keys to the state. ONLY: it is the first and last one.
template <int DIM, bool ONLY>
__device__ __forceinline__ void add_step(State<DIM>& state, float (&x)[2][4], const Step<DIM>& s,
                                         float c) {
    float alpha[2];
    u32 hi[1][4], lo[1][4];
    softmax_step<2, ONLY>(x, state.m, state.l, alpha, hi, lo, c);
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        u32 b[4][2];
        value_pairs(b, s.v[0][i], s.v[1][i], s.v[2][i], s.v[3][i]);
        float d[4][4] = {};
#pragma unroll
        for (int e = 0; e < 4; e++) mma_f16(d[e], lo[0], b[e][0], b[e][1]);
#pragma unroll
        for (int e = 0; e < 4; e++) mma_f16(d[e], hi[0], b[e][0], b[e][1]);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float& o = state.o[4 * i + e][n];
                o = ONLY ? d[e][n] : fmaf(o, alpha[n >> 1], d[e][n]);
            }
    }
}

// The warps' states in shared memory: WARPS x 16 rows of outputs, then (maximum, sum) pairs.
template <int DIM>
__device__ __forceinline__ void share_state(float* shared, int warps, int warp,
                                            const State<DIM>& state, int g, int t) {
    constexpr int VEC = Widths<DIM>::V, PITCH = DIM + 4;  // the 4 spread rows over the banks
    float* rows = shared + warp * 16 * PITCH;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        // Tiles 4i .. 4i+3 are neighbouring bytes of the values' words, so neighbouring columns.
        const int column = 4 * i / VEC * 8 * VEC + 4 * i % VEC;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float4 x = make_float4(state.o[4 * i][n], state.o[4 * i + 1][n],
                                         state.o[4 * i + 2][n], state.o[4 * i + 3][n]);
            const int row = g + (n >> 1) * 8;
            *reinterpret_cast<float4*>(
                &rows[row * PITCH + column + (2 * t + (n & 1)) * VEC]) = x;
        }
    }
    float2* ends = reinterpret_cast<float2*>(shared + warps * 16 * PITCH);
    const float l0 = group_sum(state.l[0]), l1 = group_sum(state.l[1]);
    if (t == 0) {
        ends[warp * 16 + g] = make_float2(state.m[0], l0);
        ends[warp * 16 + g + 8] = make_float2(state.m[1], l1);
    }
}

// Merges the warps' states and writes 16 rows; `out` is row 0 of the tile.
template <int DIM, int WARPS, bool EXACT>
__device__ __forceinline__ void merge(const float* shared, float* out, i64 out_token, int rows,
                                      int dim, float c, float v_scale) {
    constexpr int PITCH = DIM + 4, PIECES = 16 * DIM / 4;
    const float2* ends = reinterpret_cast<const float2*>(shared + WARPS * 16 * PITCH);
#pragma unroll 1
    for (int piece = threadIdx.x; piece < PIECES; piece += WARPS * 32) {
        const int row = piece / (DIM / 4), column = piece % (DIM / 4) * 4;
        float2 end[WARPS];
        float4 part[WARPS];
        float top = NO_MAXIMUM;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            end[w] = ends[w * 16 + row];
            part[w] = *reinterpret_cast<const float4*>(
                &shared[(w * 16 + row) * PITCH + column]);
            top = fmaxf(top, end[w].x);
        }
        float sum = 0.0f;
        float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = exp2_fast((end[w].x - top) * c);
            sum = fmaf(end[w].y, weight, sum);
            y.x = fmaf(part[w].x, weight, y.x);
            y.y = fmaf(part[w].y, weight, y.y);
            y.z = fmaf(part[w].z, weight, y.z);
            y.w = fmaf(part[w].w, weight, y.w);
        }
        if (row >= rows) continue;
        float* to = out + row * out_token + column;
        const float factor = __fdividef(v_scale, sum);
        y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
        // Rows that see no key are zeros by definition, whatever the scales are.
        if (top == NO_MAXIMUM) y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if constexpr (EXACT) {
            *reinterpret_cast<float4*>(to) = y;
        } else {
            if (column < dim) to[0] = y.x;
            if (column + 1 < dim) to[1] = y.y;
            if (column + 2 < dim) to[2] = y.z;
            if (column + 3 < dim) to[3] = y.w;
        }
    }
}

// grid (16-row tiles, query heads, batch), block 32 * WARPS.
// DIM: head dimension, a multiple of 32 up to 256. EXACT: dim == DIM and all rows are aligned for
// vector loads; otherwise bytes are loaded one by one and missing columns are zeros.
// ONLY: there are at most WARPS steps, so each warp takes exactly one (or one wholly masked).
template <int DIM, int WARPS, bool EXACT, bool CAUSAL, bool GROUPED, bool ONLY>
__global__ void __launch_bounds__(32 * WARPS)
attend(const i8* q, const i8* k, const i8* v, const float* q_scale, const float* k_scale,
       const float* v_scale, float* out, int q_len, int kv_len, int dim, int group, i64 q_batch,
       i64 q_head, int q_token, i64 k_batch, i64 k_head, int k_token, i64 v_batch, i64 v_head,
       int v_token, i64 out_batch, i64 out_token, float factor) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    // Under the causal mask the last tiles are the longest; blocks start in order, so they go first.
    const int tile = ONLY ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const int head = blockIdx.y, kv_head = GROUPED ? head / group : head;
    q += blockIdx.z * q_batch + head * q_head;
    k += blockIdx.z * k_batch + kv_head * k_head;
    v += blockIdx.z * v_batch + kv_head * v_head;
    const int first = tile * 16, last_key = kv_len - 1;
    const int row[2] = {first + g, first + g + 8};
    wait_for_previous_kernel();

    // Every load is issued before anything waits, and none stands behind a branch: rows past the
    // end are read as the last row and masked later.
    u32 query[2][DIM / 16];
    Step<DIM> step;
    load_qk<DIM, EXACT>(query[0], q + static_cast<i64>(min(row[0], q_len - 1)) * q_token, t, dim);
    load_qk<DIM, EXACT>(query[1], q + static_cast<i64>(min(row[1], q_len - 1)) * q_token, t, dim);
    load_keys<DIM, EXACT>(step, k, k_token, warp, last_key, g, t, dim);
    const float scale_q = __ldg(q_scale + head), scale_k = __ldg(k_scale + kv_head);
    const float scale_v = __ldg(v_scale + kv_head);
    load_values<DIM, EXACT>(step, v, v_token, warp, last_key, g, t, dim);
    let_next_kernel_start();

    const float signed_factor = scale_q * scale_k * factor;
    const float c = positive_factor(signed_factor), sign = signed_factor < 0.0f ? -1.0f : 1.0f;
    const int offset = kv_len - q_len;
    int limit[2] = {last_key, last_key};  // last visible key
    if (CAUSAL) {
        limit[0] = min(last_key, row[0] + offset);
        limit[1] = min(last_key, row[1] + offset);
    }
    State<DIM> state = {{NO_MAXIMUM, NO_MAXIMUM}, {0.0f, 0.0f}, {}};
    float x[2][4];
    if constexpr (ONLY) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            score_tile<DIM, true>(x[j], query, step.k[j], sign, limit, warp * 16 + 8 * j + 2 * t);
        add_step<DIM, true>(state, x, step, c);
    } else {
        const int last_row = min(first + 15, q_len - 1);
        const int visible = CAUSAL ? min(kv_len, last_row + offset + 1) : kv_len;
        for (int i = warp; i * 16 < visible; i += WARPS) {
            const int next = i + WARPS;
#pragma unroll
            for (int j = 0; j < 2; j++)
                score_tile<DIM, true>(x[j], query, step.k[j], sign, limit, i * 16 + 8 * j + 2 * t);
            if (next * 16 < visible)
                load_keys<DIM, EXACT>(step, k, k_token, next, last_key, g, t, dim);
            add_step<DIM, false>(state, x, step, c);
            if (next * 16 < visible)
                load_values<DIM, EXACT>(step, v, v_token, next, last_key, g, t, dim);
        }
    }
    share_state<DIM>(shared, WARPS, warp, state, g, t);
    __syncthreads();
    merge<DIM, WARPS, EXACT>(shared, out + blockIdx.z * out_batch + first * out_token +
                             static_cast<i64>(head) * dim, out_token, q_len - first, dim, c,
                             scale_v);
}

// As load_qk, for a `dim` that is a multiple of 16: pieces are wholly inside or wholly outside.
template <int DIM>
__device__ __forceinline__ void load_pieces(u32 (&to)[DIM / 16], const i8* row, int t, int dim) {
    constexpr int VEC = Widths<DIM>::QK;
#pragma unroll
    for (int i = 0; i < DIM / (4 * VEC); i++) {
        const int column = i * 4 * VEC + t * VEC;
        const bool present = column < dim;
        load_global<VEC>(&to[i * VEC / 4], row + (present ? column : 0));
#pragma unroll
        for (int w = i * VEC / 4; w < (i + 1) * VEC / 4; w++) to[w] = present ? to[w] : 0;
    }
}

constexpr int BLOCK_WARPS = 4;  // of attend_blocks, 16 query rows each
constexpr int BLOCK_KEYS = 64;  // keys of one tile in shared memory

// Bytes from one key to the next in shared memory, so that the lanes of one access (of 16, 8 or 4
// bytes) fall on different banks: rows g with 4 * VEC bytes each for keys, rows 2t for values.
template <int DIM>
struct Pitch {
    static constexpr int K = DIM % 128 == 0 ? DIM + 64 : DIM;
    static constexpr int V = DIM + 16;
    static constexpr int STAGE = BLOCK_KEYS * (K + V);
};

// Starts the copies of one tile; keys past the end are copies of the last one, masked later.
// PART: the head dimension is `dim`, a multiple of 16 below DIM, and zeros fill the rest.
template <int DIM, bool PART>
__device__ __forceinline__ void fetch_tile(i8* stage, const i8* k, const i8* v, int k_token,
                                           int v_token, int first_key, int last_key, int dim) {
    constexpr int PIECES = DIM / 16;
#pragma unroll
    for (int i = threadIdx.x; i < BLOCK_KEYS * PIECES; i += 32 * BLOCK_WARPS) {
        const int row = i / PIECES, column = i % PIECES * 16;
        const i64 key = min(first_key + row, last_key);
        i8* const to_k = stage + row * Pitch<DIM>::K + column;
        i8* const to_v = stage + BLOCK_KEYS * Pitch<DIM>::K + row * Pitch<DIM>::V + column;
        if constexpr (PART) {
            const bool present = column < dim;
            const int from = present ? column : 0;
            copy_async_or_zero(to_k, k + key * k_token + from, present);
            copy_async_or_zero(to_v, v + key * v_token + from, present);
        } else {
            copy_async(to_k, k + key * k_token + column);
            copy_async(to_v, v + key * v_token + column);
        }
    }
}

// Scores of a warp's 16 rows with the tile's keys.
template <int DIM, bool MASK>
__device__ __forceinline__ void score_block(float (&x)[BLOCK_KEYS / 8][4],
                                            const u32 (&q)[2][DIM / 16], const i8* keys,
                                            float sign, const int (&limit)[2], int first_key,
                                            int g, int t) {
    constexpr int VEC = Widths<DIM>::QK;
#pragma unroll
    for (int j = 0; j < BLOCK_KEYS / 8; j++) {
        u32 k[DIM / 16];
#pragma unroll
        for (int i = 0; i < DIM / (4 * VEC); i++)
            load_shared<VEC>(&k[i * VEC / 4],
                             keys + (8 * j + g) * Pitch<DIM>::K + i * 4 * VEC + t * VEC);
        score_tile<DIM, MASK>(x[j], q, k, sign, limit, first_key + 8 * j + 2 * t);
    }
}

// o = o * alpha + probabilities @ values, 32 columns at a time from fresh accumulators.
template <int DIM, bool STRICT>
__device__ __forceinline__ void value_block(float (&o)[DIM / 8][4], const float (&alpha)[2],
                                            const u32 (&hi)[BLOCK_KEYS / 16][4],
                                            const u32 (&lo)[BLOCK_KEYS / 16][4], const i8* values,
                                            int g, int t) {
    constexpr int PITCH = Pitch<DIM>::V;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        float d[4][4] = {};
#pragma unroll
        for (int s = 0; s < BLOCK_KEYS / 16; s++) {
            const i8* row = values + (16 * s + 2 * t) * PITCH + 32 * i + 4 * g;
            u32 b[4][2];
            value_pairs(b, *reinterpret_cast<const u32*>(row),
                        *reinterpret_cast<const u32*>(row + PITCH),
                        *reinterpret_cast<const u32*>(row + 8 * PITCH),
                        *reinterpret_cast<const u32*>(row + 9 * PITCH));
#pragma unroll
            for (int e = 0; STRICT && e < 4; e++) mma_f16(d[e], lo[s], b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < 4; e++) mma_f16(d[e], hi[s], b[e][0], b[e][1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                o[4 * i + e][n] = fmaf(o[4 * i + e][n], alpha[n >> 1], d[e][n]);
    }
}

// grid (64-row blocks, query heads, batch), block 32 * BLOCK_WARPS, shared 2 * Pitch<DIM>::STAGE.
// All rows are aligned to 16 bytes. PART: see fetch_tile. lse: (batch, q_len, heads), or null.
template <int DIM, bool CAUSAL, bool STRICT, bool PART>
__global__ void __launch_bounds__(32 * BLOCK_WARPS)
attend_blocks(const i8* q, const i8* k, const i8* v, const float* q_scale, const float* k_scale,
              const float* v_scale, void* out, float* lse, int out_kind, int q_len, int kv_len, int dim, int group,
              i64 q_batch, i64 q_head, int q_token, i64 k_batch, i64 k_head, int k_token,
              i64 v_batch, i64 v_head, int v_token, i64 out_batch, i64 out_token, float factor) {
    extern __shared__ __align__(16) i8 tiles[];
    constexpr int STAGE = Pitch<DIM>::STAGE;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    // Under the causal mask the last blocks are the longest; blocks start in order.
    const int first_row = (gridDim.x - 1 - blockIdx.x) * 16 * BLOCK_WARPS;
    const int head = blockIdx.y, kv_head = head / group;
    q += blockIdx.z * q_batch + head * q_head;
    k += blockIdx.z * k_batch + kv_head * k_head;
    v += blockIdx.z * v_batch + kv_head * v_head;
    const int first = first_row + 16 * warp, last_key = kv_len - 1, offset = kv_len - q_len;
    const int row[2] = {first + g, first + g + 8};
    // Of the whole block: keys that any of its rows sees. May be negative.
    const int last_row = min(first_row + 16 * BLOCK_WARPS - 1, q_len - 1);
    const int visible = CAUSAL ? min(kv_len, last_row + offset + 1) : kv_len;
    if (visible > 0) fetch_tile<DIM, PART>(tiles, k, v, k_token, v_token, 0, last_key, dim);
    commit_copies();

    u32 query[2][DIM / 16];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i8* from = q + static_cast<i64>(min(row[r], q_len - 1)) * q_token;
        if constexpr (PART)
            load_pieces<DIM>(query[r], from, t, dim);
        else
            load_qk<DIM, true>(query[r], from, t, dim);
    }
    const float signed_factor = __ldg(q_scale + head) * __ldg(k_scale + kv_head) * factor;
    const float c = positive_factor(signed_factor), sign = signed_factor < 0.0f ? -1.0f : 1.0f;
    int limit[2] = {last_key, last_key};
    int all_see = last_key, any_sees = last_key;  // last key that all, or any, of the warp's rows see
    if (CAUSAL) {
        limit[0] = min(last_key, row[0] + offset);
        limit[1] = min(last_key, row[1] + offset);
        all_see = min(last_key, first + offset);
        any_sees = min(last_key, first + 15 + offset);
    }
    State<DIM> state = {{NO_MAXIMUM, NO_MAXIMUM}, {0.0f, 0.0f}, {}};
    for (int start = 0, n = 0; start < visible; start += BLOCK_KEYS, n++) {
        const int next = start + BLOCK_KEYS;
        if (next < visible)
            fetch_tile<DIM, PART>(tiles + (n + 1) % 2 * STAGE, k, v, k_token, v_token, next, last_key,
                                  dim);
        commit_copies();  // an empty group counts too, so that "all but the last" stays right
        wait_copies_but_last();
        __syncthreads();
        if (start <= any_sees) {
            const i8* keys = tiles + n % 2 * STAGE;
            float x[BLOCK_KEYS / 8][4];
            if (next - 1 <= all_see)
                score_block<DIM, false>(x, query, keys, sign, limit, start, g, t);
            else
                score_block<DIM, true>(x, query, keys, sign, limit, start, g, t);
            float alpha[2];
            u32 hi[BLOCK_KEYS / 16][4], lo[BLOCK_KEYS / 16][4];
            softmax_step<BLOCK_KEYS / 8, false>(x, state.m, state.l, alpha, hi, lo, c);
            value_block<DIM, STRICT>(state.o, alpha, hi, lo, keys + BLOCK_KEYS * Pitch<DIM>::K, g, t);
        }
        __syncthreads();  // the next round overwrites this tile
    }
    const float scale_v = __ldg(v_scale + kv_head);
    const i64 heads = gridDim.y;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = group_sum(state.l[r]);
        const float y = __fdividef(scale_v, sum);
        // Rows that see no key are zeros by definition, whatever the scales are.
        const bool none = state.m[r] == NO_MAXIMUM;
        if (row[r] >= q_len) continue;
        const i64 place = blockIdx.z * out_batch + row[r] * out_token + static_cast<i64>(head) * dim;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++)
#pragma unroll
            for (int n = 2 * r; n < 2 * r + 2; n++) {
                if (PART && 32 * i + 8 * t + 4 * (n & 1) >= dim) continue;
                write_four(out, place + 32 * i + 8 * t + 4 * (n & 1),
                           none ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                : make_float4(state.o[4 * i][n] * y, state.o[4 * i + 1][n] * y,
                                              state.o[4 * i + 2][n] * y, state.o[4 * i + 3][n] * y),
                           out_kind);
            }
        // Maxima are floats of MAGIC plus the score, times the sign.
        if (lse != nullptr && t == 0)
            lse[(blockIdx.z * static_cast<i64>(q_len) + row[r]) * heads + head] =
                none ? minus_infinity()
                     : row_lse(state.m[r] - 12582912.0f * sign, c, sum * (1.0f / PROBABILITY_SCALE));
    }
}
