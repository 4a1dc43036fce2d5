// Clusters of blocks that read and write each other's shared memory (PTX ISA 8.0, 9.7.13.4), and copies
// of whole matrices into shared memory.

#pragma once

#include "hopper.cuh"
#include "mma.cuh"

// All threads of the cluster; what they wrote to shared memory before is seen after it.
__device__ __forceinline__ void cluster_meet() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

__device__ __forceinline__ unsigned address_in(unsigned shared, unsigned block) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(block));
  return there;
}

__device__ __forceinline__ float4 load_from_block(unsigned address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Four values, rounded to T.
template <typename T>
__device__ __forceinline__ void store_to_block(unsigned address, const float (&v)[4], T type) {
  asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(packed(v[0], v[1], type)),
               "r"(packed(v[2], v[3], type))
               : "memory");
}

__device__ __forceinline__ void store_to_block(unsigned address, const float (&v)[4], float) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}

// ROWS x COLUMNS elements to shared memory, those of the first `rows` x `columns` from from(row,
// column), the others zeros. WIDE: 16 bytes at a time, asynchronously; else one element, BATCH in
// flight.
template <typename T, int ROWS, int COLUMNS, int PITCH, int THREADS, bool WIDE, typename From>
__device__ void fill(T* shared, int rows, int columns, const T* anything, From from) {
  constexpr int piece = WIDE ? 16 / sizeof(T) : 1, per_row = COLUMNS / piece;
  constexpr int number = ROWS * per_row, loads = ceil_div(number, THREADS), batch = 16;
  if constexpr (WIDE) {
#pragma unroll 4
    for (int i = threadIdx.x; i < number; i += THREADS) {
      const int row = i / per_row, column = i % per_row * piece;
      const int left = row < rows ? min(columns - column, piece) : 0;
      copy_16(shared + row * PITCH + column, left > 0 ? from(row, column) : anything,
              max(left, 0) * static_cast<int>(sizeof(T)));
    }
  } else {
#pragma unroll 1
    for (int l = 0; l < loads; l += batch) {
      T value[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = threadIdx.x + (l + j) * THREADS, row = i / per_row, column = i % per_row;
        value[j] = row < min(rows, ROWS) && column < columns ? *from(row, column) : T(0.0f);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = threadIdx.x + (l + j) * THREADS;
        if (i < number) shared[i / per_row * PITCH + i % per_row] = value[j];
      }
    }
  }
}
