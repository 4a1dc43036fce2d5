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
  const bool some = rows > 0 && columns > 0;
  // Nearest place that there is, so that no load is in a branch: those would wait for one another.
  const int last_row = max(rows - 1, 0), last_column = max(columns - 1, 0) / piece * piece;
  if constexpr (WIDE) {
#pragma unroll 4
    for (int i = threadIdx.x; i < number; i += THREADS) {
      const int row = i / per_row, column = i % per_row * piece;
      const int left = row < rows ? max(min(columns - column, piece), 0) : 0;
      const T* at = some ? from(min(row, last_row), min(column, last_column)) : anything;
      copy_16(shared + row * PITCH + column, at, left * static_cast<int>(sizeof(T)));
    }
  } else {
#pragma unroll 1
    for (int l = 0; l < loads; l += batch) {
      T value[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = threadIdx.x + (l + j) * THREADS, row = i / per_row, column = i % per_row;
        value[j] = *(some ? from(min(row, last_row), min(column, last_column)) : anything);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = threadIdx.x + (l + j) * THREADS, row = i / per_row, column = i % per_row;
        if (i < number)
          shared[row * PITCH + column] = row < rows && column < columns ? value[j] : T(0.0f);
      }
    }
  }
}

// `terms` rows from k0 on of `columns` columns from n0 on of a weight, as MmaShape S has them; column n
// starts at column(n).
template <typename S, int THREADS, typename Column>
__device__ void fill_columns(typename S::T* shared, const typename S::T* w, const Side& side, int n0,
                             int columns, int k0, int terms, Column column) {
  typedef typename S::T T;
  if constexpr (S::K_MAJOR)
    fill<T, S::BN, S::BK, S::w_pitch, THREADS, S::WIDE_W>(
        shared, columns, terms, w,
        [&](int n, int k) { return w + column(n0 + n) + (k0 + k) * side.row; });
  else
    fill<T, S::BK, S::BN, S::w_pitch, THREADS, S::WIDE_W>(
        shared, terms, columns, w,
        [&](int k, int n) { return w + column(n0 + n) + (k0 + k) * side.row; });
}

template <typename S, int THREADS>
__device__ void fill_weight(typename S::T* shared, const typename S::T* w, const Side& side, int n0,
                            int columns, int k0, int terms) {
  // Divisions by the width of a head take longer than the copies.
  if (side.head == side.width * side.column || side.columns == side.width)
    fill_columns<S, THREADS>(shared, w, side, n0, columns, k0, terms,
                             [&](int n) { return n * side.column; });
  else
    fill_columns<S, THREADS>(shared, w, side, n0, columns, k0, terms,
                             [&](int n) { return weight_column(side, n); });
}
