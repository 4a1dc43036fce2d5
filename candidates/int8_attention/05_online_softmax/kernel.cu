// A block per batch, head and tile of queries; a thread per query.
constexpr int TILE = 32;

template <int DIM>
__global__ void attend(const signed char* q, const signed char* k, const signed char* v,
                       const float* q_scale, const float* k_scale, const float* v_scale, float* out,
                       int queries, int keys, int heads, int kv_heads, int causal) {
  __shared__ float k_tile[TILE][DIM], v_tile[TILE][DIM];
  const int h = blockIdx.x % heads, g = h * kv_heads / heads, t = blockIdx.y * TILE + threadIdx.x;
  const long long b = blockIdx.x / heads;
  k += (b * keys * kv_heads + g) * DIM;
  v += (b * keys * kv_heads + g) * DIM;
  const long long row = ((b * queries + t) * heads + h) * DIM;
  const int visible = t >= queries ? 0 : causal ? max(0, keys - queries + t + 1) : keys;
  // What the last query of the tile sees.
  const int last = min(queries, static_cast<int>(blockIdx.y + 1) * TILE) - 1;
  const int needed = causal ? max(0, keys - queries + last + 1) : keys;
  float query[DIM], total[DIM] = {};
  for (int d = 0; d < DIM; ++d)
    query[d] = t < queries ? q[row + d] * q_scale[h] / sqrtf(static_cast<float>(DIM)) : 0.0f;
  float top = -3.402823466e38f, sum = 0;
  for (int first = 0; first < needed; first += TILE) {
    const int count = min(TILE, keys - first);
    __syncthreads();  // the tile before is no longer read
    for (int n = threadIdx.x; n < count * DIM; n += TILE) {
      const int at = (first + n / DIM) * kv_heads * DIM + n % DIM;
      k_tile[n / DIM][n % DIM] = k[at] * k_scale[g];
      v_tile[n / DIM][n % DIM] = v[at] * v_scale[g];
    }
    __syncthreads();
    for (int s = 0; s < min(count, visible - first); ++s) {
      float dot = 0;
      for (int d = 0; d < DIM; ++d) dot += query[d] * k_tile[s][d];
      if (dot > top) {
        const float factor = expf(top - dot);
        sum *= factor;
        for (int d = 0; d < DIM; ++d) total[d] *= factor;
        top = dot;
      }
      const float weight = expf(dot - top);
      sum += weight;
      for (int d = 0; d < DIM; ++d) total[d] += weight * v_tile[s][d];
    }
  }
  if (t < queries)
    for (int d = 0; d < DIM; ++d) out[row + d] = visible > 0 ? total[d] / sum : 0.0f;
}
