// A warp per column of the state, a row (or more) in each lane.
template <int ROWS>
__global__ void recur(const float* q, const float* k, const float* v, const float* gate, float* y,
                      int steps, int heads, int key_dim, int value_dim) {
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int lane = threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (j >= value_dim) return;
  float state[ROWS] = {};
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    const float value = v[row * value_dim + j], decay = gate[row * value_dim + j];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < ROWS; ++n) {
      const int i = lane + 32 * n;
      if (i < key_dim) {
        state[n] = decay * state[n] + k[row * key_dim + i] * value;
        sum += q[row * key_dim + i] * state[n];
      }
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) y[row * value_dim + j] = sum;
  }
}
