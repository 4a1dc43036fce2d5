// A lane per column of the state; the warps of a block share out the steps.
template <int KEY_DIM>
__global__ void recur(const float* q, const float* k, const float* v, const float* gate, float* y,
                      int steps, int heads, int value_dim) {
  extern __shared__ float ends[];                     // (warps, KEY_DIM, 32): states from zero
  float* decays = ends + blockDim.y * KEY_DIM * 32;   // (warps, 32): products of the gates
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int lane = threadIdx.x, warp = threadIdx.y, j = blockIdx.y * 32 + lane;
  const int length = (steps + blockDim.y - 1) / blockDim.y;
  const int begin = warp * length, end = min(steps, begin + length);  // may be empty
  float state[KEY_DIM] = {};
  float decay = 1;
  if (j < value_dim) {
    for (int t = begin; t < end; ++t) {
      const long long row = (first_step + t) * heads + head;
      const float value = v[row * value_dim + j], factor = gate[row * value_dim + j];
      decay *= factor;
#pragma unroll
      for (int i = 0; i < KEY_DIM; ++i) state[i] = factor * state[i] + k[row * KEY_DIM + i] * value;
    }
#pragma unroll
    for (int i = 0; i < KEY_DIM; ++i) ends[(warp * KEY_DIM + i) * 32 + lane] = state[i];
    decays[warp * 32 + lane] = decay;
  }
  __syncthreads();
  if (j >= value_dim) return;
#pragma unroll
  for (int i = 0; i < KEY_DIM; ++i) {
    state[i] = 0;
    for (int before = 0; before < warp; ++before)
      state[i] = decays[before * 32 + lane] * state[i] + ends[(before * KEY_DIM + i) * 32 + lane];
  }
  for (int t = begin; t < end; ++t) {
    const long long row = (first_step + t) * heads + head;
    const float value = v[row * value_dim + j], factor = gate[row * value_dim + j];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEY_DIM; ++i) {
      state[i] = factor * state[i] + k[row * KEY_DIM + i] * value;
      sum += q[row * KEY_DIM + i] * state[i];
    }
    y[row * value_dim + j] = sum;
  }
}
