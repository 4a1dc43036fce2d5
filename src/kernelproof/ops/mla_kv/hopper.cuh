// Hopper's asynchronous units: tensor maps, mbarriers and warpgroup matrix products (PTX ISA 8.0).

#pragma once

#include "common.cuh"

// A CUtensorMap of the driver, which NVRTC has no header for.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned shared_offset(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity) {
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

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One box of a tensor into shared memory; its bytes are counted by the barrier.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap* map, int x, int y,
                                         unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void load_box(unsigned to, const TensorMap* map, int x, int y, int z,
                                         unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same into every block of the cluster that `blocks` has a bit for, at the same place.
__device__ __forceinline__ void load_box_to(unsigned to, const TensorMap* map, int x, int y, int z,
                                            unsigned barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void load_box_to(unsigned to, const TensorMap* map, int x, int y,
                                            unsigned barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

// To the same place in block `rank` of the cluster, whose barrier counts the four bytes.
__device__ __forceinline__ void store_to_block(unsigned to, unsigned barrier, unsigned rank,
                                               float value) {
  asm volatile(
      "{\n"
      ".reg .b32 place, bar;\n"
      "mapa.shared::cluster.u32 place, %0, %2;\n"
      "mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %3, [bar];\n"
      "}" ::"r"(to),
      "r"(barrier), "r"(rank), "f"(value)
      : "memory");
}

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster. Orders nothing but what fences have ordered.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void store_matrices(unsigned to, unsigned r0, unsigned r1, unsigned r2,
                                               unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Which of COLUMNS columns this lane writes, eight of them, in `write_tokens`.
template <int COLUMNS>
__device__ __forceinline__ int own_columns() {
  return threadIdx.x % (COLUMNS / 8) * 8;
}

// 16 tokens x COLUMNS of a warp, which lie in d[from], ... as an accumulator of wgmma or mma.sync: a lane
// has columns 8 i + 2 (lane % 4) and the next one of rows lane / 4 and 8 more. They go through `staged`,
// 32 * COLUMNS bytes of the warp, so that whole lines leave. `out`: the first token at this lane's
// own_columns, which are inside the tensor or not; `step`: from token to token, of which there are `count`.
template <int COLUMNS, typename T, int N>
__device__ __forceinline__ void write_tokens(unsigned staged, const float (&d)[N], int from, T* out,
                                             long long step, int count, bool inside) {
  constexpr int pieces = COLUMNS / 8, rows = 32 / pieces;  // of 16 bytes in a row; at a time
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < COLUMNS / 16; ++j) {
    const float* v = d + from + j * 8;
    const int row = lane % 16, piece = 2 * j + lane / 16;
    store_matrices(staged + row * (2 * COLUMNS) + ((piece ^ (row & 7)) << 4),
                   packed(v[0], v[1], T()), packed(v[2], v[3], T()), packed(v[4], v[5], T()),
                   packed(v[6], v[7], T()));
  }
  __syncwarp();
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 16 / rows; ++i) {
    const int row = i * rows + lane / pieces, piece = lane % pieces;
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(staged + row * (2 * COLUMNS) + ((piece ^ (row & 7)) << 4))
                 : "memory");
    if (row < count) *reinterpret_cast<uint4*>(out + row * step) = v;
  }
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

// Descriptor of a matrix in shared memory whose rows of 128 bytes went through the 128-byte
// swizzle; groups of eight rows are 1,024 bytes apart. `leading`: bytes between blocks of 64
// columns, for matrices that lie along their columns.
__device__ __forceinline__ unsigned long long matrix_at(unsigned address, int leading) {
  return static_cast<unsigned long long>((address & 0x3ffff) >> 4) |
         static_cast<unsigned long long>(leading >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

// Registers of a product become readable: keeps the compiler from reading them before the wait.
template <int N>
__device__ __forceinline__ void product_ready(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d (64 x N over a warpgroup) = a (64 x 16) b (16 x N), added to d if `add`; N is twice the length of d.
// B_ALONG_N, A_ALONG_M: b, a lie along N, M. The lists are registers and operands of an instruction.
#define KERNELPROOF_PRODUCT(TYPE, VALUE, N, LENGTH, LIST, A, B, ADD, ALONG, A_ALONG, ...) \
template <int B_ALONG_N, int A_ALONG_M = 0> \
__device__ __forceinline__ void product_async(float (&d)[LENGTH], unsigned long long a, \
                                              unsigned long long b, int add, VALUE) { \
  asm volatile( \
      "{\n" \
      ".reg .pred p;\n" \
      "setp.ne.b32 p, " ADD ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, " A ", " B \
      ", p, 1, 1, " A_ALONG ", " ALONG ";\n" \
      "}" \
      : __VA_ARGS__ \
      : "l"(a), "l"(b), "r"(add), "n"(B_ALONG_N), "n"(A_ALONG_M)); \
}

// The same with a in registers: a[0] has columns 2 (lane % 4) and the next one of row lane / 4, a[1]
// those of 8 rows further, a[2] and a[3] of 8 columns further.
#define KERNELPROOF_PRODUCT_REGISTERS(TYPE, VALUE, N, LENGTH, LIST, A, B, ADD, ALONG, ...) \
template <int B_ALONG_N> \
__device__ __forceinline__ void product_async(float (&d)[LENGTH], const unsigned (&a)[4], \
                                              unsigned long long b, int add, VALUE) { \
  asm volatile( \
      "{\n" \
      ".reg .pred p;\n" \
      "setp.ne.b32 p, " ADD ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, {" A "}, " B \
      ", p, 1, 1, " ALONG ";\n" \
      "}" \
      : __VA_ARGS__ \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_ALONG_N)); \
}

// Operands of an instruction by sixteen: their names in its text, and the registers.
#define KERNELPROOF_NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define KERNELPROOF_NAMES_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KERNELPROOF_NAMES_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define KERNELPROOF_NAMES_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KERNELPROOF_NAMES_4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define KERNELPROOF_NAMES_5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define KERNELPROOF_NAMES_6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define KERNELPROOF_NAMES_7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define KERNELPROOF_NAMES_OF_32 KERNELPROOF_NAMES_0 "," KERNELPROOF_NAMES_1
#define KERNELPROOF_NAMES_OF_64 KERNELPROOF_NAMES_OF_32 "," KERNELPROOF_NAMES_2 "," KERNELPROOF_NAMES_3
#define KERNELPROOF_NAMES_OF_128 \
  KERNELPROOF_NAMES_OF_64 "," KERNELPROOF_NAMES_4 "," KERNELPROOF_NAMES_5 "," KERNELPROOF_NAMES_6 \
  "," KERNELPROOF_NAMES_7
#define KERNELPROOF_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KERNELPROOF_SUMS(i) \
  KERNELPROOF_FOUR(i), KERNELPROOF_FOUR(i + 4), KERNELPROOF_FOUR(i + 8), KERNELPROOF_FOUR(i + 12)
#define KERNELPROOF_SUMS_OF_32 KERNELPROOF_SUMS(0), KERNELPROOF_SUMS(16)
#define KERNELPROOF_SUMS_OF_64 KERNELPROOF_SUMS_OF_32, KERNELPROOF_SUMS(32), KERNELPROOF_SUMS(48)
#define KERNELPROOF_SUMS_OF_128 \
  KERNELPROOF_SUMS_OF_64, KERNELPROOF_SUMS(64), KERNELPROOF_SUMS(80), KERNELPROOF_SUMS(96), \
      KERNELPROOF_SUMS(112)
#define KERNELPROOF_PRODUCTS(TYPE, VALUE) \
  KERNELPROOF_PRODUCT(TYPE, VALUE, "64", 32, KERNELPROOF_NAMES_OF_32, "%32", "%33", "%34", "%35", \
                      "%36", KERNELPROOF_SUMS_OF_32) \
  KERNELPROOF_PRODUCT(TYPE, VALUE, "128", 64, KERNELPROOF_NAMES_OF_64, "%64", "%65", "%66", "%67", \
                      "%68", KERNELPROOF_SUMS_OF_64) \
  KERNELPROOF_PRODUCT(TYPE, VALUE, "256", 128, KERNELPROOF_NAMES_OF_128, "%128", "%129", "%130", \
                      "%131", "%132", KERNELPROOF_SUMS_OF_128) \
  KERNELPROOF_PRODUCT_REGISTERS(TYPE, VALUE, "64", 32, KERNELPROOF_NAMES_OF_32, \
                                "%32, %33, %34, %35", "%36", "%37", "%38", KERNELPROOF_SUMS_OF_32) \
  KERNELPROOF_PRODUCT_REGISTERS(TYPE, VALUE, "128", 64, KERNELPROOF_NAMES_OF_64, \
                                "%64, %65, %66, %67", "%68", "%69", "%70", KERNELPROOF_SUMS_OF_64)
KERNELPROOF_PRODUCTS("f16", __half)
KERNELPROOF_PRODUCTS("bf16", __nv_bfloat16)

#undef KERNELPROOF_PRODUCT
#undef KERNELPROOF_PRODUCT_REGISTERS
#undef KERNELPROOF_NAMES_0
#undef KERNELPROOF_NAMES_1
#undef KERNELPROOF_NAMES_2
#undef KERNELPROOF_NAMES_3
#undef KERNELPROOF_NAMES_4
#undef KERNELPROOF_NAMES_5
#undef KERNELPROOF_NAMES_6
#undef KERNELPROOF_NAMES_7
#undef KERNELPROOF_NAMES_OF_32
#undef KERNELPROOF_NAMES_OF_64
#undef KERNELPROOF_NAMES_OF_128
#undef KERNELPROOF_FOUR
#undef KERNELPROOF_SUMS
#undef KERNELPROOF_SUMS_OF_32
#undef KERNELPROOF_SUMS_OF_64
#undef KERNELPROOF_SUMS_OF_128
#undef KERNELPROOF_PRODUCTS
