// A block per batch, head and tile of columns; the state is in shared memory.
extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int steps, int heads, int key_dim, int value_dim,
                                 int width) {
  extern __shared__ float state[];          // (key_dim, width)
  float* q_row = state + key_dim * width;   // (key_dim)
  float* k_row = q_row + key_dim;           // (key_dim)
  float* v_row = k_row + key_dim;           // (width)
  float* gate_row = v_row + width;          // (width)
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int first_column = blockIdx.y * width, columns = min(width, value_dim - first_column);
  for (int n = threadIdx.x; n < key_dim * width; n += blockDim.x) state[n] = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    for (int i = threadIdx.x; i < key_dim; i += blockDim.x) {
      q_row[i] = q[row * key_dim + i];
      k_row[i] = k[row * key_dim + i];
    }
    for (int j = threadIdx.x; j < columns; j += blockDim.x) {
      v_row[j] = v[row * value_dim + first_column + j];
      gate_row[j] = gate[row * value_dim + first_column + j];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < key_dim * columns; n += blockDim.x) {
      const int i = n / columns, j = n % columns;
      state[i * width + j] = gate_row[j] * state[i * width + j] + k_row[i] * v_row[j];
    }
    __syncthreads();
    for (int j = threadIdx.x; j < columns; j += blockDim.x) {
      float sum = 0;
      for (int i = 0; i < key_dim; ++i) sum += q_row[i] * state[i * width + j];
      y[row * value_dim + first_column + j] = sum;
    }
    __syncthreads();
  }
}
