#include "hopper.cuh"
// y = 2 x by rows of 256 numbers: bulk copies in and out, two buffers.
extern "C" __global__ void stream(const float* x, float* y, int rows) {
  __shared__ __align__(128) float in[2][256], out[2][256];
  __shared__ u64 full[2];
  const int t = threadIdx.x;
  if (t == 0) {
    init(&full[0], 1);
    init(&full[1], 1);
    init_seen();
  }
  __syncthreads();
  auto fill = [&](int r) {
    expect(&full[r & 1], 1024);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 :: "r"(at(in[r & 1])), "l"(x + 256 * r), "r"(at(&full[r & 1])) : "memory");
  };
  if (t == 0) fill(0);
  for (int r = 0; r < rows; ++r) {
    if (t == 0 && r + 1 < rows) fill(r + 1);
    wait(&full[r & 1], r / 2 & 1);  // the row is there
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the buffer is free
    __syncthreads();  // all know that
    for (int i = t; i < 256; i += 64) out[r & 1][i] = 2 * in[r & 1][i];
    fence_async();  // the row is stored
    __syncthreads();  // all have stored
    if (t == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;"
                   :: "l"(y + 256 * r), "r"(at(out[r & 1])) : "memory");
      commit_store();
    }
  }
  if (t == 0) wait_store();  // before the block ends
}
