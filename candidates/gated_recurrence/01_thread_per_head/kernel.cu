// A thread per batch and head does all that the formula says.
extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, float* states, int sequences, int steps, int heads,
                                 int key_dim, int value_dim) {
  const int sequence = blockIdx.x * blockDim.x + threadIdx.x;
  if (sequence >= sequences) return;
  const int head = sequence % heads;
  const long long first_step = static_cast<long long>(sequence / heads) * steps;
  float* state = states + static_cast<long long>(sequence) * key_dim * value_dim;
  for (int n = 0; n < key_dim * value_dim; ++n) state[n] = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    for (int j = 0; j < value_dim; ++j) {
      const float value = v[row * value_dim + j], decay = gate[row * value_dim + j];
      float sum = 0;
      for (int i = 0; i < key_dim; ++i) {
        float& cell = state[i * value_dim + j];
        cell = decay * cell + k[row * key_dim + i] * value;
        sum += q[row * key_dim + i] * cell;
      }
      y[row * value_dim + j] = sum;
    }
  }
}
