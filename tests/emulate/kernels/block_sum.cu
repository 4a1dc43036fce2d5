// y[block] = sum of the block's 128 elements: a tree in shared memory, its end within one warp.
extern "C" __global__ void block_sum(const float* x, float* y, int n) {
  __shared__ float s[128];
  const int t = threadIdx.x, i = blockIdx.x * 128 + t;
  s[t] = i < n ? x[i] : 0.0f;
  __syncthreads();  // filled
  for (int d = 64; d >= 32; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();  // level
  }
  if (t < 32) {
    for (int d = 16; d > 0; d >>= 1) {
      const float other = s[t + d];
      __syncwarp();  // read
      if (t < d) s[t] += other;
      __syncwarp();  // written
    }
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
