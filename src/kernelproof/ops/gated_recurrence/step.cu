// One step of the gated recurrence, the state updated in place: state[i][j] = g[i][j] * state[i][j]
// + k[i] * v[j], y[j] = scale * sum_i q[i] * state[i][j].
//
// The state is read and written once, and nothing else is large: what counts is that whole lines of
// it are in flight. LANES threads hold neighbouring quads of a row (single columns where the rows
// are not aligned for quads), and the others take further rows; sums over rows meet in shared
// memory and are added up in one order.

#include "elements.cuh"

constexpr int THREADS = 256;
constexpr int AHEAD = 8;    // rows of a thread in flight
constexpr int PIECE = 512;  // rows whose q, k and gates are in shared memory

template <class Element_, class Gate_, int GATES, int WIDTH_, int LANES_>
struct Config {
  typedef Element_ Element;
  typedef Gate_ Gate;
  static constexpr bool KEY_GATE = GATES & 1, VALUE_GATE = GATES & 2, HEAD_GATE = GATES & 4;
  static constexpr bool COLUMN_GATE = VALUE_GATE || HEAD_GATE;
  static constexpr int WIDTH = WIDTH_, LANES = LANES_, ROWS = THREADS / LANES;
  static constexpr int TILE = WIDTH * LANES;  // columns of a block
};

template <int WIDTH>
__device__ __forceinline__ void read(const float* from, float (&x)[WIDTH]) {
  if constexpr (WIDTH == 4) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
  } else {
    x[0] = *from;
  }
}
template <int WIDTH>
__device__ __forceinline__ void write(float* to, const float (&x)[WIDTH]) {
  if constexpr (WIDTH == 4) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  else *to = x[0];
}

template <class C>
__global__ void __launch_bounds__(THREADS)
    step(const typename C::Element* q, const typename C::Element* k, const typename C::Element* v,
         const typename C::Gate* gate_k, const typename C::Gate* gate_v,
         const typename C::Gate* gate_head, float* state, typename C::Element* y, int H, int K,
         int V, float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(gate_k), STRIDES(gate_v),
         STRIDES(gate_head), STRIDES(state), int group) {
  constexpr int WIDTH = C::WIDTH;
  __shared__ float sums[C::ROWS][C::TILE];
  __shared__ float4 rows[PIECE];
  const int tiles = (V + C::TILE - 1) / C::TILE;
  const int64 head = blockIdx.x / tiles, b = head / H, h = head % H, key_head = h / group;
  const int lane = threadIdx.x % C::LANES, first = threadIdx.x / C::LANES;
  const int tile = blockIdx.x % tiles * C::TILE, column = tile + lane * WIDTH;
  const bool exists = column < V;  // with WIDTH 4, V is a multiple of 4

  float values[WIDTH], gates[WIDTH], sum[WIDTH];
  const float whole =
      C::HEAD_GATE ? to_float(gate_head[b * gate_head_b + h * gate_head_h]) : 1.0f;
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    sum[c] = values[c] = 0.0f, gates[c] = whole;
    if (!exists) continue;
    values[c] = to_float(v[b * v_b + h * v_h + (column + c) * v_d]);
    if (C::VALUE_GATE)
      gates[c] = column_gate(
          to_float(gate_v[b * gate_v_b + h * gate_v_h + (column + c) * gate_v_d]), whole);
  }
  q += b * q_b + key_head * q_h, k += b * k_b + key_head * k_h;
  if (C::KEY_GATE) gate_k += b * gate_k_b + h * gate_k_h;
  // (sequence, head, row, column) are b, t, h, d here.
  state += b * state_b + h * state_t + column * state_d;

  for (int piece = 0; piece < K; piece += PIECE, state += PIECE * state_h) {
    const int count = min(PIECE, K - piece);
    float x[AHEAD][WIDTH];
    auto fetch = [&](int row) {
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const int64 i = row + a * C::ROWS;
        if (i < count && exists) read<WIDTH>(state + i * state_h, x[a]);
      }
    };
    fetch(first);  // on their way while q, k and gates are
    if (piece > 0) __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
      const int64 row = piece + i;
      rows[i] = make_float4(to_float(k[row * k_d]), to_float(q[row * q_d]),
                            C::KEY_GATE ? to_float(gate_k[row * gate_k_d]) : 1.0f, 0.0f);
    }
    __syncthreads();
    for (int row = first; row < count && exists; row += AHEAD * C::ROWS) {
      if (row != first) fetch(row);
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const int64 i = row + a * C::ROWS;
        if (i >= count) break;
        const float4 of_row = rows[i];  // of k, q and gate
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
          float old = x[a][c];
          if (C::KEY_GATE) old *= of_row.z;
          if (C::COLUMN_GATE) old *= gates[c];
          x[a][c] = fmaf(of_row.x, values[c], old);
          sum[c] = fmaf(of_row.y, x[a][c], sum[c]);
        }
        write<WIDTH>(state + i * state_h, x[a]);
      }
    }
  }

#pragma unroll
  for (int c = 0; c < WIDTH; ++c) sums[first][lane * WIDTH + c] = sum[c];
  __syncthreads();
  for (int j = threadIdx.x; j < C::TILE && tile + j < V; j += THREADS) {
    float all = 0.0f;
#pragma unroll 8
    for (int row = 0; row < C::ROWS; ++row) all += sums[row][j];
    from_float(all * scale, y + head * V + tile + j);
  }
}
