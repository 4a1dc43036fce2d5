#include "hopper.cuh"
// Each block of a pair sends its row, reversed, into the other's shared memory, round after round.
// What a block sends tells the other that the row before the last has been taken.
extern "C" __global__ void __cluster_dims__(2) exchange(const float* x, float* y, int rounds) {
  __shared__ __align__(16) float row[2][64];
  __shared__ u64 came[2];
  const int t = threadIdx.x, other = rank() ^ 1;
  if (t == 0) {
    init(&came[0], 1);
    init(&came[1], 1);
    init_seen();
  }
  __syncthreads();
  arrive_cluster();  // the barriers are there
  wait_cluster();  // for the barriers
  for (int i = 0; i < rounds; ++i) {
    const int s = i & 1;
    if (t == 0) expect(&came[s], 256);  // bytes of a row
    send(peer(&row[s][63 - t], other), x[(i * 2 + blockIdx.x) * 64 + t], peer(&came[s], other));
    wait(&came[s], i / 2 & 1);  // the row has come
    y[(i * 2 + blockIdx.x) * 64 + t] = row[s][t];  // take it
  }
}
