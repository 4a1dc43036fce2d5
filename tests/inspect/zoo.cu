// Kernels of which each has, or lacks, one thing that `kernelproof inspect` tells.

extern "C" {

// Lives in a quarter of the registers that it wants.
__global__ void __launch_bounds__(256, 4) spills(const float* x, float* y, int n) {
  float a[100];
  for (int i = 0; i < 100; i++) a[i] = x[threadIdx.x + i * n];
  for (int r = 0; r < n; r++)
    for (int i = 0; i < 100; i++) a[i] = a[i] * a[(i * 7 + 3) % 100] + r;
  float sum = 0;
  for (int i = 0; i < 100; i++) sum += a[i];
  y[threadIdx.x] = sum;
}

// The same, with as many registers as there are.
__global__ void __launch_bounds__(256, 1) no_spills(const float* x, float* y, int n) {
  float a[100];
  for (int i = 0; i < 100; i++) a[i] = x[threadIdx.x + i * n];
  for (int r = 0; r < n; r++)
    for (int i = 0; i < 100; i++) a[i] = a[i] * a[(i * 7 + 3) % 100] + r;
  float sum = 0;
  for (int i = 0; i < 100; i++) sum += a[i];
  y[threadIdx.x] = sum;
}

// An index that only the run knows, into an array that is written by such an index.
__global__ void local_array(const int* x, float* y, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = i;
  for (int i = 0; i < n; i++) a[x[i] & 63] += a[x[i + 1] & 63];
  y[threadIdx.x] = a[n & 63];
}

__global__ void shared_odd(const float* x, float* y) {
  __shared__ char bytes[37];
  __shared__ double doubles[5];
  bytes[threadIdx.x] = x[1];
  doubles[threadIdx.x & 3] = x[2];
  __syncthreads();
  y[0] = bytes[36 - threadIdx.x] + doubles[2];
}

__global__ void named_barriers(float* y) {
  __shared__ float s[256];
  s[threadIdx.x] = y[threadIdx.x];
  asm volatile("bar.sync 3, 256;");
  s[threadIdx.x] += s[255 - threadIdx.x];
  asm volatile("bar.sync 5, 256;");
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}

__global__ void dynamic_shared(const float* x, float* y, int n) {
  extern __shared__ float s[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
  __syncthreads();
  y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

__global__ void narrow(const float* x, float* y, int n) {
  float sum = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) sum += x[i];
  y[threadIdx.x] = sum;
}

__global__ void wide(const float4* x, float* y, int n) {
  float sum = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) {
    const float4 v = x[i];
    sum += v.x + v.y + v.z + v.w;
  }
  y[threadIdx.x] = sum;
}

__global__ void doubled(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 1.1 + 0.3; }

__global__ void single(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 1.1f + 0.3f; }

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  float sum = 0;
  for (int k = 0; k < n; k++) sum += a[blockIdx.x * n + k] * b[k * n + threadIdx.x];
  c[blockIdx.x * n + threadIdx.x] = sum;
}

__global__ void matmul_mma(const unsigned* a, const unsigned* b, float* c, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int k = 0; k < n; k++)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[k]), "r"(a[k + 1]), "r"(a[k + 2]), "r"(a[k + 3]), "r"(b[k]), "r"(b[k + 1]));
  for (int i = 0; i < 4; i++) c[threadIdx.x * 4 + i] = d[i];
}

__global__ void many_barriers(float* y, int n) {
  __shared__ float s[256];
  s[threadIdx.x] = y[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    __syncthreads();
    const float other = s[(threadIdx.x + i) & 255];
    __syncthreads();
    s[threadIdx.x] += other;
  }
  y[threadIdx.x] = s[threadIdx.x];
}

__global__ void few_barriers(float* y, int n) {
  __shared__ float s[256];
  float sum = y[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    s[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 64; k++) sum += s[(threadIdx.x + k * i) & 255] * k;
  }
  y[threadIdx.x] = sum;
}

}  // extern "C"
