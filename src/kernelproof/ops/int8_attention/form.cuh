// What the kernels of every form have in common: their arguments, where tokens are, and outputs.

#pragma once

#include "common.cuh"

constexpr int WARPS = 4;

// Scores times this are exponents of 2. Above 1e30, infinity * 0 would be NaN; there a score one
// below the maximum has the probability 0 already. A NaN stays.
__device__ __forceinline__ float capped(float c) {
    c = fabsf(c);
    return c > 1e30f ? 1e30f : c;
}

// The arguments that all kernels have, behind the pointers. Strides count elements. Scales per head have strides of 0 for batch and block.
struct Form {
    const int *cu_q, *cu_k, *kv_lens, *table;  // may be null
    i64 batch, q_len, kv_len, heads, group;    // with a table, kv_len is that of a page
    int dim;
    i64 sequences, pages;  // pages: columns of the table
    int causal, keys_scaled, values_scaled, out_kind;
    i64 q_batch, q_token, q_head, q_inner, k_batch, k_token, k_head, k_inner;
    i64 v_batch, v_token, v_head, v_inner;
    i64 qs_batch, qs_block, qs_head, ks_batch, ks_block, ks_head, vs_batch, vs_block, vs_head;
    int q_block, k_block, v_block;  // tokens per scale
    float factor;
};

#define FORM_PARAMETERS                                                                           \
    const int* cu_q, const int* cu_k, const int* kv_lens, const int* table, i64 batch, i64 q_len, \
    i64 kv_len, i64 heads, i64 group, int dim, i64 sequences, i64 pages, int causal,              \
    int keys_scaled, int values_scaled, int out_kind, i64 q_batch, i64 q_token, i64 q_head,       \
    i64 q_inner, i64 k_batch, i64 k_token, i64 k_head, i64 k_inner, i64 v_batch, i64 v_token,     \
    i64 v_head, i64 v_inner, i64 qs_batch, i64 qs_block, i64 qs_head, i64 ks_batch, i64 ks_block, \
    i64 ks_head, i64 vs_batch, i64 vs_block, i64 vs_head, int q_block, int k_block, int v_block,  \
    float factor

#define FORM_ARGUMENTS                                                                            \
    cu_q, cu_k, kv_lens, table, batch, q_len, kv_len, heads, group, dim, sequences, pages,        \
    causal, keys_scaled, values_scaled, out_kind, q_batch, q_token, q_head, q_inner, k_batch,     \
    k_token, k_head, k_inner, v_batch, v_token, v_head, v_inner, qs_batch, qs_block, qs_head,     \
    ks_batch, ks_block, ks_head, vs_batch, vs_block, vs_head, q_block, k_block, v_block, factor

// ---- where things are ----

// One sequence: its tokens' places, and how many there are.
struct Span {
    i64 batch, q_first, q_len, k_first, keys;
};

// The last sequence whose first tile is at most `tile`. Tiles of `rows` rows: each sequence gets
// floor(end * group / rows) - floor(start * group / rows) + 1, which is enough whatever its start,
// and known without the others.
__device__ __forceinline__ i64 first_tile(const Form& f, i64 n, int rows) {
    return static_cast<i64>(f.cu_q[n]) * f.group / rows + n;
}

__device__ __forceinline__ i64 sequence_of_tile(const Form& f, i64 tile, int rows) {
    i64 low = 0, high = f.sequences;  // first_tile(low) <= tile < first_tile(high)
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (first_tile(f, middle, rows) <= tile) low = middle; else high = middle;
    }
    return low;
}

// Lengths are not trusted beyond the tensors.
__device__ __forceinline__ Span span_of(const Form& f, i64 n) {
    if (f.cu_q != nullptr) {
        const i64 q_first = f.cu_q[n], k_first = f.cu_k[n];
        return {0, q_first, f.cu_q[n + 1] - q_first, k_first, f.cu_k[n + 1] - k_first};
    }
    i64 keys = f.kv_len;
    if (f.kv_lens != nullptr) {
        const i64 most = f.table != nullptr ? f.pages * f.kv_len : f.kv_len;
        keys = max(static_cast<i64>(0), min(static_cast<i64>(f.kv_lens[n]), most));
    }
    return {n, 0, f.q_len, 0, keys};
}

struct Place {
    i64 batch, token;  // of the tensors k and v; with pages, page and slot
};

template <bool PAGED>
__device__ __forceinline__ Place place_of(const Form& f, const Span& s, int key) {
    if constexpr (PAGED) {
        const u32 page = static_cast<u32>(key) / static_cast<u32>(f.kv_len);
        const u32 slot = static_cast<u32>(key) - page * static_cast<u32>(f.kv_len);
        return {f.table[s.batch * f.pages + page], slot};
    } else {
        return {s.batch, s.k_first + key};
    }
}

__device__ __forceinline__ float key_scale(const Form& f, const float* k_scale, const Place& p,
                                           i64 head) {
    return __ldg(k_scale + p.batch * f.ks_batch + p.token / f.k_block * f.ks_block + head * f.ks_head);
}

__device__ __forceinline__ float value_scale(const Form& f, const float* v_scale, const Place& p,
                                             i64 head) {
    return __ldg(v_scale + p.batch * f.vs_batch + p.token / f.v_block * f.vs_block + head * f.vs_head);
}

// What a part with the maximum m counts beside the whole row's.
__device__ __forceinline__ float part_weight(float m, float top, float c) {
    return m == minus_infinity() ? 0.0f : exp2_fast((m - top) * c);
}
