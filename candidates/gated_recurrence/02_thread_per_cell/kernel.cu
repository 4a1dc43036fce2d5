// A thread per cell of the state, which is in shared memory; blocks share out the columns.
extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int steps, int heads, int key_dim, int value_dim) {
  extern __shared__ float state[];  // (key_dim, blockDim.x)
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int i = threadIdx.y, j = blockIdx.y * blockDim.x + threadIdx.x;
  float& cell = state[i * blockDim.x + threadIdx.x];
  cell = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    if (j < value_dim)
      cell = gate[row * value_dim + j] * cell + k[row * key_dim + i] * v[row * value_dim + j];
    __syncthreads();
    if (i == 0 && j < value_dim) {
      float sum = 0;
      for (int n = 0; n < key_dim; ++n)
        sum += q[row * key_dim + n] * state[n * blockDim.x + threadIdx.x];
      y[row * value_dim + j] = sum;
    }
    __syncthreads();
  }
}
