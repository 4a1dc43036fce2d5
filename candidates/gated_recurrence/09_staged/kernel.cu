// A thread per column of the state; the vectors of many steps are staged in shared memory.
template <int KEY_DIM>
__global__ void recur(const float* q, const float* k, const float* v, const float* gate, float* y,
                      int steps, int heads, int value_dim, int staged) {
  extern __shared__ float q_rows[];               // (staged, KEY_DIM)
  float* k_rows = q_rows + staged * KEY_DIM;      // (staged, KEY_DIM)
  float* v_rows = k_rows + staged * KEY_DIM;      // (staged, blockDim.x)
  float* gate_rows = v_rows + staged * blockDim.x;
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int lane = threadIdx.x, j = blockIdx.y * blockDim.x + lane;
  float state[KEY_DIM] = {};
  for (int start = 0; start < steps; start += staged) {
    const int count = min(staged, steps - start);
    __syncthreads();  // what was staged before is no longer read
    for (int n = lane; n < count * KEY_DIM; n += blockDim.x) {
      const long long row = (first_step + start + n / KEY_DIM) * heads + head;
      q_rows[n] = q[row * KEY_DIM + n % KEY_DIM];
      k_rows[n] = k[row * KEY_DIM + n % KEY_DIM];
    }
    if (j < value_dim) {
      for (int t = 0; t < count; ++t) {
        const long long row = (first_step + start + t) * heads + head;
        v_rows[t * blockDim.x + lane] = v[row * value_dim + j];
        gate_rows[t * blockDim.x + lane] = gate[row * value_dim + j];
      }
    }
    __syncthreads();
    if (j < value_dim) {
      for (int t = 0; t < count; ++t) {
        const float value = v_rows[t * blockDim.x + lane], decay = gate_rows[t * blockDim.x + lane];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < KEY_DIM; ++i) {
          state[i] = decay * state[i] + k_rows[t * KEY_DIM + i] * value;
          sum += q_rows[t * KEY_DIM + i] * state[i];
        }
        y[((first_step + start + t) * heads + head) * value_dim + j] = sum;
      }
    }
  }
}
