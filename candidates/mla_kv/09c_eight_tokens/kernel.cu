// A block per 8 tokens: a thread per latent, then a thread per column, for all of them.
constexpr int TOKENS = 8;

extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int tokens, int model,
                                  int rank, int columns) {
  extern __shared__ float rows[];  // (TOKENS, model), then the latents (TOKENS, rank)
  float* latents = rows + TOKENS * model;
  const long long first = static_cast<long long>(blockIdx.x) * TOKENS;
  const int count = static_cast<int>(min(static_cast<long long>(TOKENS), tokens - first));
  for (int n = threadIdx.x; n < TOKENS * model; n += blockDim.x)
    rows[n] = n < count * model ? hidden[first * model + n] : 0.0f;
  __syncthreads();
  for (int r = threadIdx.x; r < rank; r += blockDim.x) {
    float sum[TOKENS] = {};
    for (int m = 0; m < model; ++m) {
      const float weight = w_down[m * rank + r];
      for (int t = 0; t < TOKENS; ++t) sum[t] += rows[t * model + m] * weight;
    }
    for (int t = 0; t < TOKENS; ++t) latents[t * rank + r] = sum[t];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float k[TOKENS] = {}, v[TOKENS] = {};
    for (int r = 0; r < rank; ++r) {
      const float k_weight = w_up_k[r * columns + c], v_weight = w_up_v[r * columns + c];
      for (int t = 0; t < TOKENS; ++t) {
        k[t] += latents[t * rank + r] * k_weight;
        v[t] += latents[t * rank + r] * v_weight;
      }
    }
    for (int t = 0; t < TOKENS; ++t) {
      if (t < count) {
        out[2 * (first + t) * columns + c] = k[t];
        out[(2 * (first + t) + 1) * columns + c] = v[t];
      }
    }
  }
}
