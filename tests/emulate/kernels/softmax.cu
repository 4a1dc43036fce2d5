// One warp per row of up to 64 elements.
extern "C" __global__ void softmax(const float* x, float* y, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
  if (row >= rows) return;
  float v[2], top = -1e30f, sum = 0.0f;
  for (int j = 0; j < 2; ++j) {
    v[j] = lane + 32 * j < columns ? x[row * columns + lane + 32 * j] : -1e30f;
    top = fmaxf(top, v[j]);
  }
  for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
  for (int j = 0; j < 2; ++j) sum += v[j] = expf(v[j] - top);
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < columns) y[row * columns + lane + 32 * j] = v[j] / sum;
}
