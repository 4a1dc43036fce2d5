// Inclusive sums of 128 elements by doubling, two buffers in turn.
extern "C" __global__ void scan(const int* x, int* y, int n) {
  __shared__ int buffer[2][128];
  const int t = threadIdx.x;
  buffer[0][t] = t < n ? x[t] : 0;
  __syncthreads();  // filled
  int now = 0;
  for (int d = 1; d < 128; d *= 2) {
    const int mine = buffer[now][t];
    buffer[now ^ 1][t] = t >= d ? mine + buffer[now][t - d] : mine;
    now ^= 1;
    __syncthreads();  // step
  }
  if (t < n) y[t] = buffer[now][t];
}
