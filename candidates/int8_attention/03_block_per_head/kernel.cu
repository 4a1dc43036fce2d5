// A block per batch and head; a thread per query.
template <int DIM>
__global__ void attend(const signed char* q, const signed char* k, const signed char* v,
                       const float* q_scale, const float* k_scale, const float* v_scale, float* out,
                       int queries, int keys, int heads, int kv_heads, int causal) {
  extern __shared__ float k_rows[];     // (keys, DIM)
  float* v_rows = k_rows + keys * DIM;  // (keys, DIM)
  const int h = blockIdx.x % heads, g = h * kv_heads / heads;
  const long long b = blockIdx.x / heads;
  k += (b * keys * kv_heads + g) * DIM;
  v += (b * keys * kv_heads + g) * DIM;
  for (int n = threadIdx.x; n < keys * DIM; n += blockDim.x) {
    const int at = n / DIM * kv_heads * DIM + n % DIM;
    k_rows[n] = k[at] * k_scale[g];
    v_rows[n] = v[at] * v_scale[g];
  }
  __syncthreads();
  for (int t = threadIdx.x; t < queries; t += blockDim.x) {
    const long long row = ((b * queries + t) * heads + h) * DIM;
    const int visible = causal ? max(0, keys - queries + t + 1) : keys;
    float query[DIM], total[DIM] = {};
    for (int d = 0; d < DIM; ++d)
      query[d] = q[row + d] * q_scale[h] / sqrtf(static_cast<float>(DIM));
    float top = -3.402823466e38f, sum = 0;
    for (int s = 0; s < visible; ++s) {
      float dot = 0;
      for (int d = 0; d < DIM; ++d) dot += query[d] * k_rows[s * DIM + d];
      top = fmaxf(top, dot);
    }
    for (int s = 0; s < visible; ++s) {
      float dot = 0;
      for (int d = 0; d < DIM; ++d) dot += query[d] * k_rows[s * DIM + d];
      const float weight = expf(dot - top);
      sum += weight;
      for (int d = 0; d < DIM; ++d) total[d] += weight * v_rows[s * DIM + d];
    }
    for (int d = 0; d < DIM; ++d) out[row + d] = visible > 0 ? total[d] / sum : 0.0f;
  }
}
