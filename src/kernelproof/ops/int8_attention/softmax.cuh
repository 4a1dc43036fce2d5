// The softmax of a warp's 16 rows in the registers of attend_wgmma's products, and what is done with
// its sums. s: scores as accumulators leave them, later probabilities as floats, by bits.

#pragma once

#include "hopper.cuh"

constexpr u32 HIDDEN = 0xff61b1e6u;  // -3e38: the exponential of what a row does not see is 0
// Below every score that MAGIC makes, so the first tile always finds a larger one.
constexpr float FIRST_REFERENCE = 8.0e6f;
// The reference follows a score once that is 2^8 above it: probabilities up to 256 fit fp16.
constexpr float SLACK = 8.0f;
// Factors above this: the reference is subtracted from the score first, which is exact.
constexpr float STEEP = 1.0f;

// The softmax of a lane's two rows, g and g + 8 of the warp's 16.
template <bool TOKENS>
struct Rows {
    float reference[2], sum[2];
    float top[2];    // the largest score that this lane has seen
    float alpha[2];  // what the last tile's new reference makes of older results
    float factor[TOKENS ? 2 : 1];  // scores (times key scales) times this are exponents of 2
    float sign[TOKENS ? 2 : 1];    // of what that is the magnitude of
    bool flip, steep, moved;       // not TOKENS: the sign is negative; the factor is above STEEP

    __device__ __forceinline__ float c(int r) const { return factor[TOKENS ? r : 0]; }
};

// What is subtracted from a score times c.
__device__ __forceinline__ float subtracted(const Rows<false>& rows, int r, float offset) {
    return rows.steep ? -offset : fmaf(rows.reference[r], rows.c(r), -offset);
}

// Factors of 0 would be NaN with what is hidden, infinite ones with differences of 0; NaN stays.
__device__ __forceinline__ float bounded(float c) {
    c = fabsf(c);
    return c > 1e30f ? 1e30f : c < 1e-30f ? 1e-30f : c;
}

template <int N>
__device__ __forceinline__ void start_scores(u32 (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = MAGIC;
}

// Before the maximum: what the diagonal or the end hides.
template <int N>
__device__ __forceinline__ void hide(u32 (&s)[N], int key, const int (&limit)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if (key + i / 4 * 8 + i % 2 > limit[i / 2 % 2]) s[i] = HIDDEN;
}

template <int N>
__device__ __forceinline__ void negate_scores(u32 (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = 2u * MAGIC - s[i];
}

// The largest score of this lane's rows, as bits. Positive floats compare as integers.
template <int N>
__device__ __forceinline__ void largest(int (&top)[2], const u32 (&s)[N]) {
    int other[2];
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
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = max(top[r], other[r]);
}

// Moves the references where a score is far above. Lanes look at their own scores alone; only if
// one is too large do the four lanes of a row agree.
template <int N>
__device__ __forceinline__ void follow(const u32 (&s)[N], Rows<false>& rows, float offset) {
    int top[2];
    largest(top, s);
#pragma unroll
    for (int r = 0; r < 2; r++) rows.top[r] = __int_as_float(max(__float_as_int(rows.top[r]), top[r]));
    const float slack = SLACK / rows.c(0);
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; r++) far = far || top[r] > __float_as_int(rows.reference[r] + slack);
    rows.moved = __any_sync(~0u, far);
    if (!rows.moved) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float old = rows.reference[r], old_b = subtracted(rows, r, offset);
        rows.reference[r] = fmaxf(old, group_max(__int_as_float(top[r])));
        rows.alpha[r] = exp2_fast(rows.steep ? (old - rows.reference[r]) * rows.c(r)
                                             : old_b - subtracted(rows, r, offset));
        rows.sum[r] *= rows.alpha[r];
    }
}

// x, whatever `by` is, as long as that is finite; but only once `by` is there. The assembler would issue
// all exponentials in a row, with the additions and multiplications that fit between them before and
// after: with one of these in the way of each pair it mixes them.
__device__ __forceinline__ float held(float x, float by) {
    float y;
    asm volatile("fma.rn.f32 %0, %1, 0f00000000, %2;" : "=f"(y) : "f"(by), "f"(x));
    return y;
}

// How many pairs further the one is that waits for a pair; 2, 3 and 6 were no faster.
constexpr int BEHIND = 4;

// Scores become probabilities relative to the references. Pair j of a row is given to `take` when the
// exponentials of a few more are on their way; what it returns, these wait for.
template <int N, class Take>
__device__ __forceinline__ void exponentials(u32 (&s)[N], Rows<false>& rows, float offset, Take take) {
    float sum[4] = {};
    float b[2] = {-subtracted(rows, 0, offset), -subtracted(rows, 1, offset)};
    auto finish = [&](int j) {
        const float x = __uint_as_float(s[2 * j]), y = __uint_as_float(s[2 * j + 1]);
        sum[j % 2 * 2] += x;
        sum[j % 2 * 2 + 1] += y;
        b[j % 2] = held(b[j % 2], take(j, x, y, sum[j % 2 * 2 + 1]));
    };
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        if (j >= BEHIND) finish(j - BEHIND);
#pragma unroll
        for (int i = 2 * j; i < 2 * j + 2; i++)
            s[i] = __float_as_uint(exp2_fast(fmaf(__uint_as_float(s[i]), rows.c(j % 2), b[j % 2])));
    }
#pragma unroll
    for (int j = N / 2 - BEHIND; j < N / 2; j++) finish(j);
    rows.sum[0] += sum[0] + sum[1];
    rows.sum[1] += sum[2] + sum[3];
}

// ---- the same with scales per token ----

// (key scale, mantissa of the value scale) of this lane's keys 8 i + 2 t and the next, from memory.
__device__ __forceinline__ float4 scales_of(u32 scales, int i) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(scales + 64 * i));
    return x;
}

// Signed scores as floats, times key scales unless STRICT.
template <bool STRICT, int N>
__device__ __forceinline__ void scale_scores(u32 (&s)[N], const Rows<true>& rows, u32 scales) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 x = scales_of(scales, i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float sign = rows.sign[e / 2];
            float y = fmaf(__uint_as_float(s[4 * i + e]), sign, -12582912.0f * sign);
            if constexpr (!STRICT) y *= e % 2 ? x.z : x.x;
            s[4 * i + e] = __float_as_uint(y);
        }
    }
}

template <bool STRICT, int N>
__device__ __forceinline__ void follow(const u32 (&s)[N], Rows<true>& rows, u32 scales) {
    float top[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float4 x = {1.0f, 0.0f, 1.0f, 0.0f};
        if constexpr (STRICT) x = scales_of(scales, i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float y = __uint_as_float(s[4 * i + e]);
            // What is hidden stays so, whatever the sign of its scale.
            const float z = STRICT && s[4 * i + e] != HIDDEN ? y * (e % 2 ? x.z : x.x) : y;
            top[e / 2] = fmaxf(top[e / 2], z);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) rows.top[r] = fmaxf(rows.top[r], top[r]);
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; r++) far = far || top[r] > rows.reference[r] + SLACK / rows.c(r);
    rows.moved = __any_sync(~0u, far);
    if (!rows.moved) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float old = rows.reference[r];
        rows.reference[r] = fmaxf(old, group_max(top[r]));
        rows.alpha[r] = exp2_fast((old - rows.reference[r]) * rows.c(r));
        rows.sum[r] *= rows.alpha[r];
    }
}

// Probabilities times the mantissas of value scales are what `take` gets; the sums are without them.
template <bool STRICT, int N, class Take>
__device__ __forceinline__ void exponentials(u32 (&s)[N], Rows<true>& rows, u32 scales, float offset,
                                             Take take) {
    float sum[4] = {};
    float reference[2] = {rows.reference[0], rows.reference[1]};
    float p[N], mantissas[N / 2];
    auto finish = [&](int j) {
        const float x = p[2 * j], y = p[2 * j + 1];
        sum[j % 2 * 2] += x;
        sum[j % 2 * 2 + 1] += y;
        const float last =
            take(j, x * mantissas[j / 2 * 2], y * mantissas[j / 2 * 2 + 1], sum[j % 2 * 2 + 1]);
        reference[j % 2] = held(reference[j % 2], last);
    };
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 x = scales_of(scales, i);
        mantissas[2 * i] = x.y;
        mantissas[2 * i + 1] = x.w;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int j = 2 * i + r;
            if (j >= BEHIND) finish(j - BEHIND);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float y = __uint_as_float(s[2 * j + e]), scale = e ? x.z : x.x;
                float difference;
                if constexpr (STRICT) {
                    const float hi = __fmul_rn(y, scale);
                    difference = (hi - reference[r]) + fmaf(y, scale, -hi);
                    if (s[2 * j + e] == HIDDEN) difference = minus_infinity();
                } else {
                    difference = y - reference[r];
                }
                p[2 * j + e] = exp2_fast(fmaf(difference, rows.c(r), offset));
            }
        }
    }
#pragma unroll
    for (int j = N / 2 - BEHIND; j < N / 2; j++) finish(j);
    rows.sum[0] += sum[0] + sum[1];
    rows.sum[1] += sum[2] + sum[3];
}

// ---- the logarithm of the sum ----

// Of a row with the largest score `top` and the sum `sum`: top's exponent, which is exact, plus the
// logarithm of sum over top's own probability. That is computed as it was for the sum, so the errors of
// the reference and of the exponential cancel: a row of one key has the logarithm 0 there.
__device__ __forceinline__ float log_of_sum(const Rows<false>& rows, int r, float top, float sum, float offset) {
    const float x = rows.steep ? top - rows.reference[r] : top;
    const float own = exp2_fast(fmaf(x, rows.c(r), -subtracted(rows, r, offset)));
    return fmaf((top - 12582912.0f) * rows.c(r), 0.6931471805599453f, logf(sum / own));
}

__device__ __forceinline__ float log_of_sum(const Rows<true>& rows, int r, float top, float sum, float offset) {
    const float own = exp2_fast(fmaf(top - rows.reference[r], rows.c(r), offset));
    return fmaf(top * rows.c(r), 0.6931471805599453f, logf(sum / own));
}

// What a pair of scores starts from, once its probabilities are packed.
__device__ __forceinline__ u32 start_score(float by) {
    return __float_as_uint(held(__uint_as_float(MAGIC), by));
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

template <int PARTS, int N, bool TOKENS>
__device__ __forceinline__ void rescale(float (&o)[PARTS][N], const Rows<TOKENS>& rows) {
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
