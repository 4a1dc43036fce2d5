// wgmma: products of four warps whose right operand lies in shared memory. sm_90a.

#pragma once

#include "tensor_core.cuh"

typedef unsigned long long u64;

// What this thread has written to shared memory, and what its copies have, becomes visible to wgmma.
__device__ __forceinline__ void show_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
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

// Descriptor of panels of 64 columns: rows of 128 bytes, their 16-byte units permuted by the row, 8
// rows of 1,024 bytes after each other; `panel`: bytes from a panel to the next.
__device__ __forceinline__ u64 matrix_at(u32 address, int panel) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(panel >> 4) << 16 |
         64ull << 32 | 1ull << 62;
}

// Keeps the compiler from moving what touches these registers across a fence or a wait.
template <int N>
__device__ __forceinline__ void ready(float (&d)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}
template <int N>
__device__ __forceinline__ void ready(u32 (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

#define R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define NAMES8 R8(0, 1, 2, 3, 4, 5, 6, 7)
#define NAMES16 NAMES8 "," R8(8, 9, 10, 11, 12, 13, 14, 15)
#define NAMES32                                                                             \
  NAMES8 "," R8(8, 9, 10, 11, 12, 13, 14, 15) "," R8(16, 17, 18, 19, 20, 21, 22, 23) ","   \
         R8(24, 25, 26, 27, 28, 29, 30, 31)
#define NAMES64                                                                             \
  NAMES32 "," R8(32, 33, 34, 35, 36, 37, 38, 39) "," R8(40, 41, 42, 43, 44, 45, 46, 47) "," \
          R8(48, 49, 50, 51, 52, 53, 54, 55) "," R8(56, 57, 58, 59, 60, 61, 62, 63)
#define NAMES128                                                                               \
  NAMES64 "," R8(64, 65, 66, 67, 68, 69, 70, 71) "," R8(72, 73, 74, 75, 76, 77, 78, 79) ","   \
          R8(80, 81, 82, 83, 84, 85, 86, 87) "," R8(88, 89, 90, 91, 92, 93, 94, 95) ","       \
          R8(96, 97, 98, 99, 100, 101, 102, 103) "," R8(104, 105, 106, 107, 108, 109, 110, 111) "," \
          R8(112, 113, 114, 115, 116, 117, 118, 119) "," R8(120, 121, 122, 123, 124, 125, 126, 127)
#define D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D16(i) D4(i), D4(i + 1), D4(i + 2), D4(i + 3)
#define SUMS8 D4(0), D4(1)
#define SUMS16 D16(0)
#define SUMS32 D16(0), D16(4)
#define SUMS64 SUMS32, D16(8), D16(12)
#define SUMS128 SUMS64, D16(16), D16(20), D16(24), D16(28)

// d (64 x N over a warpgroup) = a (64 x 16) b (16 x N), added to d; b along its columns
// (ALONG 1) or along the 16. Sums lie as those of mma.sync with 16 x 8 do, 8 columns after the other.
#define PRODUCT(N, COUNT, ALONG, A0,      A1, A2, A3, B)                                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES##COUNT "}, {"  \
               A0 "," A1 "," A2 "," A3 "}, " B ", 1, 1, 1, " ALONG ";"                     \
               : SUMS##COUNT                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                              \
               : "memory")

// The columns of the state times 16 steps of q.
__device__ __forceinline__ void product_of_rows(float (&d)[2][4], const u32 (&a)[4], u64 b) {
  PRODUCT(16, 8, "0", "%8", "%9", "%10", "%11", "%12");
}
// The same of 32 and of 64 steps.
__device__ __forceinline__ void product_of_rows(float (&d)[4][4], const u32 (&a)[4], u64 b) {
  PRODUCT(32, 16, "0", "%16", "%17", "%18", "%19", "%20");
}
__device__ __forceinline__ void product_of_rows(float (&d)[8][4], const u32 (&a)[4], u64 b) {
  PRODUCT(64, 32, "0", "%32", "%33", "%34", "%35", "%36");
}
// 64 steps of q times 64 of k, of 16 rows of the state, both in shared memory.
__device__ __forceinline__ void product_of_both(float (&d)[8][4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES32 "}, %32, %33, 1, 1, 1, 0, 0;"
               : SUMS32
               : "l"(a), "l"(b)
               : "memory");
}
// v of 16 steps times k of all rows of the state, added to it.
__device__ __forceinline__ void product_of_steps(float (&d)[8][4], const u32 (&a)[4], u64 b) {
  PRODUCT(64, 32, "1", "%32", "%33", "%34", "%35", "%36");
}
__device__ __forceinline__ void product_of_steps(float (&d)[16][4], const u32 (&a)[4], u64 b) {
  PRODUCT(128, 64, "1", "%64", "%65", "%66", "%67", "%68");
}
__device__ __forceinline__ void product_of_steps(float (&d)[32][4], const u32 (&a)[4], u64 b) {
  PRODUCT(256, 128, "1", "%128", "%129", "%130", "%131", "%132");
}
#undef PRODUCT
#undef R8
#undef D4
#undef D16
