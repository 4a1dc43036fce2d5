// A block per 16 tokens; its warps go round tiles of 16 rows and 8 columns on the tensor cores.
constexpr int TOKENS = 16;
// Tensor cores cut off what they add to an accumulator instead of rounding it, so each takes no more
// than this depth of a product; what it holds then is added up in fp32, where additions are rounded.
constexpr int FRESH = 32;

__device__ unsigned tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// x as a sum of two TF32 numbers.
__device__ void split(float x, unsigned& high, unsigned& low) {
  high = tf32(x);
  low = tf32(x - __uint_as_float(high));
}

// sum (16, 8) += a (16, 8) * b (8, 8), in the fragments of the PTX ISA's mma.m16n8k8.
__device__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// left (16, depth) * right (depth, columns), a tile of 8 columns per warp; store(row, column, x).
template <class Left, class Right, class Store>
__device__ void product(int depth, int columns, Left left, Right right, Store store) {
  const int lane = threadIdx.x % 32, a_row = lane / 4, depth_of = lane % 4;
  for (int column = threadIdx.x / 32 * 8; column < columns; column += blockDim.x / 32 * 8) {
    float total[4] = {};
    for (int first = 0; first < depth; first += FRESH) {
      float sum[4] = {};
      for (int k = first; k < min(first + FRESH, depth); k += 8) {
        unsigned a[4], b[2];
        unsigned a_low[4], b_low[2];
        for (int n = 0; n < 4; ++n)
          split(left(a_row + n % 2 * 8, k + depth_of + n / 2 * 4), a[n], a_low[n]);
        for (int n = 0; n < 2; ++n)
          split(right(k + depth_of + n * 4, column + lane / 4), b[n], b_low[n]);
        multiply(sum, a_low, b);
        multiply(sum, a, b_low);
        multiply(sum, a, b);
      }
      for (int n = 0; n < 4; ++n) total[n] += sum[n];
    }
    for (int n = 0; n < 4; ++n) store(a_row + n / 2 * 8, column + 2 * depth_of + n % 2, total[n]);
  }
}

extern "C" __global__ void mla_kv(const float* hidden, const float* w_down, const float* w_up_k,
                                  const float* w_up_v, float* out, int tokens, int model,
                                  int rank, int columns) {
  extern __shared__ float rows[];  // (TOKENS, model), then the latents (TOKENS, rank)
  float* latents = rows + TOKENS * model;
  const long long first = static_cast<long long>(blockIdx.x) * TOKENS;
  const int count = static_cast<int>(min(static_cast<long long>(TOKENS), tokens - first));
  for (int n = threadIdx.x; n < TOKENS * model; n += blockDim.x)
    rows[n] = n < count * model ? hidden[first * model + n] : 0.0f;
  __syncthreads();
  product(
      model, rank, [&](int row, int m) { return m < model ? rows[row * model + m] : 0.0f; },
      [&](int m, int r) { return m < model && r < rank ? w_down[m * rank + r] : 0.0f; },
      [&](int row, int r, float x) { if (r < rank) latents[row * rank + r] = x; });
  __syncthreads();
  product(
      rank, 2 * columns, [&](int row, int r) { return r < rank ? latents[row * rank + r] : 0.0f; },
      [&](int r, int c) {
        if (r >= rank || c >= 2 * columns) return 0.0f;
        return c < columns ? w_up_k[r * columns + c] : w_up_v[r * columns + c - columns];
      },
      [&](int row, int c, float x) {
        if (row < count && c < 2 * columns) out[2 * (first + row) * columns + c] = x;
      });
}
