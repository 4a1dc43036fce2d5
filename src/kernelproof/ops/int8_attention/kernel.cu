// Attention on int8 tensors with one scale per head, for sm_80 and later.
//
// attend<...>: tensor cores. One block = 16 query rows of one head; its warps share out the keys in
//   steps of 16 and merge their results through shared memory at the end.
// attend_blocks: tensor cores, for long sequences. One block = 64 query rows of one head; its four
//   warps share key and value tiles in shared memory.
// attend_rows: one warp per query row, any head dimension and any strides.
//
// Accuracy. q k^T is exact (int8 tensor cores, int32 sums), and so is the difference of a score to
// the row's maximum; its product with the (positive) factor c is the only rounding before the
// exponential. Probabilities enter the second product as fp16 pairs hi + lo (22 bits), values are
// exact in fp16. Tensor cores truncate when they accumulate, which would add up over a long
// sequence; so each step of 16 (or 64) keys is summed from zero and added to the output by an fp32 FMA.

#include <cuda_fp16.h>

typedef unsigned int u32;
typedef signed char i8;
typedef long long i64;

// ---- instructions ----

// Volatile, because the compiler would otherwise move loads down to their first use.
template <int BYTES>
__device__ __forceinline__ void load_global(u32* to, const i8* from) {
    if constexpr (BYTES == 16) {
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    } else if constexpr (BYTES == 8) {
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    } else {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
    }
}

// 2^x with a relative error of 2^-22; exactly 1 at 0; NaN stays NaN.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d = d + a b for int8 tiles of 16x32 and 32x8; a0, a2 are row g, a1, a3 row g + 8.
__device__ __forceinline__ void mma_s8(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d = d + a b for fp16 tiles of 16x16 and 16x8, fp32 sums.
__device__ __forceinline__ void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, without passing through registers.
__device__ __forceinline__ void copy_async(void* to, const i8* from) {
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last committed group of this thread's copies have arrived.
__device__ __forceinline__ void wait_copies_but_last() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// ---- end of instructions ----

__device__ __forceinline__ u32 as_bits(__half2 x) { return *reinterpret_cast<u32*>(&x); }
__device__ __forceinline__ __half2 as_half2(u32 x) { return *reinterpret_cast<__half2*>(&x); }

// The factor on integer scores (exponents of 2), made positive. Kept within bounds that change no
// result: below 1e-20 every probability is 1 to the last bit, yet the mask value -1e30 must stay
// far below; above 1e30 infinity * 0 would be NaN. A NaN stays.
__device__ __forceinline__ float positive_factor(float c) {
    c = fabsf(c);
    c = c < 1e-20f ? 1e-20f : c;
    return c > 1e30f ? 1e30f : c;
}

// 1024 instead of 1 at the maximum: keeps the low halves out of fp16's subnormal range.
constexpr float PROBABILITY_SCALE = 1024.0f;
// An accumulator that starts at these bits is, read as a float, 1.5 * 2^23 plus the sum: no
// conversion. Exact for |sum| <= 2^22, so for head dimensions up to 256.
constexpr int MAGIC = 0x4B400000;
constexpr float MASKED = -1e30f;
constexpr float NO_MAXIMUM = -3e7f;  // below every score (-2^24), far above MASKED

// The 16-key step's fragments in registers. The head dimension is permuted so that each lane loads
// neighbouring bytes: lane t of a group of four holds bytes t*VEC .. t*VEC+VEC-1 of each 4*VEC, the
// same for queries and keys, so that their products are unchanged. Of values, lane g of eight holds
// columns g*VEC .. g*VEC+VEC-1 of each 8*VEC, and byte e of them belongs to the e-th 8-column tile.
template <int DIM>
struct Widths {
    static constexpr int QK = DIM % 64 == 0 ? 16 : 8;
    static constexpr int V = DIM % 128 == 0 ? 16 : DIM % 64 == 0 ? 8 : 4;
    static constexpr int QK_WORDS = DIM / 16;  // words of one row per lane
    static constexpr int V_WORDS = DIM / 32;
};

template <int BYTES, bool EXACT>
__device__ __forceinline__ void load_piece(u32* to, const i8* row, int column, int dim) {
    if constexpr (EXACT) {
        load_global<BYTES>(to, row + column);
    } else {
#pragma unroll
        for (int w = 0; w < BYTES / 4; w++) {
            u32 word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int c = column + 4 * w + i;
                if (c < dim) word |= static_cast<u32>(static_cast<unsigned char>(row[c])) << (8 * i);
            }
            to[w] = word;
        }
    }
}

template <int DIM, bool EXACT>
__device__ __forceinline__ void load_qk(u32 (&to)[DIM / 16], const i8* row, int t, int dim) {
    constexpr int VEC = Widths<DIM>::QK;
#pragma unroll
    for (int i = 0; i < DIM / (4 * VEC); i++)
        load_piece<VEC, EXACT>(&to[i * VEC / 4], row, i * 4 * VEC + t * VEC, dim);
}

template <int DIM, bool EXACT>
__device__ __forceinline__ void load_v(u32 (&to)[DIM / 32], const i8* row, int g, int dim) {
    constexpr int VEC = Widths<DIM>::V;
#pragma unroll
    for (int i = 0; i < DIM / (8 * VEC); i++)
        load_piece<VEC, EXACT>(&to[i * VEC / 4], row, i * 8 * VEC + g * VEC, dim);
}

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

__device__ __forceinline__ float group_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float group_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// The bytes of four keys' words as fp16 pairs for output tile e: (key 2t, 2t+1), (2t+8, 2t+9).
// 0x64XX is 1024 + XX in fp16; with the sign bit flipped, XX is value + 128.
__device__ __forceinline__ void value_pairs(u32 (&b)[4][2], u32 w0, u32 w1, u32 w2, u32 w3) {
    const __half2 bias = __floats2half2_rn(1152.0f, 1152.0f);
    w0 ^= 0x80808080u; w1 ^= 0x80808080u; w2 ^= 0x80808080u; w3 ^= 0x80808080u;
    const u32 low[2] = {__byte_perm(w0, w1, 0x5140), __byte_perm(w2, w3, 0x5140)};
    const u32 high[2] = {__byte_perm(w0, w1, 0x7362), __byte_perm(w2, w3, 0x7362)};
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 bytes = e < 2 ? low[half] : high[half];
            const u32 word = __byte_perm(bytes, 0x64646464u, (e & 1) ? 0x4342 : 0x4140);
            b[e][half] = as_bits(__hsub2(as_half2(word), bias));
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
        // A sum of exactly 0 means that no key was visible: such rows are zeros by definition.
        const float factor = sum == 0.0f ? 0.0f : __fdividef(v_scale, sum);
        if (row >= rows) continue;
        float* to = out + row * out_token + column;
        y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
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
template <int DIM>
__device__ __forceinline__ void fetch_tile(i8* stage, const i8* k, const i8* v, int k_token,
                                           int v_token, int first_key, int last_key) {
    constexpr int PIECES = DIM / 16;
#pragma unroll
    for (int i = threadIdx.x; i < BLOCK_KEYS * PIECES; i += 32 * BLOCK_WARPS) {
        const int row = i / PIECES, column = i % PIECES * 16;
        const i64 key = min(first_key + row, last_key);
        copy_async(stage + row * Pitch<DIM>::K + column, k + key * k_token + column);
        copy_async(stage + BLOCK_KEYS * Pitch<DIM>::K + row * Pitch<DIM>::V + column,
                   v + key * v_token + column);
    }
}

template <int BYTES>
__device__ __forceinline__ void load_shared(u32* to, const i8* from) {
    if constexpr (BYTES == 16) {
        const uint4 x = *reinterpret_cast<const uint4*>(from);
        to[0] = x.x; to[1] = x.y; to[2] = x.z; to[3] = x.w;
    } else {
        const uint2 x = *reinterpret_cast<const uint2*>(from);
        to[0] = x.x; to[1] = x.y;
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
template <int DIM>
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
            for (int e = 0; e < 4; e++) mma_f16(d[e], lo[s], b[e][0], b[e][1]);
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
// The head dimension is DIM, and all rows are aligned to 16 bytes.
template <int DIM, bool CAUSAL>
__global__ void __launch_bounds__(32 * BLOCK_WARPS)
attend_blocks(const i8* q, const i8* k, const i8* v, const float* q_scale, const float* k_scale,
              const float* v_scale, float* out, int q_len, int kv_len, int dim, int group,
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
    if (visible > 0) fetch_tile<DIM>(tiles, k, v, k_token, v_token, 0, last_key);
    commit_copies();

    u32 query[2][DIM / 16];
    load_qk<DIM, true>(query[0], q + static_cast<i64>(min(row[0], q_len - 1)) * q_token, t, dim);
    load_qk<DIM, true>(query[1], q + static_cast<i64>(min(row[1], q_len - 1)) * q_token, t, dim);
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
            fetch_tile<DIM>(tiles + (n + 1) % 2 * STAGE, k, v, k_token, v_token, next, last_key);
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
            value_block<DIM>(state.o, alpha, hi, lo, keys + BLOCK_KEYS * Pitch<DIM>::K, g, t);
        }
        __syncthreads();  // the next round overwrites this tile
    }
    const float scale_v = __ldg(v_scale + kv_head);
    out += blockIdx.z * out_batch + static_cast<i64>(head) * dim;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = group_sum(state.l[r]);
        // A sum of exactly 0 means that no key was visible: such rows are zeros by definition.
        const float y = sum == 0.0f ? 0.0f : __fdividef(scale_v, sum);
        if (row[r] >= q_len) continue;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++)
#pragma unroll
            for (int n = 2 * r; n < 2 * r + 2; n++)
                *reinterpret_cast<float4*>(out + row[r] * out_token + 32 * i + 8 * t + 4 * (n & 1)) =
                    make_float4(state.o[4 * i][n] * y, state.o[4 * i + 1][n] * y,
                                state.o[4 * i + 2][n] * y, state.o[4 * i + 3][n] * y);
    }
}

constexpr int ROW_WARPS = 4;

// The product of one query row and one key row, the same in every lane.
__device__ __forceinline__ int dot_row(const i8* q, const i8* k, int dim, bool words, int lane) {
    int sum = 0;
    if (words) {
        for (int d = 4 * lane; d < dim; d += 128)
            sum = __dp4a(*reinterpret_cast<const int*>(q + d), *reinterpret_cast<const int*>(k + d),
                         sum);
    } else {
        for (int d = lane; d < dim; d += 32) sum += static_cast<int>(q[d]) * k[d];
    }
    return __reduce_add_sync(~0u, sum);
}

// One warp per query row; grid covers batch * q_len * heads rows, block 32 * ROW_WARPS. The output
// row is the accumulator (each lane reads only what it wrote), so the head dimension is not bounded
// by registers. `words`: dim, pointers and strides of q and k are multiples of 4.
extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS)
attend_rows(const i8* q, const i8* k, const i8* v, const float* q_scale, const float* k_scale,
            const float* v_scale, float* out, i64 rows, i64 q_len, i64 kv_len, i64 heads, i64 group,
            int dim, int words, int causal, i64 q_batch, i64 q_head, i64 q_token, i64 k_batch,
            i64 k_head, i64 k_token, i64 v_batch, i64 v_head, i64 v_token, float factor) {
    __shared__ float probability[ROW_WARPS][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 row = static_cast<i64>(blockIdx.x) * ROW_WARPS + warp;
    if (row >= rows) return;  // the whole warp; no barrier follows
    const i64 head = row % heads, token = row / heads % q_len, b = row / heads / q_len;
    const i64 kv_head = head / group;
    q += b * q_batch + token * q_token + head * q_head;
    k += b * k_batch + kv_head * k_head;
    v += b * v_batch + kv_head * v_head;
    out += row * dim;
    const float signed_factor = q_scale[head] * k_scale[kv_head] * factor;
    const float c = positive_factor(signed_factor);
    const int sign = signed_factor < 0.0f ? -1 : 1;
    const i64 visible = causal ? min(kv_len, kv_len - q_len + token + 1) : kv_len;
    int maximum = -2147483647;  // below every score
    float sum = 0.0f;
    for (i64 start = 0; start < visible; start += 32) {
        const int keys = static_cast<int>(min(static_cast<i64>(32), visible - start));
        int score = -2147483647;
        for (int j = 0; j < keys; j++) {
            const int x = dot_row(q, k + (start + j) * k_token, dim, words != 0, lane);
            if (lane == j) score = x * sign;
        }
        const int top = max(maximum, __reduce_max_sync(~0u, score));
        // The first group has nothing to rescale, and its difference would not fit in an int.
        const float alpha =
            start == 0 ? 0.0f : exp2_fast(static_cast<float>(maximum - top) * c);
        const float p =
            lane < keys ? exp2_fast(static_cast<float>(score - top) * c) : 0.0f;
        maximum = top;
        sum = fmaf(sum, alpha, p);  // per lane; added up at the end
        __syncwarp();
        probability[warp][lane] = p;
        __syncwarp();
        for (int d = lane; d < dim; d += 32) {
            float y = 0.0f;
            for (int j = 0; j < keys; j++)
                y = fmaf(probability[warp][j], static_cast<float>(v[(start + j) * v_token + d]), y);
            out[d] = start == 0 ? y : fmaf(out[d], alpha, y);
        }
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    const float last = visible > 0 ? v_scale[kv_head] / sum : 0.0f;
    for (int d = lane; d < dim; d += 32) out[d] = visible > 0 ? out[d] * last : 0.0f;
}
