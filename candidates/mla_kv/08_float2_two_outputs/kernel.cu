// A block per token: a thread per latent, then a thread per pair of columns.

// Columns c and c + 1 of a row; where rows cannot be read in pairs, one by one.
__device__ float2 pair(const float* row, int c, int columns, bool paired) {
  if (paired) return *reinterpret_cast<const float2*>(row + c);
  return make_float2(row[c], c + 1 < columns ? row[c + 1] : 0.0f);
}

extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int model, int rank,
                                  int columns, int paired) {
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
  for (int c = 2 * threadIdx.x; c < columns; c += 2 * blockDim.x) {
    float2 k = make_float2(0, 0), v = make_float2(0, 0);
    for (int r = 0; r < rank; ++r) {
      const float2 a = pair(w_up_k + r * columns, c, columns, paired);
      const float2 b = pair(w_up_v + r * columns, c, columns, paired);
      k.x += latent[r] * a.x;
      k.y += latent[r] * a.y;
      v.x += latent[r] * b.x;
      v.y += latent[r] * b.y;
    }
    float* keys = out + 2 * token * columns + c;
    float* values = keys + columns;
    keys[0] = k.x;
    values[0] = v.x;
    if (c + 1 < columns) {
      keys[1] = k.y;
      values[1] = v.y;
    }
  }
}
