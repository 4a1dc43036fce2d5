// Mean and variance of a row by shuffles within warps and shared memory between them.
extern "C" __global__ void layernorm(const float* x, float* y, int columns) {
  extern __shared__ float part[];  // one per warp, then the result
  const int t = threadIdx.x, lane = t & 31, warp = t / 32, warps = blockDim.x / 32;
  const float* row = x + blockIdx.x * columns;
  float stats[2];
  for (int pass = 0; pass < 2; ++pass) {
    float sum = 0.0f;
    for (int i = t; i < columns; i += blockDim.x)
      sum += pass ? (row[i] - stats[0]) * (row[i] - stats[0]) : row[i];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) part[warp] = sum;
    __syncthreads();  // parts
    if (t == 0) {
      float all = 0.0f;
      for (int w = 0; w < warps; ++w) all += part[w];
      part[warps] = all / columns;
    }
    __syncthreads();  // result
    stats[pass] = part[warps];
    __syncthreads();  // next pass
  }
  for (int i = t; i < columns; i += blockDim.x)
    y[blockIdx.x * columns + i] = (row[i] - stats[0]) * rsqrtf(stats[1] + 1e-5f);
}
