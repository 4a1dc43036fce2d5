// A warp per batch, head and query; q and k in words of four bytes.
extern "C" __global__ void attend(const int* q, const int* k, const signed char* v,
                                  const float* q_scale, const float* k_scale, const float* v_scale,
                                  float* out, int queries, int keys, int heads, int kv_heads,
                                  int words, int dim, int causal) {
  extern __shared__ float weight[];  // (keys)
  const int lane = threadIdx.x;
  const int h = blockIdx.x % heads, t = blockIdx.x / heads % queries, g = h * kv_heads / heads;
  const long long b = blockIdx.x / heads / queries;
  const int visible = causal ? max(0, keys - queries + t + 1) : keys;
  q += static_cast<long long>(blockIdx.x) * words;
  out += static_cast<long long>(blockIdx.x) * dim;
  k += (b * keys * kv_heads + g) * words;
  v += (b * keys * kv_heads + g) * dim;

  const float scale = q_scale[h] * k_scale[g] / sqrtf(static_cast<float>(dim));
  float top = -3.402823466e38f;
  for (int s = lane; s < visible; s += 32) {
    int dot = 0;  // exact
    for (int n = 0; n < words; ++n) dot = __dp4a(q[n], k[s * kv_heads * words + n], dot);
    weight[s] = static_cast<float>(dot) * scale;
    top = fmaxf(top, weight[s]);
  }
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  float sum = 0;
  for (int s = lane; s < visible; s += 32) {
    weight[s] = expf(weight[s] - top);
    sum += weight[s];
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  __syncwarp();
  for (int d = lane; d < dim; d += 32) {
    float total = 0;
    for (int s = 0; s < visible; ++s) total += weight[s] * v[s * kv_heads * dim + d];
    out[d] = visible > 0 ? total / sum * v_scale[g] : 0.0f;
  }
}
