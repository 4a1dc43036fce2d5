#include "hopper.cuh"
// y = x w for 64 rows of x from registers: fragments of the next step are loaded while products run.
extern "C" __global__ void __launch_bounds__(128)
fragments(const u32* x, const u32* w, float* y, int steps) {
  __shared__ __align__(1024) u32 tile[2][16 * 32];  // 16 rows along K of 64 halves
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  float d[32] = {};
  u32 a[2][4];
  const u32* row = x + (16 * warp + lane / 4) * 8 * steps + lane % 4;
#pragma unroll 2
  for (int k = 0; k < steps; ++k) {
    for (int i = t; i < 16 * 32; i += 128) {
      const int line = i / 32, word = i % 32;
      tile[k & 1][line * 32 + (word ^ (line & 7) << 2)] = w[k * 512 + i];
    }
    for (int i = 0; i < 4; ++i) a[k & 1][i] = row[8 * k + i % 2 * 64 * steps + i / 2 * 4];
    fence_async();  // the tile is stored
    __syncthreads();  // all have stored
    fence();
    multiply(d, a[k & 1], rows_of_128(at(tile[k & 1])), k);
    commit();
    wait_products<1>();  // the step before
    __syncthreads();  // that tile is free
  }
  wait_products<0>();  // the last step
  float* out = y + (16 * warp + lane / 4) * 64 + lane % 4 * 2;
  for (int i = 0; i < 32; ++i) out[i / 4 * 8 + i % 2 + i % 4 / 2 * 8 * 64] = d[i];  // the result
}
