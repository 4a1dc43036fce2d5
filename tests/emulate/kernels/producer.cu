// Warp 0 produces, warp 1 consumes; two named barriers of 64 threads say full and empty.
extern "C" __global__ void producer(const float* x, float* y, int rounds) {
  __shared__ float slot[32];
  const int lane = threadIdx.x & 31;
  if (threadIdx.x < 32) {
    for (int i = 0; i < rounds; ++i) {
      asm volatile("bar.sync 2, 64;" ::: "memory");  // wait until empty
      slot[lane] = x[i * 32 + lane];
      asm volatile("bar.arrive 1, 64;" ::: "memory");  // say full
    }
  } else {
    asm volatile("bar.arrive 2, 64;" ::: "memory");  // empty at first
    for (int i = 0; i < rounds; ++i) {
      asm volatile("bar.sync 1, 64;" ::: "memory");  // wait until full
      y[i * 32 + lane] = slot[31 - lane];
      if (i + 1 < rounds) asm volatile("bar.arrive 2, 64;" ::: "memory");  // say empty
    }
  }
}
