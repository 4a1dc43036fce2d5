// A block per token; each thread forms all latents, for one key and one value at a time.
extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int model, int rank,
                                  int columns) {
  const long long token = blockIdx.x;
  const float* row = hidden + token * model;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float k = 0, v = 0;
    for (int r = 0; r < rank; ++r) {
      float latent = 0;
      for (int m = 0; m < model; ++m) latent += row[m] * w_down[m * rank + r];
      k += latent * w_up_k[r * columns + c];
      v += latent * w_up_v[r * columns + c];
    }
    out[2 * token * columns + c] = k;
    out[(2 * token + 1) * columns + c] = v;
  }
}
