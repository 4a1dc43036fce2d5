// q, k: (B, S, H, rows); v, gate, y: (B, S, H, columns); all contiguous fp32.
// Thread j owns column j of the state, state[i][j]; no thread reads another's column, so there is
// nothing to synchronise.
extern "C" __global__ void gated_recurrence(const float* q, const float* k, const float* v,
                                            const float* gate, float* y, int length, int heads,
                                            int rows, int columns) {
  extern __shared__ float state[];
  const int j = threadIdx.x;
  const long long b = blockIdx.x / heads, h = blockIdx.x % heads;
  for (int i = 0; i < rows; ++i) state[i * columns + j] = 0.0f;
  for (int t = 0; t < length; ++t) {
    const long long at = (b * length + t) * heads + h;
    const float *qt = q + at * rows, *kt = k + at * rows;
    const float vj = v[at * columns + j], gj = gate[at * columns + j];
    float sum = 0.0f;
    for (int i = 0; i < rows; ++i) {
      const float s = gj * state[i * columns + j] + kt[i] * vj;
      state[i * columns + j] = s;
      sum += qt[i] * s;
    }
    y[at * columns + j] = sum;
  }
}
