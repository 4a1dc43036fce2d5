// A block per token: a thread per key or value, from a latent that is there already.
extern "C" __global__ void mla_kv(const float* latents, const float* w_up_k, const float* w_up_v,
                                  float* out, int rank, int columns) {
  extern __shared__ float latent[];  // (rank)
  const long long token = blockIdx.x;
  for (int r = threadIdx.x; r < rank; r += blockDim.x) latent[r] = latents[token * rank + r];
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * columns; c += blockDim.x) {
    const float* w_up = c < columns ? w_up_k + c : w_up_v + (c - columns);
    float sum = 0;
    for (int r = 0; r < rank; ++r) sum += latent[r] * w_up[r * columns];
    out[2 * token * columns + c] = sum;
  }
}
