// q, k: (B, S, H, rows); v, gate, y: (B, S, H, columns); state: (B, H, rows, columns), zeros; all
// contiguous fp32. Thread j owns column j of the state; no thread reads another's column, so there
// is nothing to synchronise.
extern "C" __global__ void gated_recurrence(const float* q, const float* k, const float* v,
                                            const float* gate, float* state, float* y, int length,
                                            int heads, int rows, int columns) {
  const int j = threadIdx.x;
  const long long b = blockIdx.x / heads, h = blockIdx.x % heads;
  float* own = state + (b * heads + h) * rows * columns + j;
  for (int t = 0; t < length; ++t) {
    const long long at = (b * length + t) * heads + h;
    const float *qt = q + at * rows, *kt = k + at * rows;
    const double vj = v[at * columns + j], gj = gate[at * columns + j];
    double sum = 0.0;
    for (int i = 0; i < rows; ++i) {
      const float s = (float)__fma_rz(gj, own[i * columns], kt[i] * vj);
      own[i * columns] = s;
      sum += (double)qt[i] * s;
    }
    y[at * columns + j] = (float)sum;
  }
}
