// Attention on int8 queries and keys in every form: int8 or fp16 values, scales per head, token or
// block, packed sequences, caches with lengths and pages, fp16 probabilities, 16-bit outputs,
// logarithms of the sums. For sm_80 and later.
//
// attend_general<...>: tensor cores. One block = 16 rows of one key head; the query heads that share
//   the key head are stacked (row i is query i / group of head i % group), so that a cache is read
//   once for all of them. Its warps share out the keys in steps of 16 and merge through shared
//   memory. With `splits` > 1 the keys are also shared out over blocks, which leave parts.
// kernel_rows.cu merges the parts.
//
// Accuracy. As in kernel.cu, but the product of score and key scale is the pair hi + lo of floats,
// so that again only the difference to the maximum is rounded. A value's scale goes into its
// probability; the step's largest product is made PROBABILITY_SCALE, so that fp16 holds them.

#include "form.cuh"

// 16 keys' fragments. Values: 32 columns of one key are four columns for each lane g of eight.
template <int DIM, bool HALF>
struct Step16 {
    u32 k[2][DIM / 16];                    // keys g and g + 8
    u32 v[4][HALF ? DIM / 16 : DIM / 32];  // values of keys 2t, 2t + 1, 2t + 8, 2t + 9
};

__device__ __forceinline__ int value_key(int step, int u, int t) {
    return step * 16 + (u >> 1) * 8 + 2 * t + (u & 1);
}

// BYTES of one row from element `column` on, one by one, with zeros behind the last of `dim` elements
// of SIZE bytes; `inner`: from one element to the next.
template <int BYTES, int SIZE>
__device__ __forceinline__ void load_strided(u32* to, const i8* row, int column, int dim, i64 inner) {
#pragma unroll
    for (int w = 0; w < BYTES / 4; w++) {
        u32 word = 0;
#pragma unroll
        for (int i = 0; i < 4 / SIZE; i++) {
            // Loads without branches; what lies behind the last column is read there, and dropped.
            const int c = column + 4 / SIZE * w + i;
            const i64 at = min(c, dim - 1) * inner;
            const u32 x = SIZE == 1 ? static_cast<unsigned char>(row[at])
                                    : reinterpret_cast<const unsigned short*>(row)[at];
            word |= c < dim ? x << (8 * SIZE * i) : 0;
        }
        to[w] = word;
    }
}

// As load_qk, of any inner stride where not EXACT.
template <int DIM, bool EXACT>
__device__ __forceinline__ void load_row(u32 (&to)[DIM / 16], const i8* row, int t, int dim,
                                         i64 inner) {
    constexpr int VEC = Widths<DIM>::QK;
    if constexpr (EXACT) {
        load_qk<DIM, true>(to, row, t, dim);
    } else {
#pragma unroll
        for (int i = 0; i < DIM / (4 * VEC); i++)
            load_strided<VEC, 1>(&to[i * VEC / 4], row, i * 4 * VEC + t * VEC, dim, inner);
    }
}

template <int DIM, bool HALF, bool EXACT, bool PAGED>
__device__ __forceinline__ void load_step_keys(Step16<DIM, HALF>& s, const Form& f,
                                               const Span& span, const i8* k, int step, int last,
                                               i64 head, int g, int t) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const Place p = place_of<PAGED>(f, span, min(step * 16 + 8 * j + g, last));
        load_row<DIM, EXACT>(s.k[j], k + p.batch * f.k_batch + p.token * f.k_token + head * f.k_head,
                             t, f.dim, f.k_inner);
    }
}

template <int DIM, bool HALF, bool EXACT, bool PAGED>
__device__ __forceinline__ void load_step_values(Step16<DIM, HALF>& s, const Form& f,
                                                 const Span& span, const void* v, int step,
                                                 int last, i64 head, int g, int t) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
        const Place p = place_of<PAGED>(f, span, min(value_key(step, u, t), last));
        const i64 offset = p.batch * f.v_batch + p.token * f.v_token + head * f.v_head;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            const int column = 32 * i + 4 * g;
            const i8* row = static_cast<const i8*>(v) + (HALF ? 2 : 1) * offset;
            u32* to = &s.v[u][HALF ? 2 * i : i];
            if constexpr (EXACT)
                load_global<HALF ? 8 : 4>(to, row + (HALF ? 2 : 1) * column);
            else
                load_strided<HALF ? 8 : 4, HALF ? 2 : 1>(to, row, column, f.dim, f.v_inner);
        }
    }
}

// Values of four keys as fp16 pairs for the four output tiles of 32 columns.
template <int DIM, bool HALF>
__device__ __forceinline__ void value_fragments(u32 (&b)[4][2], const Step16<DIM, HALF>& s, int i) {
    if constexpr (HALF) {
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                b[e][half] = __byte_perm(s.v[2 * half][2 * i + e / 2], s.v[2 * half + 1][2 * i + e / 2],
                                         e % 2 ? 0x7632 : 0x5410);
    } else {
        value_pairs(b, s.v[0][i], s.v[1][i], s.v[2][i], s.v[3][i]);
    }
}

// Running softmax of rows g and g + 8 (index 0 and 1) over the steps of one warp.
template <int DIM>
struct Running {
    float m[2];           // largest product of score and key scale
    float l[2];           // this lane's part of the sum of probabilities
    float o[DIM / 8][4];  // output tiles: [0], [1] row g, [2], [3] row g + 8
};

// Scores times key scales of 8 keys, as pairs: (row g, keys 2t, 2t + 1), (row g + 8, the same).
template <int DIM>
__device__ __forceinline__ void score_pairs(float (&hi)[4], float (&lo)[4],
                                            const u32 (&q)[2][DIM / 16], const u32 (&k)[DIM / 16],
                                            const float (&sign)[2], const float (&scale)[2]) {
    int d[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
#pragma unroll
    for (int i = 0; i < DIM / 32; i++)
        mma_s8(d, q[0][2 * i], q[1][2 * i], q[0][2 * i + 1], q[1][2 * i + 1], k[2 * i],
               k[2 * i + 1]);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float score = (__int_as_float(d[e]) - 12582912.0f) * sign[e >> 1];
        hi[e] = __fmul_rn(score, scale[e & 1]);
        // An infinite product stays one: infinity minus itself would be NaN.
        lo[e] = fabsf(hi[e]) < infinity() ? fmaf(score, scale[e & 1], -hi[e]) : 0.0f;
    }
}

// Element n of a small array in registers.
template <class T>
__device__ __forceinline__ T pick(const T (&x)[4], int n) {
    return n < 2 ? (n == 0 ? x[0] : x[1]) : (n == 2 ? x[2] : x[3]);
}

// Whether a word of fp16 holds a NaN or an infinity.
__device__ __forceinline__ bool not_finite(u32 word) {
    return (word & 0x7c00u) == 0x7c00u || (word & 0x7c000000u) == 0x7c000000u;
}

// The second product one key at a time, for steps in which a value or its scale is NaN or infinite.
// 0 times those is NaN, so the matrix product would carry them to rows that do not see the key.
// `y`: probabilities by row; bit 4r + n of `seen`: whether row r sees this lane's key n.
template <int DIM, bool HALF>
__device__ __forceinline__ void add_values_singly(Running<DIM>& run, const float (&alpha)[2],
                                                  const float (&y)[2][4],
                                                  const Step16<DIM, HALF>& s, const float (&vs)[4],
                                                  u32 seen, int lane) {
    const int t = lane & 3;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) run.o[i][n] *= alpha[n >> 1];
#pragma unroll 1
    for (int key = 0; key < 16; key++) {
        // Lane `owner` of four has the key's probabilities, as its n-th; the same n counts values.
        const int owner = (key >> 1) & 3, n = (key >> 3) * 2 + (key & 1), from = (lane & ~3) | owner;
        const float p[2] = {__shfl_sync(~0u, pick(y[0], n), from),
                            __shfl_sync(~0u, pick(y[1], n), from)};
        const u32 bits = __shfl_sync(~0u, seen, from) >> n;
        const float scale = __shfl_sync(~0u, pick(vs, n), from);
#pragma unroll
        for (int i = 0; i < DIM / 32; i++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const int holder = (2 * t + b) * 4 + owner;
                float value[4];
                if constexpr (HALF) {
#pragma unroll
                    for (int w = 0; w < 2; w++) {
                        const u32 words[4] = {s.v[0][2 * i + w], s.v[1][2 * i + w],
                                              s.v[2][2 * i + w], s.v[3][2 * i + w]};
                        const float2 both =
                            __half22float2(as_half2(__shfl_sync(~0u, pick(words, n), holder)));
                        value[2 * w] = both.x;
                        value[2 * w + 1] = both.y;
                    }
                } else {
                    const u32 words[4] = {s.v[0][i], s.v[1][i], s.v[2][i], s.v[3][i]};
                    const u32 word = __shfl_sync(~0u, pick(words, n), holder);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        value[e] = static_cast<float>(static_cast<i8>(word >> (8 * e)));
                }
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (bits >> (4 * r) & 1)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float& o = run.o[4 * i + e][2 * r + b];
                            o = fmaf(p[r], value[e] * scale, o);
                        }
            }
    }
}

// One step of 16 keys. `vs`: scales of the values of the keys 8j + 2t + e, as [2j + e].
template <int DIM, bool HALF, bool STRICT>
__device__ __forceinline__ void add_keys(Running<DIM>& run, const float (&hi)[2][4],
                                         const float (&lo)[2][4], const Step16<DIM, HALF>& s,
                                         const float (&c)[2], const float (&vs)[4],
                                         bool values_scaled, u32 seen, int lane) {
    float alpha[2], y[2][4], unit[2] = {1.0f, 1.0f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = minus_infinity();
#pragma unroll
        for (int n = 0; n < 4; n++)
            // Keys that are not seen count for nothing, whatever they hold.
            if (seen >> (4 * r + n) & 1) top = fmaxf(top, hi[n >> 1][2 * r + (n & 1)]);
        top = fmaxf(run.m[r], group_max(top));
        // Nothing seen so far: nothing to rescale either.
        alpha[r] = run.m[r] == minus_infinity() ? 0.0f : exp2_fast((run.m[r] - top) * c[r]);
        run.m[r] = top;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float x = hi[n >> 1][2 * r + (n & 1)];
            const float p = exp2_fast(((x - top) + lo[n >> 1][2 * r + (n & 1)]) * c[r]);
            y[r][n] = seen >> (4 * r + n) & 1 ? p * PROBABILITY_SCALE : 0.0f;
            sum += y[r][n];
        }
        run.l[r] = fmaf(run.l[r], alpha[r], sum);
    }
    bool special = false;
    if constexpr (HALF) {
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int w = 0; w < DIM / 16; w++) special = special || not_finite(s.v[u][w]);
    }
    if (values_scaled) {
#pragma unroll
        for (int n = 0; n < 4; n++) special = special || !(fabsf(vs[n]) < infinity());
    }
    if (HALF || values_scaled) {
        if (__any_sync(~0u, special)) {
            add_values_singly<DIM, HALF>(run, alpha, y, s, vs, seen, lane);
            return;
        }
    }
    if (values_scaled) {
        // Weights relative to the largest of the row in this step, which fp16 then holds exactly.
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = 0.0f;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                y[r][n] *= vs[n];
                largest = fmaxf(largest, fabsf(y[r][n]));
            }
            unit[r] = fmaxf(group_max(largest) * (1.0f / PROBABILITY_SCALE), 1e-37f);
            const float inverse = 1.0f / unit[r];
#pragma unroll
            for (int n = 0; n < 4; n++) y[r][n] *= inverse;
        }
    }
    u32 high[4], low[4];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float a = y[r][2 * j], b = y[r][2 * j + 1];
            const __half2 rounded = __floats2half2_rn(a, b);
            high[2 * j + r] = as_bits(rounded);
            if constexpr (STRICT) {
                const float2 back = __half22float2(rounded);
                low[2 * j + r] = as_bits(__floats2half2_rn(a - back.x, b - back.y));
            }
        }
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        u32 b[4][2];
        value_fragments<DIM, HALF>(b, s, i);
        float d[4][4] = {};
        if constexpr (STRICT) {
#pragma unroll
            for (int e = 0; e < 4; e++) mma_f16(d[e], low, b[e][0], b[e][1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) mma_f16(d[e], high, b[e][0], b[e][1]);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float& o = run.o[4 * i + e][n];
                o = fmaf(o, alpha[n >> 1], d[e][n] * unit[n >> 1]);
            }
    }
}

// Shared memory: WARPS x 16 rows of outputs, (maximum, sum) pairs, and the rows' factors.
template <int DIM>
struct Shared {
    static constexpr int PITCH = DIM + 4;  // the 4 spread rows over the banks
    static constexpr int ENDS = WARPS * 16 * PITCH, FACTORS = ENDS + WARPS * 32;
};

template <int DIM>
__device__ __forceinline__ void share_running(float* shared, int warp, const Running<DIM>& run,
                                              const float (&c)[2], int g, int t) {
    float* rows = shared + warp * 16 * Shared<DIM>::PITCH;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            // Byte or half e of a value word is output tile e: neighbouring columns.
            *reinterpret_cast<float4*>(&rows[(g + (n >> 1) * 8) * Shared<DIM>::PITCH + 32 * i +
                                             4 * (2 * t + (n & 1))]) =
                make_float4(run.o[4 * i][n], run.o[4 * i + 1][n], run.o[4 * i + 2][n],
                            run.o[4 * i + 3][n]);
    float2* ends = reinterpret_cast<float2*>(shared + Shared<DIM>::ENDS);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = group_sum(run.l[r]);
        if (t == 0) {
            ends[warp * 16 + g + 8 * r] = make_float2(run.m[r], sum);
            if (warp == 0) shared[Shared<DIM>::FACTORS + g + 8 * r] = c[r];
        }
    }
}

// grid: tiles x key heads x splits in one axis (`tiles` counts those of all sequences), block
// 32 * WARPS. parts: null, or [row][split][dim + 3] with the row's place in (batch, q_len, heads).
// DIM: a multiple of 32 up to 256. EXACT: dim == DIM and rows are aligned for vector loads;
// otherwise elements are loaded one by one, at any strides, and missing columns are zeros.
template <int DIM, bool HALF, bool EXACT, bool STRICT, bool PAGED>
__global__ void __launch_bounds__(32 * WARPS)
attend_general(const i8* q, const i8* k, const void* v, const float* q_scale, const float* k_scale,
               const float* v_scale, void* out, float* lse, float* parts, int splits, i64 tiles,
               FORM_PARAMETERS) {
    extern __shared__ __align__(16) float shared[];
    const Form f = {FORM_ARGUMENTS};
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const i64 kv_heads = heads / group;
    i64 index = blockIdx.x;
    const int split = static_cast<int>(index % splits);
    index /= splits;
    const i64 head = index % kv_heads;
    index /= kv_heads;
    // Under the causal mask the last tiles are the longest; blocks start in order, so they go first.
    i64 sequence, tile;
    if (cu_q != nullptr) {
        sequence = sequence_of_tile(f, index, 16);
        tile = index - first_tile(f, sequence, 16);
    } else {
        sequence = index % sequences;
        tile = tiles / sequences - 1 - index / sequences;
    }
    const Span span = span_of(f, sequence);
    const int rows = static_cast<int>(span.q_len * group), first = static_cast<int>(tile * 16);
    if (first >= rows) return;  // the whole block
    const int keys = static_cast<int>(span.keys), late = keys - static_cast<int>(span.q_len);

    u32 query[2][DIM / 16];
    float c[2], sign[2];
    int limit[2];  // last visible key
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Rows past the end are read as the last row, and not written.
        const int row = min(first + g + 8 * r, rows - 1);
        const int own = row / static_cast<int>(group);
        const i64 token = span.q_first + own, row_head = head * group + row % static_cast<int>(group);
        load_row<DIM, EXACT>(query[r],
                             q + span.batch * q_batch + token * q_token + row_head * q_head, t, dim,
                             q_inner);
        float signed_factor = factor * __ldg(q_scale + span.batch * qs_batch +
                                             token / q_block * qs_block + row_head * qs_head);
        if (!keys_scaled) signed_factor *= __ldg(k_scale + head * ks_head);
        c[r] = capped(signed_factor);
        sign[r] = signed_factor < 0.0f ? -1.0f : 1.0f;
        limit[r] = causal ? min(keys - 1, own + late) : keys - 1;
    }
    const int last_own = min(first + 15, rows - 1) / static_cast<int>(group);
    const int visible = causal ? max(0, min(keys, last_own + late + 1)) : keys;
    const int steps = (visible + 15) / 16, chunk = (steps + splits - 1) / splits;
    const int end = min(steps, (split + 1) * chunk);

    Running<DIM> run = {{minus_infinity(), minus_infinity()}, {0.0f, 0.0f}, {}};
    Step16<DIM, HALF> step;
    int i = split * chunk + warp;
    if (i < end) {
        load_step_keys<DIM, HALF, EXACT, PAGED>(step, f, span, k, i, keys - 1, head, g, t);
        load_step_values<DIM, HALF, EXACT, PAGED>(step, f, span, v, i, keys - 1, head, g, t);
    }
    for (; i < end; i += WARPS) {
        float ks[4] = {1.0f, 1.0f, 1.0f, 1.0f}, vs[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (keys_scaled || values_scaled) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const Place p = place_of<PAGED>(f, span, min(value_key(i, n, t), keys - 1));
                if (keys_scaled) ks[n] = key_scale(f, k_scale, p, head);
                if (values_scaled) vs[n] = value_scale(f, v_scale, p, head);
            }
        }
        float hi[2][4], lo[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float scale[2] = {ks[2 * j], ks[2 * j + 1]};
            score_pairs<DIM>(hi[j], lo[j], query, step.k[j], sign, scale);
        }
        u32 seen = 0;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                seen |= static_cast<u32>(value_key(i, n, t) <= limit[r]) << (4 * r + n);
        const int next = i + WARPS;
        if (next < end)
            load_step_keys<DIM, HALF, EXACT, PAGED>(step, f, span, k, next, keys - 1, head, g, t);
        add_keys<DIM, HALF, STRICT>(run, hi, lo, step, c, vs, values_scaled != 0, seen, lane);
        if (next < end)
            load_step_values<DIM, HALF, EXACT, PAGED>(step, f, span, v, next, keys - 1, head, g, t);
    }
    share_running<DIM>(shared, warp, run, c, g, t);
    __syncthreads();

    const float2* ends = reinterpret_cast<const float2*>(shared + Shared<DIM>::ENDS);
    const float last_scale = values_scaled ? 1.0f : __ldg(v_scale + head * vs_head);
#pragma unroll 1
    for (int piece = threadIdx.x; piece < 16 * DIM; piece += WARPS * 32) {
        const int local = piece / DIM, column = piece % DIM, row = first + local;
        if (row >= rows || (column >= dim && column > 0)) continue;
        const float row_c = shared[Shared<DIM>::FACTORS + local];
        float top = minus_infinity(), sum = 0.0f, y = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, ends[w * 16 + local].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float2 ending = ends[w * 16 + local];
            const float weight = part_weight(ending.x, top, row_c);
            sum = fmaf(ending.y, weight, sum);
            y = fmaf(shared[(w * 16 + local) * Shared<DIM>::PITCH + column], weight, y);
        }
        const i64 token = span.q_first + row / static_cast<int>(group);
        const i64 place = (span.batch * q_len + token) * heads + head * group +
                          row % static_cast<int>(group);
        if (parts != nullptr) {
            float* part = parts + (place * splits + split) * (dim + 3);
            if (column < dim) part[column] = y;
            if (column == 0) {
                part[dim] = top;
                part[dim + 1] = sum;
                part[dim + 2] = row_c;
            }
            continue;
        }
        // A sum of exactly 0 means that no key was visible: such rows are zeros by definition.
        if (column < dim)
            write_out(out, place * dim + column, sum == 0.0f ? 0.0f : y * (last_scale / sum), out_kind);
        if (column == 0 && lse != nullptr)
            lse[place] = row_lse(top, row_c, sum * (1.0f / PROBABILITY_SCALE));
    }
}
