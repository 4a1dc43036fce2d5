// A thread per column of the state, and the gate on the wrong axis.
template <int KEY_DIM>
__global__ void recur(const float* q, const float* k, const float* v, const float* gate, float* y,
                      int steps, int heads, int value_dim) {
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int j = blockIdx.y * blockDim.x + threadIdx.x;
  if (j >= value_dim) return;
  float state[KEY_DIM] = {};
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    const float value = v[row * value_dim + j];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEY_DIM; ++i) {
      const float decay = i < value_dim ? gate[row * value_dim + i] : 1.0f;
      state[i] = decay * state[i] + k[row * KEY_DIM + i] * value;
      sum += q[row * KEY_DIM + i] * state[i];
    }
    y[row * value_dim + j] = sum;
  }
}
