// Adds with the rounding error of the additions so far carried along (Kahan, CACM 8, 1965).
struct Sum {
  float value = 0, lost = 0;
  __device__ void add(float a, float b) {
    const float term = fmaf(a, b, -lost);
    const float next = value + term;
    lost = (next - value) - term;
    value = next;
  }
};

// A block per token: the sums of 01 with Kahan's correction.
extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int model, int rank,
                                  int columns) {
  extern __shared__ float row[];  // (model), then the latent (rank)
  float* latent = row + model;
  const long long token = blockIdx.x;
  for (int m = threadIdx.x; m < model; m += blockDim.x) row[m] = hidden[token * model + m];
  __syncthreads();
  for (int r = threadIdx.x; r < rank; r += blockDim.x) {
    Sum sum;
    for (int m = 0; m < model; ++m) sum.add(row[m], w_down[m * rank + r]);
    latent[r] = sum.value;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    Sum k, v;
    for (int r = 0; r < rank; ++r) {
      k.add(latent[r], w_up_k[r * columns + c]);
      v.add(latent[r], w_up_v[r * columns + c]);
    }
    out[2 * token * columns + c] = k.value;
    out[(2 * token + 1) * columns + c] = v.value;
  }
}
