// Counts of 64 bins: in shared memory first, then added to global memory.
extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
  __shared__ unsigned local[64];
  const int t = threadIdx.x;
  if (t < 64) local[t] = 0;
  __syncthreads();  // cleared
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[x[i] & 63], 1u);
  __syncthreads();  // counted
  if (t < 64) atomicAdd(&bins[t], local[t]);
}
