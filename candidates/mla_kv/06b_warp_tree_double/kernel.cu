// A block per token: a warp per latent, its lanes over the model width.
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
    double sum = 0;
    for (int m = lane; m < model; m += 32)
      sum += static_cast<double>(row[m]) * w_down[m * rank + r];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) latent[r] = static_cast<float>(sum);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float k = 0, v = 0;
    for (int r = 0; r < rank; ++r) {
      k += latent[r] * w_up_k[r * columns + c];
      v += latent[r] * w_up_v[r * columns + c];
    }
    out[2 * token * columns + c] = k;
    out[(2 * token + 1) * columns + c] = v;
  }
}
