// y = transposed x through a padded tile of 16 x 16.
extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[16][17];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int c = blockIdx.x * 16 + tx, r = blockIdx.y * 16 + ty;
  if (r < rows && c < columns) tile[ty][tx] = x[r * columns + c];
  __syncthreads();
  const int row = blockIdx.x * 16 + ty, column = blockIdx.y * 16 + tx;
  if (row < columns && column < rows) y[row * rows + column] = tile[tx][ty];
}
