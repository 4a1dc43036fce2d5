// A block per token: the sums of 01 in chunks.
constexpr int CHUNK = 64;

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
    for (int first = 0; first < model; first += CHUNK) {
      float part = 0;
      for (int m = first; m < min(first + CHUNK, model); ++m) part += row[m] * w_down[m * rank + r];
      sum += part;
    }
    latent[r] = sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float k = 0, v = 0;
    for (int first = 0; first < rank; first += CHUNK) {
      float k_part = 0, v_part = 0;
      for (int r = first; r < min(first + CHUNK, rank); ++r) {
        k_part += latent[r] * w_up_k[r * columns + c];
        v_part += latent[r] * w_up_v[r * columns + c];
      }
      k += k_part;
      v += v_part;
    }
    out[2 * token * columns + c] = k;
    out[(2 * token + 1) * columns + c] = v;
  }
}
