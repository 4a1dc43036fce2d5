#include "hopper.cuh"
// c = a b^T in fp16: one warpgroup loads tiles by tensor copies, two multiply; 128 x 64 x 64 tiles.
constexpr int STAGES = 2, A = 128 * 64, B = 64 * 64;

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ Map ma, const __grid_constant__ Map mb, const __grid_constant__ Map mc,
     int steps) {
  extern __shared__ __align__(1024) unsigned short tiles[];
  __shared__ u64 full[STAGES], empty[STAGES];
  unsigned short *ta = tiles, *tb = tiles + STAGES * A, *tc = tb + STAGES * B;
  const int t = threadIdx.x, group = t / 128;
  if (t == 0) {
    for (int s = 0; s < STAGES; ++s) init(&full[s], 1);
    for (int s = 0; s < STAGES; ++s) init(&empty[s], 2);
    init_seen();
  }
  __syncthreads();
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // the loader
    if (t == 0) {
      for (int k = 0; k < steps; ++k) {
        const int s = k % STAGES;
        if (k >= STAGES) wait(&empty[s], (k / STAGES - 1) & 1);  // the stage is free
        expect(&full[s], 2 * (A + B));
        load(ta + s * A, &ma, &full[s], 64 * k, 128 * blockIdx.y);
        load(tb + s * B, &mb, &full[s], 64 * k, 64 * blockIdx.x);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");  // the multipliers
    const int w = group - 1, lane = t % 32, warp = t % 128 / 32;
    float d[32];
    for (int k = 0; k < steps; ++k) {
      const int s = k % STAGES;
      wait(&full[s], k / STAGES & 1);  // the stage is filled
      fence();
      for (int i = 0; i < 4; ++i)
        multiply(d, rows_of_128(at(ta + s * A + w * 64 * 64) + 32 * i),
                 rows_of_128(at(tb + s * B) + 32 * i), k + i);
      commit();
      wait_products<0>();  // of the stage
      if (t % 128 == 0) arrive(&empty[s]);  // let the stage go
    }
    unsigned short* mine = tc + w * 64 * 64;
    for (int j = 0; j < 8; ++j) {
      u32 pairs[2];
      for (int h = 0; h < 2; ++h)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs[h]) : "f"(d[4 * j + 2 * h + 1]), "f"(d[4 * j + 2 * h]));
      const int row = 16 * warp + lane % 16, piece = j ^ (row & 7);
      asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                   :: "r"(at(mine + row * 64 + piece * 8)), "r"(pairs[0]), "r"(pairs[1]) : "memory");
    }
    fence_async();  // the tile is stored
    asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory");  // all have stored
    if (t % 128 == 0) {
      store(&mc, mine, 64 * blockIdx.x, 128 * blockIdx.y + 64 * w);
      commit_store();
      wait_store();  // before the block ends
    }
  }
}
