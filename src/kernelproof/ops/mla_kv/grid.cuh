// What kernels share whose blocks wait for one another (cooperative launches).

#pragma once

// Bypasses L1, which may hold what was there before the grid barrier.
__device__ __forceinline__ float4 load_fresh(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ float load_fresh_one(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}

// `blocks` blocks, each of which calls it with the same counter, have come here and see what each has
// written. The count only grows: 2^64 do.
__device__ __forceinline__ void barrier_of(unsigned long long* count, unsigned blocks) {
  __threadfence();
  const unsigned long long before = atomicAdd(count, 1ull);
  const unsigned long long target = (before / blocks + 1) * blocks;
  unsigned long long now;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(count) : "memory");
  } while (now < target);
}

// All blocks of the grid.
__device__ __forceinline__ void grid_barrier(unsigned long long* count) {
  barrier_of(count, gridDim.x);
}
