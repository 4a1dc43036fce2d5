// Blocks that go round the tokens, with w_down in shared memory where it fits.
extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int tokens, int model,
                                  int rank, int columns, int resident) {
  extern __shared__ float row[];  // (model), then the latent (rank), then w_down (model, rank)
  float* latent = row + model;
  const float* weights = w_down;
  if (resident) {
    float* copy = latent + rank;
    for (int n = threadIdx.x; n < model * rank; n += blockDim.x) copy[n] = w_down[n];
    weights = copy;
  }
  for (long long token = blockIdx.x; token < tokens; token += gridDim.x) {
    for (int m = threadIdx.x; m < model; m += blockDim.x) row[m] = hidden[token * model + m];
    __syncthreads();
    for (int r = threadIdx.x; r < rank; r += blockDim.x) {
      float sum = 0;
      for (int m = 0; m < model; ++m) sum += row[m] * weights[m * rank + r];
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
    __syncthreads();  // the latent is no longer read
  }
}
