// Hopper's asynchronous units as the attention kernel uses them: tensor copies of four axes,
// mbarriers, named barriers, and warpgroup products of int8 and fp16 (PTX ISA 8.0).

#pragma once

#include "common.cuh"

typedef unsigned long long u64;

// A CUtensorMap of the driver, which NVRTC has no header for.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 shared_offset(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// A number that is the same in a warp, in a way that the assembler understands. What depends on others
// does not stay in uniform registers, and each product then waits for its operands to get there.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// ---- mbarriers, by their offsets in shared memory ----

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Named barrier `id` of `threads`: to wait, and to arrive without waiting.
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// What this thread has stored in shared memory may be read by products.
__device__ __forceinline__ void stores_for_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One box of a tensor into shared memory; its bytes are counted by the barrier.
__device__ __forceinline__ void load_box(u32 to, const TensorMap* map, int x, int y, int z, int w,
                                         u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// ---- products ----

__device__ __forceinline__ void product_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void product_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void product_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The compiler moves no access to these registers across it.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
__device__ __forceinline__ void pin(u32 (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// Descriptor of a matrix in shared memory (ISA, "matrix descriptor format"). Its rows have
// `swizzle` bytes (128 or 64) and went through the swizzle of that size; groups of eight rows
// follow one another. `leading`: bytes between blocks of 64 columns of a matrix that lies along N.
__device__ __forceinline__ u64 matrix_at(u32 address, int swizzle, int leading) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(8 * swizzle >> 4) << 32 | static_cast<u64>(swizzle == 128 ? 1 : 2) << 62;
}

// Operand lists of 8 n registers: names in the template, and constraints.
#define KP_R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KP_R1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define KP_R2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define KP_R3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define KP_R4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define KP_R5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define KP_R6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define KP_R7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define KP_R8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define KP_R9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define KP_R10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define KP_R11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define KP_NAMES32 KP_R0 "," KP_R1 "," KP_R2 "," KP_R3
#define KP_NAMES40 KP_NAMES32 "," KP_R4
#define KP_NAMES48 KP_NAMES40 "," KP_R5
#define KP_NAMES64 KP_NAMES48 "," KP_R6 "," KP_R7
#define KP_NAMES80 KP_NAMES64 "," KP_R8 "," KP_R9
#define KP_NAMES96 KP_NAMES80 "," KP_R10 "," KP_R11
#define KP_8(C, i)                                                                              \
    C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define KP_ALL32(C) KP_8(C, 0), KP_8(C, 8), KP_8(C, 16), KP_8(C, 24)
#define KP_ALL40(C) KP_ALL32(C), KP_8(C, 32)
#define KP_ALL48(C) KP_ALL40(C), KP_8(C, 40)
#define KP_ALL64(C) KP_ALL48(C), KP_8(C, 48), KP_8(C, 56)
#define KP_ALL80(C) KP_ALL64(C), KP_8(C, 64), KP_8(C, 72)
#define KP_ALL96(C) KP_ALL80(C), KP_8(C, 80), KP_8(C, 88)

// d (64 x N over a warpgroup) += a (64 x 32) b (32 x N), int8, with a in registers or in memory;
// A0 .. P are the numbers of the operands behind d.
#define KP_PRODUCT_S8(N, COUNT, A0, A1, A2, A3, B)                                              \
    __device__ __forceinline__ void product_s8(u32 (&d)[COUNT], const u32 (&a)[4], u64 b) {     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" KP_NAMES##COUNT   \
                     "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", 1;"                              \
                     : KP_ALL##COUNT("+r")                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                     \
    }                                                                                           \
    __device__ __forceinline__ void product_s8(u32 (&d)[COUNT], u64 a, u64 b) {                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" KP_NAMES##COUNT   \
                     "}, " A0 ", " A1 ", 1;"                                                    \
                     : KP_ALL##COUNT("+r")                                                      \
                     : "l"(a), "l"(b));                                                         \
    }

// d (64 x N) = a (64 x 16) b (16 x N), added to d if `add`; fp16 with fp32 sums, b along N.
#define KP_PRODUCT_F16(N, COUNT, A0, A1, A2, A3, B, P)                                          \
    __device__ __forceinline__ void product_f16(float (&d)[COUNT], const u32* a, u64 b, int add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" KP_NAMES##COUNT \
                     "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 1;}"                    \
                     : KP_ALL##COUNT("+f")                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));           \
    }

KP_PRODUCT_S8(64, 32, "%32", "%33", "%34", "%35", "%36")
KP_PRODUCT_S8(80, 40, "%40", "%41", "%42", "%43", "%44")
KP_PRODUCT_S8(96, 48, "%48", "%49", "%50", "%51", "%52")
KP_PRODUCT_S8(128, 64, "%64", "%65", "%66", "%67", "%68")
KP_PRODUCT_S8(160, 80, "%80", "%81", "%82", "%83", "%84")
KP_PRODUCT_S8(192, 96, "%96", "%97", "%98", "%99", "%100")
KP_PRODUCT_F16(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
KP_PRODUCT_F16(80, 40, "%40", "%41", "%42", "%43", "%44", "%45")
KP_PRODUCT_F16(96, 48, "%48", "%49", "%50", "%51", "%52", "%53")
KP_PRODUCT_F16(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
