// What all kernels use: instructions, loads, conversions to fragments, outputs.

#pragma once

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

// The same, or 16 zeros where not `present`.
__device__ __forceinline__ void copy_async_or_zero(void* to, const i8* from, bool present) {
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(present ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last committed group of this thread's copies have arrived.
__device__ __forceinline__ void wait_copies_but_last() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// Waits until all but the last PENDING committed groups of this thread's copies have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// For launches that may overlap the end of the previous kernel in the stream (programmatic dependent
// launch): before anything is read or written; and, where this kernel has little left to do.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- end of instructions ----

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ u32 as_bits(__half2 x) { return *reinterpret_cast<u32*>(&x); }
__device__ __forceinline__ __half2 as_half2(u32 x) { return *reinterpret_cast<__half2*>(&x); }

// 1024 instead of 1 at the maximum: keeps the low halves out of fp16's subnormal range.
constexpr float PROBABILITY_SCALE = 1024.0f;
// An accumulator that starts at these bits is, read as a float, 1.5 * 2^23 plus the sum: no
// conversion. Exact for |sum| <= 2^22, so for head dimensions up to 256.
constexpr int MAGIC = 0x4B400000;
// Bytes that one lane loads at once. The head dimension is permuted so that each lane loads
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

// ---- outputs ----

// bfloat16 by bits, rounded to nearest even.
__device__ __forceinline__ unsigned short bfloat_bits(float x) {
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// out_kind: 0 float, 1 bfloat16, 2 half.
__device__ __forceinline__ unsigned short short_bits(float x, int out_kind) {
    return out_kind == 1 ? bfloat_bits(x) : __half_as_ushort(__float2half_rn(x));
}

__device__ __forceinline__ void write_out(void* out, i64 place, float x, int out_kind) {
    if (out_kind == 0)
        static_cast<float*>(out)[place] = x;
    else
        static_cast<unsigned short*>(out)[place] = short_bits(x, out_kind);
}

// Four neighbours, aligned to their size.
__device__ __forceinline__ void write_four(void* out, i64 place, float4 x, int out_kind) {
    if (out_kind == 0)
        *reinterpret_cast<float4*>(static_cast<float*>(out) + place) = x;
    else
        *reinterpret_cast<ushort4*>(static_cast<unsigned short*>(out) + place) =
            make_ushort4(short_bits(x.x, out_kind), short_bits(x.y, out_kind),
                         short_bits(x.z, out_kind), short_bits(x.w, out_kind));
}

// Natural logarithm of a row's sum of exponentials; `sum` is relative to `top`.
__device__ __forceinline__ float row_lse(float top, float c, float sum) {
    return sum == 0.0f ? minus_infinity() : fmaf(top * c, 0.6931471805599453f, logf(sum));
}
