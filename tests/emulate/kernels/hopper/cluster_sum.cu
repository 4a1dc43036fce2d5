#include "hopper.cuh"
// y[c] = the sum of 2 x 128 numbers: the blocks of a cluster read each other's partial sums.
extern "C" __global__ void __cluster_dims__(2) cluster_sum(const float* x, float* y) {
  __shared__ float part;
  const int t = threadIdx.x;
  float sum = x[128 * blockIdx.x + t];
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (t == 0) part = 0;
  __syncthreads();
  if (t % 32 == 0) atomicAdd(&part, sum);
  arrive_cluster();  // the sums are there
  wait_cluster();  // for the sums
  if (t == 0 && rank() == 0) y[blockIdx.x / 2] = part + get(peer(&part, 1));  // both parts
  arrive_cluster();  // the sums are read
  wait_cluster();  // until they are
}
