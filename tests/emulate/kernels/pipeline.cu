// y = 2 x over tiles of 256 floats, copied ahead of use by cp.async into two buffers.
__device__ void fetch(float* to, const float* from) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
extern "C" __global__ void pipeline(const float* x, float* y, int tiles) {
  __shared__ __align__(16) float buffer[2][256];
  const int t = threadIdx.x;
  fetch(&buffer[0][4 * t], x + 4 * t);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) fetch(&buffer[(i + 1) & 1][4 * t], x + (i + 1) * 256 + 4 * t);
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();  // tile is there
    for (int j = 0; j < 4; ++j) y[i * 256 + 64 * j + t] = 2.0f * buffer[i & 1][64 * j + t];
    __syncthreads();  // tile is done with
  }
}
