// A warp per batch, head and 16 queries; q and k in words of four bytes, 32 bytes at a time.
constexpr int ROWS = 16;

// sum (16, 8) += a (16, 32) * b (32, 8), in the fragments of the PTX ISA's mma.m16n8k32.
__device__ void multiply(int (&sum)[4], const int (&a)[4], const int (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void attend(const int* q, const int* k, const signed char* v,
                                  const float* q_scale, const float* k_scale, const float* v_scale,
                                  float* out, int queries, int keys, int heads, int kv_heads,
                                  int words, int dim, int causal) {
  extern __shared__ float scores[];  // (ROWS, keys)
  const int lane = threadIdx.x, h = blockIdx.x % heads, g = h * kv_heads / heads;
  const int first = blockIdx.y * ROWS;
  const long long b = blockIdx.x / heads;
  k += (b * keys * kv_heads + g) * words;
  v += (b * keys * kv_heads + g) * dim;
  const float scale = q_scale[h] * k_scale[g] / sqrtf(static_cast<float>(dim));
  for (int tile = 0; tile < keys; tile += 8) {
    int sum[4] = {};
    for (int word = 0; word < words; word += 8) {
      int a[4], half[2];
      for (int n = 0; n < 4; ++n) {
        const int t = first + lane / 4 + n % 2 * 8, at = word + lane % 4 + n / 2 * 4;
        a[n] = t < queries ? q[((b * queries + t) * heads + h) * words + at] : 0;
      }
      for (int n = 0; n < 2; ++n) {
        const int s = tile + lane / 4, at = word + lane % 4 + n * 4;
        half[n] = s < keys ? k[s * kv_heads * words + at] : 0;
      }
      multiply(sum, a, half);
    }
    for (int n = 0; n < 4; ++n) {
      const int s = tile + lane % 4 * 2 + n % 2, row = lane / 4 + n / 2 * 8;
      if (s < keys) scores[row * keys + s] = static_cast<float>(sum[n]) * scale;
    }
  }
  __syncwarp();
  for (int row = 0; row < min(ROWS, queries - first); ++row) {
    const int t = first + row, visible = causal ? max(0, keys - queries + t + 1) : keys;
    float* weight = scores + row * keys;
    float top = -3.402823466e38f, sum = 0;
    for (int s = lane; s < visible; s += 32) top = fmaxf(top, weight[s]);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    for (int s = lane; s < visible; s += 32) {
      weight[s] = expf(weight[s] - top);
      sum += weight[s];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncwarp();
    for (int d = lane; d < dim; d += 32) {
      float total = 0;
      for (int s = 0; s < visible; ++s) total += weight[s] * v[s * kv_heads * dim + d];
      float& result = out[((b * queries + t) * heads + h) * dim + d];
      result = visible > 0 ? total / sum * v_scale[g] : 0.0f;
    }
  }
}
