// Attention of many int8 queries on Hopper: wgmma, tensor copies, warpgroups with roles. sm_90a.
//
// attend_wgmma<...>: a block takes tiles of 128 query rows of one head in turn, and one after
//   another tiles of BN keys, from the last that a row sees down to the first. One warpgroup loads;
//   two compute, 64 rows each: scores by int8 products, softmax in registers, fp16 probabilities
//   times fp16 values. The two take turns at the tensor cores: one multiplies while the other is at
//   its exponentials. The product with the values of a tile runs beside the scores of the next.
// widen_values: int8 values to the fp16 that tensor cores multiply, once per call.
//
// Accuracy. A score accumulator starts at the bits MAGIC, so that read as a float it is 1.5 * 2^23
// plus the score, exactly. exp2(x c - b) is one fused multiply-add and one exponential: b, the
// row's reference, is the same number in every term and in the sum, so its own rounding cancels.
// STRICT adds a tile's output from fresh accumulators, the low halves of probabilities first,
// because tensor cores truncate as they accumulate.

#include "hopper.cuh"

constexpr int BM = 128;              // query rows of a block
constexpr int TURNS = 1;             // named barriers 1 and 2: the turns of the two warpgroups
constexpr u32 HIDDEN = 0xff61b1e6u;  // -3e38: the exponential of what a row does not see is 0
// Below every score that MAGIC makes, so the first tile always finds a larger one.
constexpr float FIRST_REFERENCE = 8.0e6f;
// The reference follows a score once that is 2^8 above it: probabilities up to 256 fit fp16.
constexpr float SLACK = 8.0f;
// Factors above this: the reference is subtracted from the score first, which is exact.
constexpr float STEEP = 1.0f;

// Jobs in shared memory: one that is loaded, one that is computed, one whose rows are written.
constexpr int JOBS = 4;

// What a tile is, from the loading warpgroup to the others.
struct Job {
    int head, batch, first, rows, q_first, keys, k_first, valid;
};

// Dimensions between: D is rounded up, columns behind the last are loaded as zeros.
template <int D, int BN, int K_STAGES, int V_STAGES>
struct Layout {
    static constexpr int DEPTH = (D + 31) / 32;          // products of one score tile
    static constexpr int ROW = D <= 64 ? 64 : 128;       // bytes of a swizzled row of q and k
    static constexpr int PIECES = D <= 128 ? 1 : D / 128;  // such rows of one token
    static constexpr int PARTS = D <= 128 ? 1 : D / 128;   // products of one value step
    static constexpr int WIDE = D / PARTS;                 // columns of each
    static constexpr int BLOCKS = (D + 63) / 64;           // of 64 value columns
    static constexpr int Q_BYTES = BM * ROW * PIECES, K_BYTES = BN * ROW * PIECES;
    static constexpr int V_BYTES = BN * 128 * BLOCKS;
    static constexpr int BYTES = Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
};

// ---- the loading side ----

// Where the order of tiles is decided. Groups of `gather` heads, whose keys and values the L2 cache
// holds together; in a group the tiles with the most keys first.
struct Order {
    const int *cu_q, *cu_k, *kv_lens;
    int sequences, q_len, kv_len, heads, slots, gather, causal;
};

// First of the tiles of sequence n. Each sequence gets room for one more than it needs at most.
__device__ __forceinline__ int first_slot(const Order& o, int n) { return o.cu_q[n] / BM + n; }

__device__ __forceinline__ Job job_of(const Order& o, int tile) {
    const int columns = o.cu_q != nullptr ? o.heads : o.sequences * o.heads;
    const int group = tile / (o.gather * o.slots), inside = tile - group * (o.gather * o.slots);
    const int here = min(o.gather, columns - group * o.gather);
    const int slot = o.slots - 1 - inside / here, column = group * o.gather + inside % here;
    Job job;
    job.valid = 1;
    if (o.cu_q == nullptr) {
        job.batch = column / o.heads;
        job.head = column - job.batch * o.heads;
        job.first = slot * BM;
        job.q_first = job.k_first = 0;
        job.rows = o.q_len;
        job.keys = o.kv_lens != nullptr ? max(0, min(o.kv_lens[job.batch], o.kv_len)) : o.kv_len;
        return job;
    }
    int low = 0, high = o.sequences;  // first_slot(low) <= slot < first_slot(high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_slot(o, middle) <= slot) low = middle; else high = middle;
    }
    job.batch = 0;
    job.head = column;
    job.first = (slot - first_slot(o, low)) * BM;
    job.q_first = o.cu_q[low];
    job.k_first = o.cu_k[low];
    job.rows = o.cu_q[low + 1] - job.q_first;
    job.keys = o.cu_k[low + 1] - job.k_first;
    return job;
}

// Tiles of BN keys that a tile of rows needs; one where it sees none, which writes zeros.
template <int BN>
__device__ __forceinline__ int key_tiles(const Job& job, int causal) {
    const int last = min(job.first + BM, job.rows) - 1 + job.keys - job.rows;
    const int visible = causal ? min(job.keys, last + 1) : job.keys;
    return max(1, (visible + BN - 1) / BN);
}

// ---- the computing side ----

// The softmax of a lane's two rows, g and g + 8 of the warp's 16.
struct Rows {
    float reference[2], sum[2];
    float alpha[2];  // what the last tile's new reference makes of older results
    float c;         // scores times this are exponents of 2
    bool flip, steep, moved;
};

// What is subtracted from a score times c.
__device__ __forceinline__ float subtracted(const Rows& rows, int r, float offset) {
    return rows.steep ? -offset : fmaf(rows.reference[r], rows.c, -offset);
}

template <int N>
__device__ __forceinline__ void start_scores(u32 (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = MAGIC;
}

// Before the maximum: what the diagonal or the end hides, and scores of a negative factor.
template <int N>
__device__ __forceinline__ void hide(u32 (&s)[N], bool flip, int key, const int (&limit)[2]) {
    if (flip) {
#pragma unroll
        for (int i = 0; i < N; i++) s[i] = 2u * MAGIC - s[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (key + i / 4 * 8 + i % 2 > limit[i / 2 % 2]) s[i] = HIDDEN;
}

// Moves the references where a score is far above. Lanes look at their own scores alone; only if
// one is too large do the four lanes of a row agree. Positive floats compare as integers.
template <int N>
__device__ __forceinline__ void follow(const u32 (&s)[N], Rows& rows, float offset) {
    int top[2], other[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = max(static_cast<int>(s[2 * r]), static_cast<int>(s[2 * r + 1]));
        other[r] = max(static_cast<int>(s[2 * r + 4]), static_cast<int>(s[2 * r + 5]));
    }
#pragma unroll
    for (int i = 8; i < N; i += 8)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = i + 2 * r;
            top[r] = max(max(top[r], static_cast<int>(s[at])), static_cast<int>(s[at + 1]));
            other[r] = max(max(other[r], static_cast<int>(s[at + 4])), static_cast<int>(s[at + 5]));
        }
    const float slack = SLACK / rows.c;
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = max(top[r], other[r]);
        far = far || top[r] > __float_as_int(rows.reference[r] + slack);
    }
    rows.moved = __any_sync(~0u, far);
    if (!rows.moved) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = max(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = max(top[r], __shfl_xor_sync(~0u, top[r], 2));
        const float old = rows.reference[r], old_b = subtracted(rows, r, offset);
        rows.reference[r] = fmaxf(old, __int_as_float(top[r]));
        rows.alpha[r] = exp2_fast(rows.steep ? (old - rows.reference[r]) * rows.c
                                             : old_b - subtracted(rows, r, offset));
        rows.sum[r] *= rows.alpha[r];
    }
}

// Scores become probabilities relative to the references.
template <int N>
__device__ __forceinline__ void exponentials(u32 (&s)[N], Rows& rows, float offset) {
    float sum[4] = {};
    const float b[2] = {subtracted(rows, 0, offset), subtracted(rows, 1, offset)};
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int r = i / 2 % 2;
        const float p = exp2_fast(fmaf(__uint_as_float(s[i]), rows.c, -b[r]));
        sum[2 * r + i % 2] += p;
        s[i] = __float_as_uint(p);
    }
    rows.sum[0] += sum[0] + sum[1];
    rows.sum[1] += sum[2] + sum[3];
}

// 0: sums of exponentials are not negative, but the compiler does not know.
__device__ __forceinline__ u32 sign_of_sums(const Rows& rows) {
    return (__float_as_uint(rows.sum[0]) | __float_as_uint(rows.sum[1])) >> 31;
}

// Accumulator pairs are fragments of the next product as they are.
template <bool STRICT, int N, int L>
__device__ __forceinline__ void pack(u32 (&high)[N / 2], u32 (&low)[L], const u32 (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float a = __uint_as_float(s[2 * i]), b = __uint_as_float(s[2 * i + 1]);
        const __half2 rounded = __floats2half2_rn(a, b);
        high[i] = as_bits(rounded);
        if constexpr (STRICT) {
            const float2 back = __half22float2(rounded);
            low[i] = as_bits(__floats2half2_rn(a - back.x, b - back.y));
        }
    }
}

// o = o f + tile.
template <int PARTS, int N>
__device__ __forceinline__ void add_tile(float (&o)[PARTS][N], const float (&f)[2],
                                         const float (&tile)[PARTS][N]) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < N; i++) o[p][i] = fmaf(o[p][i], f[i / 2 % 2], tile[p][i]);
}

template <int PARTS, int N>
__device__ __forceinline__ void rescale(float (&o)[PARTS][N], const Rows& rows) {
    if (!rows.moved) return;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < N; i++) o[p][i] *= rows.alpha[i / 2 % 2];
}

__device__ __forceinline__ u32 two_bfloats(float x, float y) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

// A lane's pairs of neighbouring columns of one row; the pointer is to its first. y: their factor.
template <int KIND, int PARTS, int N>
__device__ __forceinline__ void write_row(void* to, const float (&o)[PARTS][N], int r, float y,
                                          int column, int dim) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int further = p * N * 2 + 8 * i;
            const float a = o[p][4 * i + 2 * r] * y, b = o[p][4 * i + 2 * r + 1] * y;
            if (column + further >= dim) continue;
            if constexpr (KIND == 0)
                reinterpret_cast<float2*>(to)[further / 2] = make_float2(a, b);
            else
                reinterpret_cast<u32*>(to)[further / 2] =
                    KIND == 1 ? two_bfloats(a, b) : as_bits(__floats2half2_rn(a, b));
        }
}

// grid: as many blocks as run at a time, block 384. Maps: (dim, head, token, batch) in boxes of a
// row of ROW bytes x 1 x BM or BN x 1 (q, k), 64 columns x 1 x BN x 1 (v).
// counter: one word, 0 before.
// D: 64, 80, 96, 128 or 256, dim of the same or less, a multiple of 16. Q_SHARED: q stays in
// shared memory; else in registers. EARLY: the turn is passed before the exponentials, else right
// after the products are issued.
template <int D, int BN, int K_STAGES, int V_STAGES, bool STRICT, bool Q_SHARED, bool EARLY>
__global__ void __launch_bounds__(384, 1)
attend_wgmma(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const float* q_scale, const float* k_scale,
             const float* v_scale, void* out, float* lse, int* counter, const int* cu_q,
             const int* cu_k, const int* kv_lens, int sequences, int q_len, int kv_len, int heads,
             int group, int dim, int slots, int gather, int tiles, int causal, int out_kind,
             float factor) {
    using L = Layout<D, BN, K_STAGES, V_STAGES>;
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) u64 barriers[2 + 2 * K_STAGES + 2 * V_STAGES];
    __shared__ Job jobs[JOBS];
    __shared__ float4 ended[256];  // by thread: sums and log2 units of rows that are being finished
    const u32 q_at = (shared_offset(memory) + 1023) & ~1023u, k_at = q_at + L::Q_BYTES;
    const u32 v_at = k_at + K_STAGES * L::K_BYTES;
    const u32 q_full = shared_offset(barriers), q_empty = q_full + 8, k_full = q_full + 16;
    const u32 k_empty = k_full + 8 * K_STAGES, v_full = k_empty + 8 * K_STAGES;
    const u32 v_empty = v_full + 8 * V_STAGES;
    const int role = threadIdx.x >> 7;
    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        barrier_init(q_empty, 8);
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, 8);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(v_full + 8 * i, 1);
            barrier_init(v_empty + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            const Order order = {cu_q, cu_k, kv_lens, sequences, q_len, kv_len, heads, slots, gather, causal};
            int k_stage = 0, k_parity = 1, v_stage = 0, v_parity = 1, q_parity = 1;
            int tile = blockIdx.x, number = 0;
#pragma unroll 1
            while (true) {
                Job job;
                job.valid = 0;
                // Tiles behind the end of their packed sequence are skipped.
                while (tile < tiles) {
                    job = job_of(order, tile);
                    if (job.first < job.rows) break;
                    job.valid = 0;
                    tile = static_cast<int>(gridDim.x) + atomicAdd(counter, 1);
                }
                barrier_wait(q_empty, q_parity);
                q_parity ^= 1;
                jobs[number++ % JOBS] = job;
                if (!job.valid) {
                    barrier_arrive(q_full);
                    break;
                }
                const int next = static_cast<int>(gridDim.x) + atomicAdd(counter, 1);
                barrier_expect(q_full, L::Q_BYTES);
#pragma unroll
                for (int i = 0; i < L::PIECES; i++)
                    load_box(q_at + i * BM * 128, &q_map, 128 * i, job.head, job.q_first + job.first,
                             job.batch, q_full);
                const int head = job.head / group;
#pragma unroll 1
                for (int n = key_tiles<BN>(job, causal) - 1; n >= 0; n--) {
                    const int token = job.k_first + n * BN;
                    barrier_wait(k_empty + 8 * k_stage, k_parity);
                    barrier_expect(k_full + 8 * k_stage, L::K_BYTES);
#pragma unroll
                    for (int i = 0; i < L::PIECES; i++)
                        load_box(k_at + k_stage * L::K_BYTES + i * BN * 128, &k_map, 128 * i, head,
                                 token, job.batch, k_full + 8 * k_stage);
                    if (++k_stage == K_STAGES) k_stage = 0, k_parity ^= 1;
                    barrier_wait(v_empty + 8 * v_stage, v_parity);
                    barrier_expect(v_full + 8 * v_stage, L::V_BYTES);
#pragma unroll
                    for (int i = 0; i < L::BLOCKS; i++)
                        load_box(v_at + v_stage * L::V_BYTES + i * BN * 128, &v_map, 64 * i, head,
                                 token, job.batch, v_full + 8 * v_stage);
                    if (++v_stage == V_STAGES) v_stage = 0, v_parity ^= 1;
                }
                tile = next;
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int own = role - 1, lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
        const int g = lane >> 2, t = lane & 3;
        const float offset = STRICT ? 4.0f : 0.0f;  // low halves stay out of fp16's subnormals
        int k_stage = 0, k_parity = 0, v_stage = 0, v_parity = 0, q_parity = 0;
        u32 s[BN / 2], high[BN / 4], low[STRICT ? BN / 4 : 1];
        float o[L::PARTS][L::WIDE / 2];
        float fresh[STRICT ? L::PARTS : 1][STRICT ? L::WIDE / 2 : 1];
        u32 query[Q_SHARED ? 1 : L::DEPTH][4];
        Rows rows;
        // Of the tile of rows that is worked on: its number, tiles of keys that are left, and from
        // which on some row does not see all.
        int number = -1, n = 0, whole = 0;
        if (own == 1) named_arrive(TURNS, 256);

        auto take_turn = [&]() { named_sync(TURNS + own, 256); };
        auto pass_turn = [&]() { named_arrive(TURNS + 1 - own, 256); };
        auto wait_keys = [&]() {
            pin(s);
            barrier_wait(k_full + 8 * k_stage, k_parity);
        };
        auto wait_values = [&]() { barrier_wait(v_full + 8 * v_stage, v_parity); };
        auto release = [&](u32 barrier) {
            __syncwarp();
            if (lane == 0) barrier_arrive(barrier);
        };
        auto release_keys = [&]() {
            release(k_empty + 8 * k_stage);
            if (++k_stage == K_STAGES) k_stage = 0, k_parity ^= 1;
        };
        auto release_values = [&]() {
            release(v_empty + 8 * v_stage);
            if (++v_stage == V_STAGES) v_stage = 0, v_parity ^= 1;
        };
        auto multiply_keys = [&]() {
            pin(s);
            product_fence();
            const u64 keys = matrix_at(k_at + k_stage * L::K_BYTES, L::ROW, 16);
            const u64 tokens = matrix_at(q_at + own * 64 * L::ROW, L::ROW, 16);
#pragma unroll
            for (int i = 0; i < L::DEPTH; i++) {
                // 32 bytes further, and after four of them the next row of the token.
                const u64 k_step = (i % 4 * 32 + i / 4 * BN * 128) >> 4;
                const u64 q_step = (i % 4 * 32 + i / 4 * BM * 128) >> 4;
                if constexpr (Q_SHARED) product_s8(s, tokens + q_step, keys + k_step);
                else product_s8(s, query[i], keys + k_step);
            }
            product_commit();
        };
        // Into the running sums, from zero where `first`; STRICT: always from zero, aside.
        auto multiply_values = [&](bool first) {
            const u64 values = matrix_at(v_at + v_stage * L::V_BYTES, 128, BN * 128);
            pin(high);
            if constexpr (STRICT) {
                pin(low);
#pragma unroll
                for (int p = 0; p < L::PARTS; p++) pin(fresh[p]);
            } else {
#pragma unroll
                for (int p = 0; p < L::PARTS; p++) pin(o[p]);
            }
            product_fence();
#pragma unroll
            for (int p = 0; p < L::PARTS; p++) {
                const u64 part = values + ((p * (L::WIDE / 64) * BN * 128) >> 4);
                if constexpr (STRICT) {
#pragma unroll
                    for (int i = 0; i < BN / 16; i++)
                        product_f16(fresh[p], low + 4 * i, part + 128 * i, i > 0);
#pragma unroll
                    for (int i = 0; i < BN / 16; i++)
                        product_f16(fresh[p], high + 4 * i, part + 128 * i, 1);
                } else {
#pragma unroll
                    for (int i = 0; i < BN / 16; i++)
                        product_f16(o[p], high + 4 * i, part + 128 * i, i > 0 || !first);
                }
            }
            product_commit();
        };
        auto values_ready = [&]() {
            if constexpr (STRICT) {
#pragma unroll
                for (int p = 0; p < L::PARTS; p++) pin(fresh[p]);
            } else {
#pragma unroll
                for (int p = 0; p < L::PARTS; p++) pin(o[p]);
            }
        };

        // The next tile of rows: false where there is none. Queries into registers.
        auto take_job = [&]() {
            barrier_wait(q_full, q_parity);
            q_parity ^= 1;
            const Job& job = jobs[++number % JOBS];
            if (!job.valid) return false;
            if constexpr (!Q_SHARED) {
                const int row = own * 64 + warp * 16 + (lane & 15);
#pragma unroll
                for (int i = 0; i < L::DEPTH; i++) {
                    u32 at = row * L::ROW + i * 32 + (lane >> 4) * 16;
                    at ^= at >> 3 & (L::ROW == 128 ? 0x70 : 0x30);
                    load_matrices(query[i], q_at + at);
                }
                release(q_empty);
            }
            const int first = job.first + own * 64, late = job.keys - job.rows;
            const float signed_c = factor * q_scale[job.head] * k_scale[job.head / group];
            float c = fabsf(signed_c);
            c = c > 1e30f ? 1e30f : c < 1e-30f ? 1e-30f : c;  // NaN stays
            rows.c = c;
            rows.flip = signed_c < 0.0f;
            rows.steep = c > STEEP;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                rows.reference[r] = FIRST_REFERENCE;
                rows.sum[r] = 0.0f;
            }
            const int seen = causal ? min(job.keys, first + late + 1) : job.keys;
            whole = rows.flip ? 0 : max(seen, 0) / BN;
            n = key_tiles<BN>(job, causal);
            return true;
        };
        auto softmax = [&](bool middle) {
            rows.moved = false;
            rows.alpha[0] = rows.alpha[1] = 1.0f;
            if (n >= whole) {
                const Job& job = jobs[number % JOBS];
                const int last = job.first + own * 64 + warp * 16 + g + job.keys - job.rows;
                const int end = job.keys - 1;
                const int limit[2] = {causal ? min(end, last) : end, causal ? min(end, last + 8) : end};
                hide(s, rows.flip, n * BN + 2 * t, limit);
            }
            follow(s, rows, offset);
            if (rows.steep) {
#pragma unroll
                for (int i = 0; i < BN / 2; i++)
                    s[i] = __float_as_uint(__uint_as_float(s[i]) - rows.reference[i / 2 % 2]);
            }
            if (EARLY && middle) {
                // The wait, long over, is a loop: it keeps the exponentials behind it.
                pin(s);
                wait_values();
                pass_turn();
            }
            exponentials(s, rows, offset);
        };
        // The softmax of the present tile of rows is done.
        auto put_aside = [&]() {
            float unit[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                unit[r] = rows.steep ? (rows.reference[r] - 12582912.0f) * rows.c - offset
                                     : fmaf(-12582912.0f, rows.c, subtracted(rows, r, offset));
            ended[threadIdx.x - 128] = make_float4(rows.sum[0], rows.sum[1], unit[0], unit[1]);
        };
        auto write = [&](int which) {
            const Job& job = jobs[which % JOBS];
            const float4 e = ended[threadIdx.x - 128];
            const int row = job.first + own * 64 + warp * 16 + g;
            const float last_scale = v_scale[job.head / group];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float sum = group_sum(r == 0 ? e.x : e.y);
                if (row + 8 * r >= job.rows) continue;
                const int limit = causal ? row + 8 * r + job.keys - job.rows : 0;
                const bool none = limit < 0 || job.keys == 0;
                if (none) {  // not a sum of 0 over 0
#pragma unroll
                    for (int p = 0; p < L::PARTS; p++)
#pragma unroll
                        for (int i = 0; i < L::WIDE / 4; i++) o[p][i / 2 * 4 + i % 2 + 2 * r] = 0.0f;
                }
                const float y = none ? 0.0f : last_scale / sum;
                const i64 at =
                    (static_cast<i64>(job.batch) * q_len + job.q_first + row + 8 * r) * heads + job.head;
                void* to = static_cast<char*>(out) + (at * dim + 2 * t) * (out_kind == 0 ? 4 : 2);
                if (out_kind == 0) write_row<0>(to, o, r, y, 2 * t, dim);
                else if (out_kind == 1) write_row<1>(to, o, r, y, 2 * t, dim);
                else write_row<2>(to, o, r, y, 2 * t, dim);
                if (lse != nullptr && t == 0)
                    lse[at] = none ? minus_infinity()
                                   : fmaf(r == 0 ? e.z : e.w, 0.6931471805599453f, logf(sum));
            }
            if constexpr (STRICT) {
#pragma unroll
                for (int p = 0; p < L::PARTS; p++)
#pragma unroll
                    for (int i = 0; i < L::WIDE / 2; i++) o[p][i] = 0.0f;
            }
        };

        // One stream of key tiles through all tiles of rows: the scores of a tile of rows begin
        // beside the last product with values of the one before.
        if constexpr (STRICT) {
#pragma unroll
            for (int p = 0; p < L::PARTS; p++)
#pragma unroll
                for (int i = 0; i < L::WIDE / 2; i++) o[p][i] = 0.0f;
        }
        bool more = take_job(), first_tile = true;
        if (more) {
            start_scores(s);
            wait_keys();
            take_turn();
            multiply_keys();
            pass_turn();
            product_wait<0>();
            pin(s);
            release_keys();
            n--;
            if (Q_SHARED && n == 0) release(q_empty);
            softmax(false);
            pack<STRICT>(high, low, s);
            start_scores(s);
        }
#pragma unroll 1
        while (more) {
            const bool last_tile = n == 0;
            const float factors[2] = {rows.alpha[0], rows.alpha[1]};
            if (last_tile) {
                put_aside();
                if (!take_job()) break;
            }
            wait_keys();
            take_turn();
            multiply_keys();
            wait_values();
            multiply_values(first_tile);
            if (!EARLY) pass_turn();
            product_wait<1>();
            pin(s);
            release_keys();
            n--;
            if (Q_SHARED && n == 0) release(q_empty);
            softmax(true);
            // The assembler would move the exponentials below the wait for the product that they are
            // to run beside. So a wait, long over, comes first, whose address depends on them.
            pin(s);
            barrier_wait(v_full + 8 * v_stage + sign_of_sums(rows), v_parity);
            product_wait<0>();
            values_ready();
            release_values();
            if constexpr (STRICT) add_tile(o, factors, fresh);
            pack<STRICT>(high, low, s);
            if (last_tile) write(number - 1);
            else if constexpr (!STRICT) rescale(o, rows);
            first_tile = last_tile;
            start_scores(s);
        }
        if (more) {
            take_turn();
            wait_values();
            multiply_values(first_tile);
            pass_turn();
            product_wait<0>();
            values_ready();
            if constexpr (STRICT) add_tile(o, rows.alpha, fresh);
            write(number - 1);
        }
        if (own == 0) named_sync(TURNS, 256);  // the turn that nobody takes any more
    }
}

// One thread: 16 int8 of a row to fp16. to: (tokens, heads, dim), contiguous; from: the same axes,
// rows of whole 16 bytes at multiples of 16. grid: pieces of 16 / 256, block 256.
// counter: set to 0 for the attention that follows.
__global__ void __launch_bounds__(256)
widen_values(const i8* from, __half* to, int* counter, i64 pieces, int row_pieces, int heads,
             i64 tokens_of_batch, i64 from_batch, i64 from_token, i64 from_head) {
    const i64 piece = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
    if (piece == 0) *counter = 0;
    if (piece >= pieces) return;
    const i64 row = piece / row_pieces, column = piece - row * row_pieces;
    const i64 token = row / heads, head = row - token * heads;
    const i64 batch = token / tokens_of_batch, inside = token - batch * tokens_of_batch;
    u32 x[4], y[8];
    load_global<16>(x, from + batch * from_batch + inside * from_token + head * from_head + 16 * column);
    const __half2 bias = __floats2half2_rn(1152.0f, 1152.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 bits = x[i] ^ 0x80808080u;  // 0x64XX is 1024 + XX in fp16
        y[2 * i] = as_bits(__hsub2(as_half2(__byte_perm(bits, 0x64646464u, 0x4140)), bias));
        y[2 * i + 1] = as_bits(__hsub2(as_half2(__byte_perm(bits, 0x64646464u, 0x4342)), bias));
    }
    uint4* place = reinterpret_cast<uint4*>(to + 16 * piece);
    place[0] = make_uint4(y[0], y[1], y[2], y[3]);
    place[1] = make_uint4(y[4], y[5], y[6], y[7]);
}
