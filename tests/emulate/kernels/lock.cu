// Every thread adds to total[0] and to total[1] under one lock.
extern "C" __global__ void lock(int* held, float* total, const float* x) {
  bool done = false;
  while (!done) {
    if (atomicCAS(held, 0, 1) == 0) {
      total[0] += x[threadIdx.x];
      total[1] += 1.0f;
      __threadfence();
      atomicExch(held, 0);
      done = true;
    }
  }
}
