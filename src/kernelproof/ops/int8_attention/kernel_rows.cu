// Attention in every form by one warp per row, and the merge of the parts of kernel_general.cu.
//
// attend_rows: any head dimension, sizes beyond 32 bits.
// combine_parts: merges the parts of one row in their order, so that the result is the same each time.

#include "form.cuh"

constexpr int MOST_PARTS = 64, AT_ONCE = 8;

// One warp merges 32 columns of one row of (batch, q_len, heads); block 32 * WARPS. Lane s has the
// maximum and the sum of parts s and s + 32. last_scale: per head, or null where values had scales of
// their own.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
combine_parts(const float* parts, const float* last_scale, void* out, float* lse, i64 rows,
              i64 heads, i64 group, i64 scale_stride, int splits, int dim, int out_kind) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const u32 lane = threadIdx.x & 31, pieces = (dim + 31) / 32;
    const u32 index = blockIdx.x * WARPS + (threadIdx.x >> 5);  // the parts would not fit otherwise
    const i64 row = index / pieces;
    const int column = index % pieces * 32 + lane;
    if (row >= rows) return;
    const float* own = parts + row * splits * (dim + 3);
    const float c = own[dim + 2];
    float top = minus_infinity(), sum = 0.0f, weight[MOST_PARTS / 32];
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 32; i++) {
        const int s = static_cast<int>(lane) + 32 * i;
        weight[i] = s < splits ? own[s * (dim + 3) + dim] : minus_infinity();
        top = fmaxf(top, weight[i]);
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 32; i++) {
        const int s = static_cast<int>(lane) + 32 * i;
        weight[i] = part_weight(weight[i], top, c);
        if (s < splits) sum = fmaf(own[s * (dim + 3) + dim + 1], weight[i], sum);
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    float y = 0.0f;
    for (int first = 0; first < splits; first += AT_ONCE) {
        float part[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            part[i] = first + i < splits && column < dim ? own[(first + i) * (dim + 3) + column] : 0.0f;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float w = __shfl_sync(~0u, first < 32 ? weight[0] : weight[1], (first + i) & 31);
            if (first + i < splits) y = fmaf(part[i], w, y);
        }
    }
    const float scale = last_scale == nullptr ? 1.0f : last_scale[static_cast<u32>(row) % static_cast<u32>(heads) /
                                                             static_cast<u32>(group) * scale_stride];
    if (column < dim)
        write_out(out, row * dim + column, sum == 0.0f ? 0.0f : y * (scale / sum), out_kind);
    if (column == 0 && lse != nullptr) lse[row] = row_lse(top, c, sum * (1.0f / PROBABILITY_SCALE));
}

// The product of one query row and one key row, the same in every lane.
__device__ __forceinline__ int dot_row(const i8* q, const i8* k, int dim, bool words, i64 q_inner,
                                       i64 k_inner, int lane) {
    int sum = 0;
    if (words) {
        for (int d = 4 * lane; d < dim; d += 128)
            sum = __dp4a(*reinterpret_cast<const int*>(q + d), *reinterpret_cast<const int*>(k + d),
                         sum);
    } else {
        for (int d = lane; d < dim; d += 32) sum += static_cast<int>(q[d * q_inner]) * k[d * k_inner];
    }
    return __reduce_add_sync(~0u, sum);
}

__device__ __forceinline__ double largest_of_warp(double x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = fmax(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// One warp per query row; grid covers batch * q_len * heads rows, block 32 * WARPS. `sums` is the
// accumulator, (rows, dim) fp32, and may be `out` itself (each lane reads only what it wrote), so the
// head dimension is not bounded by registers. `words`: dim, pointers and strides of q and k are
// multiples of 4, and the inner strides are 1. Products of score and scale are exact in fp64.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
attend_rows(const i8* q, const i8* k, const void* v, const float* q_scale, const float* k_scale,
            const float* v_scale, void* out, float* lse, float* sums, int words, int v_half,
            FORM_PARAMETERS) {
    __shared__ float weight[WARPS][32];
    __shared__ i64 place[WARPS][32];
    const Form f = {FORM_ARGUMENTS};
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 row = static_cast<i64>(blockIdx.x) * WARPS + warp;
    if (row >= batch * q_len * heads) return;  // the whole warp; no barrier follows
    const i64 head = row % heads, token = row / heads % q_len, b = row / heads / q_len;
    const i64 kv_head = head / group;
    i64 sequence = b;
    if (cu_q != nullptr) {  // the last sequence that starts at or before the token
        i64 low = 0, high = sequences;
        while (high - low > 1) {
            const i64 middle = (low + high) / 2;
            if (cu_q[middle] <= token) low = middle; else high = middle;
        }
        sequence = low;
    }
    const Span span = span_of(f, sequence);
    q += b * q_batch + token * q_token + head * q_head;
    sums += row * dim;
    float signed_factor =
        factor * q_scale[b * qs_batch + token / q_block * qs_block + head * qs_head];
    if (!keys_scaled) signed_factor *= k_scale[kv_head * ks_head];
    const float c = capped(signed_factor);
    const double sign = signed_factor < 0.0f ? -1.0 : 1.0;
    const i64 visible =
        causal ? min(span.keys, span.keys - span.q_len + token - span.q_first + 1) : span.keys;
    double maximum = 0.0;
    float sum = 0.0f;
    for (i64 start = 0; start < visible; start += 32) {
        const int keys = static_cast<int>(min(static_cast<i64>(32), visible - start));
        i64 key_place = 0, value_place = 0;
        double scale_k = 1.0;
        float scale_v = 1.0f;
        if (lane < keys) {
            const i64 key = start + lane;
            Place p = {span.batch, span.k_first + key};
            if (table != nullptr) p = {table[b * pages + key / kv_len], key % kv_len};
            key_place = p.batch * k_batch + p.token * k_token + kv_head * k_head;
            value_place = p.batch * v_batch + p.token * v_token + kv_head * v_head;
            if (keys_scaled) scale_k = key_scale(f, k_scale, p, kv_head);
            if (values_scaled) scale_v = value_scale(f, v_scale, p, kv_head);
        }
        double x = -1e300;
        for (int j = 0; j < keys; j++) {
            const i64 from = __shfl_sync(~0u, key_place, j);
            const int score = dot_row(q, k + from, dim, words != 0, q_inner, k_inner, lane);
            if (lane == j) x = sign * score * scale_k;
        }
        double top = largest_of_warp(x);
        if (start > 0) top = fmax(top, maximum);
        const float alpha =
            start == 0 ? 0.0f : exp2_fast(static_cast<float>(maximum - top) * c);
        const float p = lane < keys ? exp2_fast(static_cast<float>(x - top) * c) : 0.0f;
        maximum = top;
        sum = fmaf(sum, alpha, p);  // per lane; added up at the end
        __syncwarp();
        weight[warp][lane] = lane < keys ? p * scale_v : 0.0f;
        place[warp][lane] = value_place;
        __syncwarp();
        for (int d = lane; d < dim; d += 32) {
            float y = 0.0f;
            for (int j = 0; j < keys; j++) {
                const i64 at = place[warp][j] + d * v_inner;
                const float value = v_half ? __half2float(static_cast<const __half*>(v)[at])
                                           : static_cast<float>(static_cast<const i8*>(v)[at]);
                y = fmaf(weight[warp][j], value, y);
            }
            sums[d] = start == 0 ? y : fmaf(sums[d], alpha, y);
        }
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    const float scale = values_scaled ? 1.0f : v_scale[kv_head * vs_head];
    const float last = visible > 0 ? scale / sum : 0.0f;
    for (int d = lane; d < dim; d += 32)
        write_out(out, row * dim + d, visible > 0 ? sums[d] * last : 0.0f, out_kind);
    if (lane == 0 && lse != nullptr)
        lse[row] = visible > 0 ? static_cast<float>(maximum * c * 0.6931471805599453 + log(static_cast<double>(sum)))
                               : minus_infinity();
}
