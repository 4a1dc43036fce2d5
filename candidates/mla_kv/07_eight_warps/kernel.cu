// A block per token: a warp per latent, then a thread per key or value.
extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int model, int rank,
                                  int columns) {
  extern __shared__ float row[];  // (model), then the latent (rank)
  float* latent = row + model;
  const long long token = blockIdx.x;
  for (int m = threadIdx.x; m < model; m += blockDim.x) row[m] = hidden[token * model + m];
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int r = threadIdx.x / 32; r < rank; r += warps) {
    float sum = 0;
    for (int m = lane; m < model; m += 32) sum += row[m] * w_down[m * rank + r];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) latent[r] = sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * columns; c += blockDim.x) {
    const float* w_up = c < columns ? w_up_k + c : w_up_v + (c - columns);
    float sum = 0;
    for (int r = 0; r < rank; ++r) sum += latent[r] * w_up[r * columns];
    out[2 * token * columns + c] = sum;
  }
}
