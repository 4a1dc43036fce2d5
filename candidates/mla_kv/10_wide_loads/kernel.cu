// A block per token; all sizes are multiples of four and all pointers of 16 bytes.

__device__ float4 multiply_add(float a, float4 b, float4 c) {
  return make_float4(c.x + a * b.x, c.y + a * b.y, c.z + a * b.z, c.w + a * b.w);
}

extern "C" __global__ void mla_kv(const float4* __restrict__ hidden,
                                  const float4* __restrict__ w_down,
                                  const float4* __restrict__ w_up_k,
                                  const float4* __restrict__ w_up_v, float4* __restrict__ out,
                                  int model, int rank, int columns) {
  extern __shared__ float4 shared[];
  const int quads = rank / 4, splits = max(1u, blockDim.x / quads);
  float* row = reinterpret_cast<float*>(shared);  // (model)
  float4* parts = shared + model / 4;             // (splits, rank)
  float* latent = row + model + splits * rank;    // (rank)
  const long long token = blockIdx.x;
  for (int n = threadIdx.x; n < model / 4; n += blockDim.x)
    shared[n] = __ldg(hidden + token * (model / 4) + n);
  __syncthreads();
  for (int n = threadIdx.x; n < splits * quads; n += blockDim.x) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int m = n / quads; m < model; m += splits)
      sum = multiply_add(row[m], __ldg(w_down + m * quads + n % quads), sum);
    parts[n] = sum;
  }
  __syncthreads();
  for (int r = threadIdx.x; r < rank; r += blockDim.x) {
    float sum = 0;
    for (int split = 0; split < splits; ++split)
      sum += reinterpret_cast<float*>(parts)[split * rank + r];
    latent[r] = sum;
  }
  __syncthreads();
  const int wide = columns / 4;
  for (int n = threadIdx.x; n < 2 * wide; n += blockDim.x) {
    const float4* w_up = n < wide ? w_up_k + n : w_up_v + (n - wide);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int r = 0; r < rank; ++r) sum = multiply_add(latent[r], __ldg(w_up + r * wide), sum);
    out[2 * token * wide + n] = sum;
  }
}
