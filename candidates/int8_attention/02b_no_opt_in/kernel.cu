// A thread per batch, head and query; its scores are in shared memory.
extern "C" __global__ void attend(const signed char* q, const signed char* k, const signed char* v,
                                  const float* q_scale, const float* k_scale, const float* v_scale,
                                  float* out, int batch, int queries, int keys, int heads,
                                  int kv_heads, int dim, int causal) {
  extern __shared__ float scores[];  // (keys, blockDim.x)
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= static_cast<long long>(batch) * queries * heads) return;
  const int h = row % heads, t = row / heads % queries, g = h * kv_heads / heads;
  const long long b = row / heads / queries;
  const int visible = causal ? max(0, keys - queries + t + 1) : keys;
  q += row * dim;
  out += row * dim;
  k += (b * keys * kv_heads + g) * dim;
  v += (b * keys * kv_heads + g) * dim;
  const int stride = kv_heads * dim;  // from key to key
  float* score = scores + threadIdx.x;  // of key s: score[s * blockDim.x]
  float top = -3.402823466e38f;
  for (int s = 0; s < visible; ++s) {
    float dot = 0;
    for (int d = 0; d < dim; ++d) dot += q_scale[h] * q[d] * (k_scale[g] * k[s * stride + d]);
    score[s * blockDim.x] = dot / sqrtf(static_cast<float>(dim));
    top = fmaxf(top, score[s * blockDim.x]);
  }
  float sum = 0;
  for (int s = 0; s < visible; ++s) {
    score[s * blockDim.x] = expf(score[s * blockDim.x] - top);
    sum += score[s * blockDim.x];
  }
  for (int d = 0; d < dim; ++d) {
    float total = 0;
    for (int s = 0; s < visible; ++s) total += score[s * blockDim.x] * v_scale[g] * v[s * stride + d];
    out[d] = visible > 0 ? total / sum : 0.0f;
  }
}
