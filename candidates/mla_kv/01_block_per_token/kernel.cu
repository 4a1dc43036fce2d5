// A block per token: a thread per latent, then a thread per column of keys and values.
extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int model, int rank,
                                  int columns) {
  extern __shared__ float row[];  // (model), then the latent (rank)
  float* latent = row + model;
  const long long token = blockIdx.x;
  for (int m = threadIdx.x; m < model; m += blockDim.x) row[m] = hidden[token * model + m];
  __syncthreads();
  for (int r = threadIdx.x; r < rank; r += blockDim.x) {
    float sum = 0;
    for (int m = 0; m < model; ++m) sum += row[m] * w_down[m * rank + r];
    latent[r] = sum;
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
