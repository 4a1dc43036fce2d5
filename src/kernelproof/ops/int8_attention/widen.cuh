// Values on their way to the fp16 that tensor cores multiply: once per call, through memory.

#pragma once

#include "common.cuh"

constexpr int SLICE = 64;  // tokens that a warp converts at a time
constexpr int NEVER = 0x7fffffff;

// Values of a call, int8 or HALF. Where SCALED and `scaled`, a token's scale is a power of two here,
// relative to the largest of its key head, times a mantissa that `mantissa` tells.
template <bool HALF, bool SCALED>
struct Values {
    static constexpr bool SPECIAL = HALF || SCALED;  // there may be values that are not finite
    const void* from;
    __half* to;          // (batch, key head, token, dim)
    const float* scale;  // of tokens or blocks of them
    const int* cu_k;     // may be null
    int* work;           // see below
    int scaled, kv_heads, tokens, dim, slices, columns, sequences;
    i64 from_batch, from_token, from_head, scale_batch, scale_block, scale_head;
    int block;

    // Tiles of rows that have been taken; the largest exponent of a scale, by (batch, key head); first
    // token with a value that is not finite, by (sequence, key head); and the same for each kind of
    // these, and column.
    __device__ __forceinline__ int* exponent() const { return work + 1; }
    __device__ __forceinline__ int* special() const { return exponent() + columns; }
    __device__ __forceinline__ int* specials() const { return special() + sequences * kv_heads; }
};

// Biased exponent of a scale; 255 for what is not finite, 0 for 0 and what counts as 0.
__device__ __forceinline__ int exponent_of(float scale) {
    return __float_as_int(scale) >> 23 & 255;
}

// scale / 2^exponent, of magnitude 1 to 2; 0 for 0 and for what is kept by its place.
__device__ __forceinline__ float mantissa(float scale) {
    const int e = exponent_of(scale);
    return e == 0 || e == 255 ? 0.0f : __int_as_float((__float_as_int(scale) & 0x807fffff) | 0x3f800000);
}

// 2^8 over the largest exponent: values of 7 bits stay below 2^15, and are exact in fp16 for scales
// from 2^-32 of the largest on. As a float, the power of two that takes it back.
__device__ __forceinline__ float value_unit(int exponent) {
    return __int_as_float((exponent - 8) << 23);
}

template <class V>
__device__ __forceinline__ float value_scale_of(const V& v, int batch, int head, int token) {
    return __ldg(v.scale + batch * v.scale_batch + token / v.block * v.scale_block + head * v.scale_head);
}

// Keeps the place of a value that is not finite.
template <class V>
__device__ __forceinline__ void keep_special(const V& v, int batch, int head, int token, int column,
                                          float value) {
    int sequence = batch;
    if (v.cu_k != nullptr) {
        int low = 0, high = v.sequences;  // the last that starts at most here
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (v.cu_k[middle] <= token) low = middle; else high = middle;
        }
        sequence = low;
        token -= v.cu_k[low];
    }
    const int at = sequence * v.kv_heads + head, kind = isnan(value) ? 0 : value > 0.0f ? 1 : 2;
    atomicMin(v.special() + at, token);
    atomicMin(v.specials() + (static_cast<i64>(at) * 3 + kind) * v.dim + column, token);
}

// Eight fp16; what is not finite becomes 0.
template <class V>
__device__ __forceinline__ void keep_finite(const V& v, u32 (&y)[4], int batch, int head, int token,
                                            int column) {
    bool special = false;
#pragma unroll
    for (int i = 0; i < 4; i++)
        special = special || (y[i] & 0x7c00u) == 0x7c00u || (y[i] & 0x7c000000u) == 0x7c000000u;
    if (!special) return;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const u32 both = i < 4 ? (i < 2 ? y[0] : y[1]) : (i < 6 ? y[2] : y[3]), part = both >> (i % 2 * 16);
        if ((part & 0x7c00u) == 0x7c00u)
            keep_special(v, batch, head, token, column + i,
                         __half2float(__ushort_as_half(static_cast<unsigned short>(part))));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if ((y[i] & 0x7c00u) == 0x7c00u) y[i] &= 0xffff0000u;
        if ((y[i] & 0x7c000000u) == 0x7c000000u) y[i] &= 0xffffu;
    }
}

// 0x64XX is 1024 + XX in fp16; with the sign bit flipped, XX is value + 128.
__device__ __forceinline__ void widen_word(u32 (&y)[2], u32 x) {
    const __half2 bias = __floats2half2_rn(1152.0f, 1152.0f);
    const u32 bits = x ^ 0x80808080u;
    y[0] = as_bits(__hsub2(as_half2(__byte_perm(bits, 0x64646464u, 0x4140)), bias));
    y[1] = as_bits(__hsub2(as_half2(__byte_perm(bits, 0x64646464u, 0x4342)), bias));
}

// A tile of int8 values in shared memory, BN rows of COLUMNS bytes, becomes fp16 as a product takes it: blocks
// of 64 columns, rows of 128 bytes with their pieces of 16 permuted (see matrix_at). By THREADS threads: whole
// warps of them, where 32 pieces are whole rows, take units of four pieces a lane in turn; else each thread takes
// 8 columns of every 8th row. Several pieces are on their way at a time.
template <int BN, int COLUMNS, int THREADS>
__device__ __forceinline__ void widen_tile(u32 to, u32 from, int thread) {
    constexpr int PIECES = COLUMNS / 8;
    constexpr bool BY_WARPS = 32 % PIECES == 0;
    constexpr int AT_ONCE = BY_WARPS || BN % 32 == 0 ? 4 : 2;
    constexpr int STEP = BY_WARPS ? 32 / PIECES : 8;  // rows from a piece of a thread to the next
    constexpr int UNITS = BN / (STEP * AT_ONCE), WARPS = THREADS / 32;
    static_assert(BN % (STEP * AT_ONCE) == 0 && (BY_WARPS || THREADS == 8 * PIECES));
    const int lane = BY_WARPS ? thread & 31 : thread;
    const int row = lane / PIECES, column = lane - row * PIECES;
    from += 8 * lane;
    to += column / 8 * (BN * 128) + row * 128 + ((column ^ row) & 7) * 16;
#pragma unroll 1
    for (int unit = BY_WARPS ? thread >> 5 : 0; unit < UNITS; unit += BY_WARPS ? WARPS : 1) {
        u32 x[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x[i][0]), "=r"(x[i][1])
                         : "r"(from + (unit * AT_ONCE + i) * STEP * COLUMNS));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u32 at = (to ^ (i * STEP & 7) * 16) + (unit * AT_ONCE + i) * STEP * 128;
            u32 y[2], z[2];
            widen_word(y, x[i][0]);
            widen_word(z, x[i][1]);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(y[0]), "r"(y[1]), "r"(z[0]),
                         "r"(z[1]) : "memory");
        }
    }
}

// One piece of 8 values of a token: x holds them, `scale` is its scale.
template <bool HALF, bool SCALED>
__device__ __forceinline__ uint4 widen_piece(const Values<HALF, SCALED>& v, const u32 (&x)[HALF ? 4 : 2],
                                             float scale, int batch, int head, int token, int column) {
    u32 y[4];
    if constexpr (HALF) {
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = x[i];
        keep_finite(v, y, batch, head, token, column);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 two[2];
            widen_word(two, x[i]);
            y[2 * i] = two[0];
            y[2 * i + 1] = two[1];
        }
        if (SCALED && v.scaled) {
            const int e = exponent_of(scale);
            const int power = max(e - __ldcg(v.exponent() + batch * v.kv_heads + head) + 8, -40) + 127;
            const __half unit = __float2half_rn(e == 255 ? 0.0f : __int_as_float(power << 23));
            if (e == 255) {
#pragma unroll 1
                for (int i = 0; i < 8; i++) {
                    const i8 value = static_cast<i8>((i < 4 ? x[0] : x[1]) >> (i % 4 * 8));
                    keep_special(v, batch, head, token, column + i, static_cast<float>(value) * scale);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = as_bits(__hmul2(as_half2(y[i]), __half2half2(unit)));
        }
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

// By one warp. Each lane takes pieces of 8 values, AT_ONCE of them on their way.
template <int AT_ONCE, bool HALF, bool SCALED>
__device__ __forceinline__ void widen_slice(const Values<HALF, SCALED>& v, int index, int lane) {
    const int place = index / v.slices, first = (index - place * v.slices) * SLICE;
    const int batch = place / v.kv_heads, head = place - batch * v.kv_heads;
    const int row_pieces = v.dim / 8, pieces = min(SLICE, v.tokens - first) * row_pieces;
    constexpr int SIZE = HALF ? 2 : 1;
    const i8* from = static_cast<const i8*>(v.from) +
                     SIZE * (batch * v.from_batch + head * v.from_head + first * v.from_token);
    uint4* to = reinterpret_cast<uint4*>(v.to + (static_cast<i64>(place) * v.tokens + first) * v.dim);
#pragma unroll 1
    for (int piece = lane; piece < pieces; piece += 32 * AT_ONCE) {
        u32 x[AT_ONCE][HALF ? 4 : 2];
        float scale[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = min(piece + 32 * i, pieces - 1), row = at / row_pieces;
            load_global<8 * SIZE>(x[i], from + SIZE * (row * v.from_token + 8 * (at - row * row_pieces)));
            if (SCALED && !HALF && v.scaled) scale[i] = value_scale_of(v, batch, head, first + row);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = piece + 32 * i, row = at / row_pieces;
            if (at >= pieces) break;
            to[at] = widen_piece(v, x[i], scale[i], batch, head, first + row, 8 * (at - row * row_pieces));
        }
    }
}

// What values that are not finite make of an output of a row whose last key is `limit`; 0 for nothing.
template <class V>
__device__ __forceinline__ float special_output(const V& v, i64 at, int column, int limit) {
    const int* first = v.specials() + at * 3 * v.dim + column;
    const bool nan = __ldcg(first) <= limit, more = __ldcg(first + v.dim) <= limit;
    const bool less = __ldcg(first + 2 * v.dim) <= limit;
    if (nan || (more && less)) return __int_as_float(0x7fffffff);
    return more ? infinity() : less ? minus_infinity() : 0.0f;
}
