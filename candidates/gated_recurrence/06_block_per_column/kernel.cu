// A block per batch, head and column; a thread per row of the state.
extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int steps, int heads, int key_dim, int value_dim) {
  __shared__ float parts[32];
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int i = threadIdx.x, j = blockIdx.y, warps = blockDim.x / 32;
  float cell = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    float sum = 0;
    if (i < key_dim) {
      cell = gate[row * value_dim + j] * cell + k[row * key_dim + i] * v[row * value_dim + j];
      sum = q[row * key_dim + i] * cell;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (warps > 1) {
      if (i % 32 == 0) parts[i / 32] = sum;
      __syncthreads();
      if (i == 0)
        for (int n = 1; n < warps; ++n) sum += parts[n];
      __syncthreads();
    }
    if (i == 0) y[row * value_dim + j] = sum;
  }
}
