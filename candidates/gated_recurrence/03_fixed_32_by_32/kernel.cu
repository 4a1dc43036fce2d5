// 32 x 32 threads, one per cell of the state: heads of at most 32 x 32.
constexpr int SIDE = 32;

extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int steps, int heads, int key_dim, int value_dim) {
  __shared__ float state[SIDE][SIDE];
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int i = threadIdx.y, j = threadIdx.x;
  state[i][j] = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    if (i < key_dim && j < value_dim)
      state[i][j] =
          gate[row * value_dim + j] * state[i][j] + k[row * key_dim + i] * v[row * value_dim + j];
    __syncthreads();
    if (i == 0 && j < value_dim) {
      float sum = 0;
      for (int n = 0; n < min(key_dim, SIDE); ++n) sum += q[row * key_dim + n] * state[n][j];
      y[row * value_dim + j] = sum;
    }
    __syncthreads();
  }
}
