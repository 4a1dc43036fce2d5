// c = a @ b by tiles of 16 x 16; n is a multiple of 16.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float ta[16][16], tb[16][16];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
  float sum = 0.0f;
  for (int k = 0; k < n; k += 16) {
    ta[ty][tx] = a[row * n + k + tx];
    tb[ty][tx] = b[(k + ty) * n + column];
    __syncthreads();  // tiles are there
    for (int i = 0; i < 16; ++i) sum += ta[ty][i] * tb[i][tx];
    __syncthreads();  // tiles are done with
  }
  c[row * n + column] = sum;
}
