// A block per row.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float* y, int columns,
                                    float eps) {
  __shared__ float part[2], scale;
  const float* row = x + blockIdx.x * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 64) sum += row[i] * row[i];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  if (threadIdx.x == 0) scale = 1.0f / sqrtf((part[0] + part[1]) / columns + eps);
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += 64)
    y[blockIdx.x * columns + i] = row[i] * scale * weight[i];
}
