// A warp per batch, head and tile of columns; cell n of the tile is in lane n % 32.
template <int CELLS>
__global__ void recur(const float* q, const float* k, const float* v, const float* gate, float* y,
                      int steps, int heads, int key_dim, int value_dim, int width) {
  __shared__ float products[32 * CELLS];  // (key_dim, columns)
  const int head = blockIdx.x % heads;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  const int lane = threadIdx.x, first_column = blockIdx.y * width;
  const int columns = min(width, value_dim - first_column);
  float state[CELLS] = {};
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
#pragma unroll
    for (int c = 0; c < CELLS; ++c) {
      const int n = lane + 32 * c;
      if (n < key_dim * columns) {
        const int i = n / columns, j = first_column + n % columns;
        const float value = v[row * value_dim + j], decay = gate[row * value_dim + j];
        state[c] = decay * state[c] + k[row * key_dim + i] * value;
        products[n] = q[row * key_dim + i] * state[c];
      }
    }
    __syncwarp();
    for (int j = lane; j < columns; j += 32) {
      float sum = 0;
      for (int i = 0; i < key_dim; ++i) sum += products[i * columns + j];
      y[row * value_dim + first_column + j] = sum;
    }
    __syncwarp();
  }
}
