// y[0] = sum of x: the block that draws the last ticket adds up the parts of all.
__device__ unsigned tickets = 0;
extern "C" __global__ void last_block(const float* x, volatile float* parts, float* y, int n) {
  __shared__ float s[64];
  __shared__ bool last;
  const int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t] = i < n ? x[i] : 0.0f;
  __syncthreads();  // filled
  for (int d = 32; d > 0; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();  // level
  }
  if (t == 0) {
    ((float*)parts)[blockIdx.x] = s[0];
    __threadfence();
    last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();  // ticket
  if (last && t == 0) {
    float sum = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) sum += ((float*)parts)[b];
    y[0] = sum;
  }
}
