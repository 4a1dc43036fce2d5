// Attention of many int8 queries on Hopper: wgmma, tensor copies, warpgroups with roles. sm_90a.
//
// attend_wgmma<...>: a block takes tiles of 128 query rows of one head in turn, and one after
//   another tiles of BN keys, from the last that a row sees down to the first. One warpgroup loads;
//   two compute, 64 rows each: scores by int8 products, softmax in registers, fp16 probabilities
//   times fp16 values. The two take turns at the tensor cores: one multiplies while the other is at
//   its exponentials. The product with the values of a tile runs beside the softmax of the next.
//   While the last product of a row tile ends, the first scores of the next are multiplied.
// widen_values: values pass through memory once on their way to the tensor cores, before. int8
//   becomes fp16 there, and what is not finite becomes 0 and is kept by its place, so that no row
//   that does not see it is touched.
// prepare_wgmma: before that, where values may not be finite or have scales per token.
//
// Accuracy. A score accumulator starts at the bits MAGIC, so that read as a float it is 1.5 * 2^23
// plus the score, exactly. exp2(x c - b) is one fused multiply-add and one exponential: b, the
// row's reference, is the same number in every term and in the sum, so its own rounding cancels.
// In the lse it does not: that refers to the row's largest score (`log_of_sum`).
// STRICT adds a tile's output from fresh accumulators, the low halves of probabilities first,
// because tensor cores truncate as they accumulate. With scales per token (TOKENS), a value's scale is
// a power of two, which goes into the fp16 value, and a mantissa, which goes into the probability;
// STRICT keeps the product of score and key scale as the pair hi + lo.

#include "softmax.cuh"
#include "tiles.cuh"
#include "widen.cuh"

#define VALUE_PARAMETERS                                                                         \
    const void* values, __half* halves, int* work, int values_scaled, i64 v_batch, i64 v_token,  \
    i64 v_head
#define SCALE_PARAMETERS                                                                        \
    i64 qs_batch, i64 qs_block, i64 qs_head, i64 ks_batch, i64 ks_block, i64 ks_head,            \
    i64 vs_batch, i64 vs_block, i64 vs_head, int q_block, int k_block, int v_block

// grid: as many blocks as run at a time, block 384. Maps: (dim, head, token, batch) in boxes of a
// row of ROW bytes x 1 x BM or BN x 1 (q, k), 64 columns x 1 x BN x 1 (v).
// values.work: see widen.cuh; prepared by prepare_wgmma. gather: heads that are worked on at a time.
// D: 64, 80, 96, 128 or 256, dim of the same or less, a multiple of 16. tiles: of rows, twice as many for
// STRICT beyond 128 columns, where a job makes 128 of them (`Layout`). Q_SHARED: q stays in
// shared memory; else in registers. TOKENS: scales by `scales`, else by head, each head one float.
// INSIDE: int8 values without scales per token become fp16 in shared memory; v is then the map of `values`, in
// boxes of all columns x 1 x BN x 1.
template <int D, int BN, int K_STAGES, int V_STAGES, bool STRICT, bool Q_SHARED, bool TOKENS,
          bool HALF, bool INSIDE>
__global__ void __launch_bounds__(384, 1)
attend_wgmma(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const float* q_scale, const float* k_scale,
             const float* v_scale, void* out, float* lse, const int* cu_q, const int* cu_k,
             const int* kv_lens, int sequences, int q_len, int kv_len, int heads, int group, int dim,
             int slots, int gather, int tiles, int batches, int causal, int out_kind, float factor,
             VALUE_PARAMETERS, SCALE_PARAMETERS) {
    using L = Layout<D, BN, K_STAGES, V_STAGES, STRICT, INSIDE>;
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) u64 barriers[2 + 2 * (K_STAGES + V_STAGES + L::BYTE_STAGES)];
    __shared__ Job jobs[JOBS];
    __shared__ __align__(16) float2 scales[TOKENS ? K_STAGES * BN : 1];  // of keys: of k, of v
    const u32 q_at = (shared_offset(memory) + 1023) & ~1023u, k_at = q_at + L::Q_BYTES;
    const u32 v_at = k_at + K_STAGES * L::K_BYTES;
    const u32 q_full = shared_offset(barriers), q_empty = q_full + 8, k_full = q_full + 16;
    const u32 k_empty = k_full + 8 * K_STAGES, v_full = k_empty + 8 * K_STAGES;
    const u32 v_empty = v_full + 8 * V_STAGES;
    const u32 bytes_full = v_empty + 8 * V_STAGES, bytes_empty = bytes_full + 8 * L::BYTE_STAGES;
    const u32 bytes_at = v_at + V_STAGES * L::V_BYTES;
    const int role = uniform(threadIdx.x >> 7);
    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        // Tensor copies are announced once. What lanes read themselves, each gives back itself.
        barrier_init(q_empty, 256 + (TOKENS ? 32 : 0) + (INSIDE ? L::CONVERTERS : 0));
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(k_full + 8 * i, TOKENS ? 33 : 1);
            barrier_init(k_empty + 8 * i, TOKENS ? 256 : 8);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(v_full + 8 * i, INSIDE ? L::CONVERTERS : 1);
            barrier_init(v_empty + 8 * i, 8);
        }
        for (int i = 0; i < L::BYTE_STAGES; i++) {
            barrier_init(bytes_full + 8 * i, 1);
            barrier_init(bytes_empty + 8 * i, L::CONVERTERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    const int kv_heads = heads / group, slices = (kv_len + SLICE - 1) / SLICE;
    using V = Values<HALF, TOKENS>;
    const V all = {
        values, halves, v_scale, cu_k, work, values_scaled, kv_heads, kv_len, dim, slices,
        batches * kv_heads, sequences, v_batch, v_token, v_head, vs_batch, vs_block, vs_head, v_block};
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) {
            const Order order = {cu_q, cu_k, kv_lens, sequences, q_len, kv_len, heads, slots, gather, causal};
            wait_for_previous_kernel();  // of what it writes all is reached through this thread's copies
            int k_stage = 0, k_parity = 1, v_stage = 0, v_parity = 1, q_parity = 1;
            int tile = blockIdx.x, number = 0;
#pragma unroll 1
            while (true) {
                Job job;
                job.valid = 0;
                // Tiles behind the end of their packed sequence are skipped.
                while (tile < tiles) {
                    job = job_of(order, tile / L::SPLITS);
                    if constexpr (L::SPLITS > 1) job.valid = 1 + tile % L::SPLITS * L::COLUMNS;
                    if (job.first < job.rows) break;
                    job.valid = 0;
                    tile = static_cast<int>(gridDim.x) + atomicAdd(work, 1);
                }
                if (!TOKENS && job.valid) {
                    const int head = job.head / group;
                    job.factor = factor * __ldg(q_scale + job.head) * __ldg(k_scale + head);
                    job.value_scale = __ldg(v_scale + head);
                }
                barrier_wait(q_empty, q_parity);
                q_parity ^= 1;
                jobs[number++ % JOBS] = job;
                if (!job.valid) {
                    barrier_arrive(q_full);
                    break;
                }
                const int next = static_cast<int>(gridDim.x) + atomicAdd(work, 1);
                barrier_expect(q_full, L::Q_BYTES);
#pragma unroll
                for (int i = 0; i < L::PIECES; i++)
                    load_box(q_at + i * BM * 128, &q_map, 128 * i, job.head, job.q_first + job.first,
                             job.batch, q_full);
                const int head = job.head / group, column = L::SPLITS > 1 ? job.valid - 1 : 0;
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
                    if constexpr (INSIDE) {
                        barrier_wait(bytes_empty + 8 * v_stage, v_parity);
                        barrier_expect(bytes_full + 8 * v_stage, L::BYTE_V_BYTES);
                        load_box(bytes_at + v_stage * L::BYTE_V_BYTES, &v_map, column, head, token, job.batch,
                                 bytes_full + 8 * v_stage);
                        if (++v_stage == L::BYTE_STAGES) v_stage = 0, v_parity ^= 1;
                        continue;
                    }
                    barrier_wait(v_empty + 8 * v_stage, v_parity);
                    barrier_expect(v_full + 8 * v_stage, L::V_BYTES);
#pragma unroll
                    for (int i = 0; i < L::BLOCKS; i++)
                        load_box(v_at + v_stage * L::V_BYTES + i * BN * 128, &v_map, column + 64 * i, head,
                                 token, job.batch, v_full + 8 * v_stage);
                    if (++v_stage == V_STAGES) v_stage = 0, v_parity ^= 1;
                }
                tile = next;
            }
        } else if (INSIDE && threadIdx.x >= 32 && threadIdx.x < 32 + L::CONVERTERS) {
            int stage = 0, parity = 0, v_stage = 0, v_parity = 1, q_parity = 0;
            for (int number = 0;; number++) {
                barrier_wait(q_full, q_parity);
                q_parity ^= 1;
                const Job& job = jobs[number % JOBS];
                if (!job.valid) break;
                int n = key_tiles<BN>(job, causal);
                barrier_arrive(q_empty);
#pragma unroll 1
                for (; n > 0; n--) {
                    barrier_wait(bytes_full + 8 * stage, parity);
                    barrier_wait(v_empty + 8 * v_stage, v_parity);
                    if constexpr (INSIDE)
                        widen_tile<BN, L::COLUMNS, L::CONVERTERS>(
                            v_at + v_stage * L::V_BYTES, bytes_at + stage * L::BYTE_V_BYTES, threadIdx.x - 32);
                    stores_for_products();
                    barrier_arrive(v_full + 8 * v_stage);
                    barrier_arrive(bytes_empty + 8 * stage);
                    if (++stage == L::BYTE_STAGES) stage = 0, parity ^= 1;
                    if (++v_stage == V_STAGES) v_stage = 0, v_parity ^= 1;
                }
            }
        } else if (TOKENS && threadIdx.x < 64 && threadIdx.x >= 32) {
            const int lane = threadIdx.x & 31;
            int k_stage = 0, k_parity = 1, q_parity = 0;
            for (int number = 0;; number++) {
                barrier_wait(q_full, q_parity);
                q_parity ^= 1;
                const Job job = jobs[number % JOBS];
                if (!job.valid) break;
                barrier_arrive(q_empty);
                const int head = job.head / group;
#pragma unroll 1
                for (int n = key_tiles<BN>(job, causal) - 1; n >= 0; n--) {
                    barrier_wait(k_empty + 8 * k_stage, k_parity);
#pragma unroll 1
                    for (int i = lane; i < BN; i += 32) {
                        // Keys behind the last are hidden, whatever their scales.
                        const int token = min(job.k_first + n * BN + i, kv_len - 1);
                        const float ks = __ldg(k_scale + job.batch * ks_batch + token / k_block * ks_block + head * ks_head);
                        const float vs = values_scaled ? mantissa(value_scale_of(all, job.batch, head, token)) : 1.0f;
                        scales[k_stage * BN + i] = make_float2(ks, vs);
                    }
                    barrier_arrive(k_full + 8 * k_stage);
                    if (++k_stage == K_STAGES) k_stage = 0, k_parity ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int own = role - 1, lane = threadIdx.x & 31, warp = uniform(threadIdx.x >> 5) & 3;
        const int g = lane >> 2, t = lane & 3;
        const float offset = STRICT ? 4.0f : 0.0f;  // low halves stay out of fp16's subnormals
        int k_stage = 0, k_parity = 0, v_stage = 0, v_parity = 0, q_parity = 0;
        // PAIRED: while the probabilities of a tile are multiplied, those of the next are packed.
        constexpr bool PAIRED = !STRICT && D <= 128;
        u32 s[BN / 2], high[BN / 4], other[PAIRED ? BN / 4 : 1], low[STRICT ? BN / 4 : 1];
        float o[L::PARTS][L::WIDE / 2];
        float fresh[STRICT ? L::PARTS : 1][STRICT ? L::WIDE / 2 : 1];
        u32 query[Q_SHARED ? 1 : L::DEPTH][4];
        const u32 scales_at = shared_offset(scales);
        Rows<TOKENS> rows;
        float late = 0.0f;  // a sum of probabilities, when most of a tile are there
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
            if (TOKENS) barrier_arrive(k_empty + 8 * k_stage);
            else release(k_empty + 8 * k_stage);
            if (++k_stage == K_STAGES) k_stage = 0, k_parity ^= 1;
        };
        auto release_values = [&]() {
            release(v_empty + 8 * v_stage);
            if (++v_stage == V_STAGES) v_stage = 0, v_parity ^= 1;
        };
        // Where a stage is, before the turn is taken: it takes a moment to become uniform.
        auto keys_here = [&]() { return uniform(k_at + k_stage * L::K_BYTES); };
        auto values_here = [&]() { return uniform(v_at + v_stage * L::V_BYTES); };
        auto multiply_keys = [&](u32 keys_at) {
            pin(s);
            product_fence();
            const u64 keys = matrix_at(keys_at, L::ROW, 16);
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
        auto multiply_values = [&](u32 (&high)[BN / 4], u32 values_at, bool first) {
            const u64 values = matrix_at(values_at, 128, BN * 128);
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

        // After the wait for the scores of a tile.
        auto scores_taken = [&]() {
            pin(s);
            if (!TOKENS) release_keys();  // else with the scales
            n--;
            if (Q_SHARED && n == 0) barrier_arrive(q_empty);
        };
        // The next tile of rows: false where there is none. Queries into registers.
        auto take_job = [&]() {
            barrier_wait(q_full, q_parity);
            q_parity ^= 1;
            const Job& job = jobs[++number % JOBS];
            if (!uniform(job.valid)) return false;
            if constexpr (!Q_SHARED) {
                const int row = own * 64 + warp * 16 + (lane & 15);
#pragma unroll
                for (int i = 0; i < L::DEPTH; i++) {
                    u32 at = row * L::ROW + i * 32 + (lane >> 4) * 16;
                    at ^= at >> 3 & (L::ROW == 128 ? 0x70 : 0x30);
                    load_matrices(query[i], q_at + at);
                }
                barrier_arrive(q_empty);
            }
            const int first = job.first + own * 64, late = job.keys - job.rows;
            if constexpr (TOKENS) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    // Rows behind the last are not written.
                    const int token = job.q_first + min(first + warp * 16 + g + 8 * r, job.rows - 1);
                    const float c = factor * __ldg(q_scale + job.batch * qs_batch +
                                                   token / q_block * qs_block + job.head * qs_head);
                    rows.factor[r] = bounded(c);
                    rows.sign[r] = c < 0.0f ? -1.0f : 1.0f;
                }
            } else {
                rows.factor[0] = bounded(job.factor);
                rows.flip = job.factor < 0.0f;
                rows.steep = rows.factor[0] > STEEP;
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                rows.reference[r] = TOKENS ? -1e30f : FIRST_REFERENCE;
                rows.sum[r] = 0.0f;
                rows.top[r] = __uint_as_float(HIDDEN);
            }
            const int seen = causal ? min(job.keys, first + late + 1) : job.keys;
            whole = uniform(!TOKENS && rows.flip ? 0 : max(seen, 0) / BN);
            n = uniform(key_tiles<BN>(job, causal));
            return true;
        };
        // Scores become probabilities, if PAIRED packed to `high`, with which scores start anew.
        auto softmax = [&](u32 (&high)[BN / 4]) {
            rows.moved = false;
            rows.alpha[0] = rows.alpha[1] = 1.0f;
            const u32 here = scales_at + k_stage * (BN * 8) + 16 * t;
            if constexpr (TOKENS) scale_scores<STRICT>(s, rows, here);
            if (n >= whole) {
                const Job& job = jobs[number % JOBS];
                const int last = job.first + own * 64 + warp * 16 + g + job.keys - job.rows;
                const int end = job.keys - 1;
                const int limit[2] = {causal ? min(end, last) : end, causal ? min(end, last + 8) : end};
                if constexpr (!TOKENS) {
                    if (rows.flip) negate_scores(s);
                }
                hide(s, n * BN + 2 * t, limit);
            }
            if constexpr (TOKENS) {
                follow<STRICT>(s, rows, here);
            } else {
                follow(s, rows, offset);
                if (rows.steep) {
#pragma unroll
                    for (int i = 0; i < BN / 2; i++)
                        s[i] = __float_as_uint(__uint_as_float(s[i]) - rows.reference[i / 2 % 2]);
                }
            }
            auto take = [&](int j, float x, float y, float sum) {
                if (j == BN / 4 - 8) late = sum;
                if constexpr (PAIRED && TOKENS) {  // no registers to spare
                    high[j] = as_bits(__floats2half2_rn(x, y));
                    s[2 * j] = s[2 * j + 1] = MAGIC;
                    return __uint_as_float(high[j]);
                } else if constexpr (PAIRED) {
                    high[j] = as_bits(__floats2half2_rn(x, y));
                    s[2 * j] = start_score(__uint_as_float(high[j]));
                    s[2 * j + 1] = start_score(__uint_as_float(s[2 * j]));
                    return __uint_as_float(s[2 * j + 1]);
                } else {
                    s[2 * j] = __float_as_uint(x);
                    s[2 * j + 1] = __float_as_uint(y);
                    return sum;
                }
            };
            if constexpr (TOKENS) {
                exponentials<STRICT>(s, rows, here, offset, take);
                release_keys();
            } else {
                exponentials(s, rows, offset, take);
            }
        };
        auto write = [&](const Rows<TOKENS>& rows, const Job& job) {
            const int row = job.first + own * 64 + warp * 16 + g;
            const int head = job.head / group;
            const float last_scale = !TOKENS       ? job.value_scale
                                     : values_scaled ? value_unit(__ldcg(all.exponent() + job.batch * kv_heads + head))
                                                     : v_scale[head * vs_head];
            const i64 group_at = static_cast<i64>(job.sequence) * kv_heads + head;
            const int special = V::SPECIAL ? __ldcg(all.special() + group_at) : NEVER;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float sum = group_sum(rows.sum[r]);
                const float top = lse != nullptr ? group_max(rows.top[r]) : 0.0f;
                if (row + 8 * r >= job.rows) continue;
                const int end = job.keys - 1;
                const int limit = causal ? min(end, row + 8 * r + job.keys - job.rows) : end;
                const bool none = limit < 0;
                if (none) {  // not a sum of 0 over 0
#pragma unroll
                    for (int p = 0; p < L::PARTS; p++)
#pragma unroll
                        for (int i = 0; i < L::WIDE / 4; i++) o[p][i / 2 * 4 + i % 2 + 2 * r] = 0.0f;
                }
                const float y = none ? 0.0f : last_scale / sum;
                const i64 at =
                    (static_cast<i64>(job.batch) * q_len + job.q_first + row + 8 * r) * heads + job.head;
                const int column = (L::SPLITS > 1 ? job.valid - 1 : 0) + 2 * t;
                void* to = static_cast<char*>(out) + (at * dim + column) * (out_kind == 0 ? 4 : 2);
                if (out_kind == 0) write_row<0>(to, o, r, y, column, dim);
                else if (out_kind == 1) write_row<1>(to, o, r, y, column, dim);
                else write_row<2>(to, o, r, y, column, dim);
                if (V::SPECIAL && special <= limit) {
#pragma unroll 1
                    for (int i = column; i < min(dim, column + L::COLUMNS); i += i % 2 ? 7 : 1) {
                        const float x = special_output(all, group_at, i, limit);
                        if (x != 0.0f) write_out(out, at * dim + i, x * last_scale, out_kind);
                    }
                }
                if (lse != nullptr && column == 0)
                    lse[at] = none ? minus_infinity() : log_of_sum(rows, r, top, sum, offset);
            }
        };

        bool more = take_job();
        if (more) {
            start_scores(s);
            wait_keys();
            const u32 first_keys_at = keys_here();
            take_turn();
            multiply_keys(first_keys_at);
            pass_turn();
        }
#pragma unroll 1
        while (more) {
#pragma unroll
            for (int p = 0; p < L::PARTS; p++)
#pragma unroll
                for (int i = 0; i < L::WIDE / 2; i++) o[p][i] = 0.0f;
            product_wait<0>();
            scores_taken();
            softmax(high);
            if constexpr (!PAIRED) {
                pack<STRICT>(high, low, s);
                start_scores(s);
            }
            bool first_tile = true;
            // The product with the values of a tile beside the scores and the softmax of the next.
            auto step = [&](u32 (&from)[BN / 4], u32 (&to)[BN / 4]) {
                const float factors[2] = {rows.alpha[0], rows.alpha[1]};
                wait_keys();
                const u32 keys_at = keys_here(), values_at = values_here();
                take_turn();
                multiply_keys(keys_at);
                wait_values();
                multiply_values(from, values_at, first_tile);
                pass_turn();
                product_wait<1>();
                scores_taken();
                softmax(to);
                // The assembler would move exponentials below the wait for the product that they are
                // to run beside. So a wait, long over, comes first: it is a loop, and knows its
                // parity only after most of them.
                pin(s);
                const bool never = __float_as_uint(late) == 0x80000001u;  // a sum below 0
                barrier_wait(v_full + 8 * v_stage, v_parity + never);
                product_wait<0>();
                values_ready();
                release_values();
                if constexpr (STRICT) add_tile(o, factors, fresh);
                else rescale(o, rows);
                first_tile = false;
                if constexpr (!PAIRED) {
                    pack<STRICT>(to, low, s);
                    start_scores(s);
                }
            };
            auto finish = [&](u32 (&from)[BN / 4]) {
                const Rows<TOKENS> last = rows;
                const Job& job = jobs[number % JOBS];
                const u32 values_at = values_here();
                more = take_job();
                if (more) wait_keys();
                // Where there are none: some that were there. What comes out is not looked at.
                const u32 keys_at = uniform(k_at + (more ? k_stage : 0) * L::K_BYTES);
                take_turn();
                wait_values();
                multiply_values(from, values_at, first_tile);
                multiply_keys(keys_at);
                pass_turn();
                product_wait<1>();
                values_ready();
                release_values();
                if constexpr (STRICT) add_tile(o, last.alpha, fresh);
                write(last, job);
            };
            if constexpr (PAIRED) {
#pragma unroll 1
                while (true) {
                    if (n == 0) {
                        finish(high);
                        break;
                    }
                    step(high, other);
                    if (n == 0) {
                        finish(other);
                        break;
                    }
                    step(other, high);
                }
            } else {
#pragma unroll 1
                while (n > 0) step(high, high);
                finish(high);
            }
        }
        product_wait<0>();
        pin(s);
        if (own == 0) named_sync(TURNS, 256);  // the turn that nobody takes any more
    }
}

// Values to fp16, before attend_wgmma, which may start meanwhile. A warp takes a slice. grid: slices
// / 8, block 256. Where prepare_wgmma does not run before, it sets the counter of tiles to 0.
template <bool TOKENS, bool HALF>
__global__ void __launch_bounds__(256)
widen_values(const float* v_scale, const int* cu_k, int sequences, int kv_len, int kv_heads, int dim,
             int batches, VALUE_PARAMETERS, i64 vs_batch, i64 vs_block, i64 vs_head, int v_block) {
    const Values<HALF, TOKENS> all = {
        values, halves, v_scale, cu_k, work, values_scaled, kv_heads, kv_len, dim,
        (kv_len + SLICE - 1) / SLICE, batches * kv_heads, sequences, v_batch, v_token, v_head,
        vs_batch, vs_block, vs_head, v_block};
    let_next_kernel_start();
    if (!TOKENS && !HALF && blockIdx.x == 0 && threadIdx.x == 0) *work = 0;
    const int slice = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (slice < all.slices * all.columns) widen_slice<HALF ? 1 : 4>(all, slice, threadIdx.x & 31);
}

// What attend_wgmma's `work` is before: zeros, exponents, and no values that are not finite.
// grid: the larger of (batch, key head) and (sequence, key head), block 128.
__global__ void __launch_bounds__(128)
prepare_wgmma(int* work, const float* v_scale, int special, int values_scaled, int kv_heads, int tokens,
              int dim, int batches, int sequences, i64 vs_batch, i64 vs_block, i64 vs_head, int v_block) {
    __shared__ int most[4];
    const Values<false, true> v = {nullptr, nullptr, v_scale, nullptr, work, values_scaled, kv_heads, tokens, dim, 0,
                      batches * kv_heads, sequences, 0, 0, 0, vs_batch, vs_block, vs_head, v_block};
    const int at = blockIdx.x, thread = threadIdx.x;
    if (at == 0 && thread == 0) *work = 0;
    if (at < sequences * kv_heads) {
        if (thread == 0) v.special()[at] = NEVER;
        if (special)
            for (int i = thread; i < 3 * dim; i += 128) v.specials()[static_cast<i64>(at) * 3 * dim + i] = NEVER;
    }
    if (at >= v.columns) return;
    if (!values_scaled) return;
    const int batch = at / kv_heads, head = at - batch * kv_heads;
    int top = 27;  // smaller ones count as 2^-100
    for (int i = thread; i < (tokens + v_block - 1) / v_block; i += 128) {
        const int e = exponent_of(v_scale[batch * vs_batch + i * vs_block + head * vs_head]);
        if (e < 255) top = max(top, e);
    }
    top = __reduce_max_sync(~0u, top);
    if ((thread & 31) == 0) most[thread >> 5] = top;
    __syncthreads();
    if (thread == 0) v.exponent()[at] = max(max(most[0], most[1]), max(most[2], most[3]));
}
