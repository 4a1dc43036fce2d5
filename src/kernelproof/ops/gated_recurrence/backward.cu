// Gradients of the gated recurrence on a GPU. With S_t = g_t * S_{t-1} + k_t v_t^T, where g_t[i][j]
// is the product of the gates, and y_t = scale q_t S_t, the gradient by S_t over every way in which
// it reaches the loss is
//
//   D_t = scale q_t dy_t^T + g_{t+1} * D_{t+1},   starting from the gradient of the last state,
//
// and dq_t = scale S_t dy_t, dk_t = D_t v_t, dv_t = k_t D_t, dg_t = S_{t-1} * D_t. No division and
// no logarithm, so gates of zero and negative ones get their gradient.
//
// Elements of S and D never meet but in the sums over rows and columns. A block takes a tile of
// 32 rows by 16 * WARPS columns of one head through time; sums over its tile go to memory, one copy
// for every tile that shares them, and are added up afterwards in a fixed order (no atomics).
//
// S is needed from the end back. A first pass keeps it every CHUNK steps; each chunk is then run
// again, keeping it every SUB steps; and each of these again, keeping every step in shared memory.
//
// A lane holds 4 x 4 elements: 8 lanes along the rows, 4 along the columns.

#include "elements.cuh"

constexpr int CHUNK = 64, SUB = 8;  // steps; cuda_backward.py sizes the memory for them
constexpr int SIDE = 4, CELLS = SIDE * SIDE, TILE_ROWS = 32, WARP_COLUMNS = 16;
constexpr int SUMS = 3;  // over columns: of dq, dk, and for gates of rows

template <class Element_, class Gate_, int GATES, int WARPS_>
struct Config {
  typedef Element_ Element;
  typedef Gate_ Gate;
  static constexpr bool KEY_GATE = GATES & 1, VALUE_GATE = GATES & 2, HEAD_GATE = GATES & 4;
  static constexpr bool COLUMN_GATE = VALUE_GATE || HEAD_GATE;
  static constexpr bool BY_ROW = KEY_GATE || HEAD_GATE;
  static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS, COLUMNS = WARP_COLUMNS * WARPS;
};

template <class C>
struct Problem {
  const typename C::Element *q, *k, *v;
  const typename C::Gate *gate_k, *gate_v, *gate_head;
  const float* initial;             // (N, H, K, V) or null
  const typename C::Element* grad;  // (B, T, H, V), by y
  const float* grad_last;           // (N, H, K, V) or null
  // For every chunk of every tile, and for every SUB steps of a chunk by block.
  float *checkpoints, *starts;
  float *dq, *dk, *by_row;   // (tiles of columns, B * T, H, K)
  float *dv, *by_column;     // (tiles of rows, B * T, H, V)
  float* d_initial;          // (N, H, K, V) or null
  int B, T, H, K, V;         // B: of states, the number of sequences
  float scale;
  Strides sq, sk, sv, sgk, sgv, sgh, si, sg, sl;
  int group;
  const void* bounds;
  int bounds_64;
};

template <class C>
struct Shared {
  float q[SUB][TILE_ROWS], k[SUB][TILE_ROWS], gate_k[SUB][TILE_ROWS];
  float v[SUB][C::COLUMNS], grad[SUB][C::COLUMNS], gate_v[SUB][C::COLUMNS];
  float gate[SUB][C::COLUMNS];  // gate_v times gate_head
  float sums[SUB][SUMS][C::WARPS][TILE_ROWS];
  float history[SUB][CELLS][C::THREADS];
};

// One tile of one head of one sequence.
template <class C>
struct Work {
  int64 b, sequence, h, first;  // first: step of the row at which the sequence begins
  int steps, row, column, row_tile, column_tile;
  // Sums go to ((tile * tokens + token + t) * out_heads + out_head) rows or columns.
  int64 tokens, token, out_heads, out_head;
  float* checkpoints;
  int64 apart;  // floats between the checkpoints of chunks
};

template <class C>
__device__ __forceinline__ Work<C> work_of(const Problem<C>& p, int64 item) {
  const int row_tiles = (p.K + TILE_ROWS - 1) / TILE_ROWS;
  const int column_tiles = (p.V + C::COLUMNS - 1) / C::COLUMNS;
  Work<C> w;
  const int tiles = row_tiles * column_tiles, tile = item % tiles;
  w.row_tile = tile / column_tiles, w.column_tile = tile % column_tiles;
  w.row = w.row_tile * TILE_ROWS, w.column = w.column_tile * C::COLUMNS;
  w.h = item / tiles % p.H, w.sequence = item / tiles / p.H;
  w.b = w.sequence, w.first = 0, w.steps = p.T, w.tokens = static_cast<int64>(p.B) * p.T;
  int64 chunk = w.sequence * ((p.T + CHUNK - 1) / CHUNK);
  if (p.bounds != nullptr) {
    w.first = bound(p.bounds, p.bounds_64, w.sequence, p.T);
    const int64 end = bound(p.bounds, p.bounds_64, w.sequence + 1, p.T);
    w.b = 0, w.steps = end > w.first ? static_cast<int>(end - w.first) : 0, w.tokens = p.T;
    chunk = w.first / CHUNK + w.sequence;  // no two sequences overlap, whatever their lengths
  }
  w.token = w.b * p.T + w.first, w.out_heads = p.H, w.out_head = w.h;
  const int64 place = (chunk * p.H + w.h) * tiles + tile;
  // Chunks of one tile lie H * tiles apart.
  w.checkpoints = p.checkpoints + place * CELLS * C::THREADS;
  w.apart = static_cast<int64>(p.H) * tiles * CELLS * C::THREADS;
  return w;
}

// A state of a lane, to or from memory where each lane keeps its own.
template <class C>
__device__ __forceinline__ void keep(float* to, const float (&x)[SIDE][SIDE]) {
#pragma unroll
  for (int e = 0; e < CELLS; ++e) to[e * C::THREADS + threadIdx.x] = x[e / SIDE][e % SIDE];
}
template <class C>
__device__ __forceinline__ void take(const float* from, float (&x)[SIDE][SIDE]) {
#pragma unroll
  for (int e = 0; e < CELLS; ++e) x[e / SIDE][e % SIDE] = from[e * C::THREADS + threadIdx.x];
}

// `count` steps from t0 of the sequence on, as floats; k, v, q and dy are 0 beyond the matrix, and
// gates 1. Barriers on both sides are the caller's.
template <class C>
__device__ __forceinline__ void stage(const Problem<C>& p, const Work<C>& w, Shared<C>& s, int t0,
                                      int count, bool gradient) {
  const int64 key_head = w.h / p.group;
  for (int x = threadIdx.x; x < SUB * TILE_ROWS; x += C::THREADS) {
    const int u = x / TILE_ROWS, i = x % TILE_ROWS, row = w.row + i;
    const int64 t = w.first + t0 + u;
    const bool exists = u < count && row < p.K;
    s.k[u][i] = exists ? to_float(p.k[w.b * p.sk.b + t * p.sk.t + key_head * p.sk.h + row * p.sk.d])
                       : 0.0f;
    if (gradient)
      s.q[u][i] = exists
          ? to_float(p.q[w.b * p.sq.b + t * p.sq.t + key_head * p.sq.h + row * p.sq.d]) : 0.0f;
    if (C::KEY_GATE)
      s.gate_k[u][i] = exists
          ? to_float(p.gate_k[w.b * p.sgk.b + t * p.sgk.t + w.h * p.sgk.h + row * p.sgk.d]) : 1.0f;
  }
  for (int x = threadIdx.x; x < SUB * C::COLUMNS; x += C::THREADS) {
    const int u = x / C::COLUMNS, j = x % C::COLUMNS, column = w.column + j;
    const int64 t = w.first + t0 + u;
    const bool exists = u < count && column < p.V;
    s.v[u][j] = exists ? to_float(p.v[w.b * p.sv.b + t * p.sv.t + w.h * p.sv.h + column * p.sv.d])
                       : 0.0f;
    if (gradient)
      s.grad[u][j] = exists
          ? to_float(p.grad[w.b * p.sg.b + t * p.sg.t + w.h * p.sg.h + column * p.sg.d]) : 0.0f;
    float value = 1.0f;
    if (C::VALUE_GATE) {
      if (exists)
        value = to_float(p.gate_v[w.b * p.sgv.b + t * p.sgv.t + w.h * p.sgv.h + column * p.sgv.d]);
      s.gate_v[u][j] = value;
    }
    if (C::HEAD_GATE && exists)
      value = column_gate(value, to_float(p.gate_head[w.b * p.sgh.b + t * p.sgh.t + w.h * p.sgh.h]));
    if (C::COLUMN_GATE) s.gate[u][j] = value;
  }
}

// Four values for four rows, summed over the 4 lanes along the columns: lane (row_lane, c) gets
// the sum for row 4 * row_lane + place. A quarter of the exchanges of four separate sums.
__device__ __forceinline__ float sum_of_row(const float (&x)[SIDE], int lane) {
  const bool a = lane & 8, b = lane & 16;
  const float lo = __shfl_xor_sync(~0u, a ? x[0] : x[2], 8) + (a ? x[2] : x[0]);
  const float hi = __shfl_xor_sync(~0u, a ? x[1] : x[3], 8) + (a ? x[3] : x[1]);
  return __shfl_xor_sync(~0u, b ? lo : hi, 16) + (b ? hi : lo);
}
__device__ __forceinline__ int row_of(int lane) {
  return 4 * (lane & 7) + ((lane & 8) ? 2 : 0) + ((lane & 16) ? 1 : 0);
}
// The same for four columns over the 8 lanes along the rows; lanes with bit 2 have it twice.
__device__ __forceinline__ float sum_of_column(const float (&x)[SIDE], int lane) {
  const bool a = lane & 1, b = lane & 2;
  const float lo = __shfl_xor_sync(~0u, a ? x[0] : x[2], 1) + (a ? x[2] : x[0]);
  const float hi = __shfl_xor_sync(~0u, a ? x[1] : x[3], 1) + (a ? x[3] : x[1]);
  const float half = __shfl_xor_sync(~0u, b ? lo : hi, 2) + (b ? hi : lo);
  return __shfl_xor_sync(~0u, half, 4) + half;
}
__device__ __forceinline__ int column_of(int lane) {
  return 4 * (lane >> 3) + ((lane & 1) ? 2 : 0) + ((lane & 2) ? 1 : 0);
}

// `count` steps that are staged, forward. RECORD: states before each step, and sums for dq.
template <class C, bool RECORD>
__device__ __forceinline__ void forward(Shared<C>& s, int count, float (&state)[SIDE][SIDE]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = 4 * (lane & 7), column = WARP_COLUMNS * warp + 4 * (lane >> 3);
  for (int u = 0; u < count; ++u) {
    if (RECORD) keep<C>(s.history[u][0], state);
    float dq[SIDE];
#pragma unroll
    for (int x = 0; x < SIDE; ++x) {
      dq[x] = 0.0f;
#pragma unroll
      for (int c = 0; c < SIDE; ++c) {
        float old = state[x][c];
        if (C::KEY_GATE) old *= s.gate_k[u][row + x];
        if (C::COLUMN_GATE) old *= s.gate[u][column + c];
        state[x][c] = fmaf(s.k[u][row + x], s.v[u][column + c], old);
        if (RECORD) dq[x] = fmaf(state[x][c], s.grad[u][column + c], dq[x]);
      }
    }
    if (RECORD) s.sums[u][0][warp][row_of(lane)] = sum_of_row(dq, lane);
  }
}

// Within the range of float: a gradient that left it meets states and values of zero, which have to
// stay zero. NaN stays NaN.
__device__ __forceinline__ float in_range(float x) {
  return fabsf(x) > 0x1.fffffep127f ? copysignf(0x1.fffffep127f, x) : x;
}

// The same steps back. `d` holds D after the last step, times the gates that follow it, and then
// that of the step before the first.
template <class C>
__device__ __forceinline__ void backward(const Problem<C>& p, const Work<C>& w, Shared<C>& s,
                                         int t0, int count, float (&d)[SIDE][SIDE]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = 4 * (lane & 7), column = WARP_COLUMNS * warp + 4 * (lane >> 3);
  const int own_column = w.column + WARP_COLUMNS * warp + column_of(lane);
  for (int u = count - 1; u >= 0; --u) {
    float state[SIDE][SIDE], dk[SIDE], by_row[SIDE], dv[SIDE], by_column[SIDE];
    take<C>(s.history[u][0], state);
#pragma unroll
    for (int x = 0; x < SIDE; ++x) dk[x] = by_row[x] = dv[x] = by_column[x] = 0.0f;
#pragma unroll
    for (int x = 0; x < SIDE; ++x) {
      const float q = p.scale * s.q[u][row + x], k = s.k[u][row + x];
      const float gate_k = C::KEY_GATE ? s.gate_k[u][row + x] : 1.0f;
#pragma unroll
      for (int c = 0; c < SIDE; ++c) {
        const float now = in_range(fmaf(q, s.grad[u][column + c], d[x][c]));
        const float gates = state[x][c] * now;
        dk[x] = fmaf(now, s.v[u][column + c], dk[x]);
        dv[c] = fmaf(now, k, dv[c]);
        if (C::BY_ROW)
          by_row[x] = C::VALUE_GATE ? fmaf(gates, s.gate_v[u][column + c], by_row[x])
                                    : by_row[x] + gates;
        if (C::VALUE_GATE)
          by_column[c] = C::KEY_GATE ? fmaf(gates, gate_k, by_column[c]) : by_column[c] + gates;
        float before = now;
        if (C::KEY_GATE) before = in_range(before * gate_k);
        if (C::COLUMN_GATE) before = in_range(before * s.gate[u][column + c]);
        d[x][c] = before;
      }
    }
    s.sums[u][1][warp][row_of(lane)] = sum_of_row(dk, lane);
    if (C::BY_ROW) s.sums[u][2][warp][row_of(lane)] = sum_of_row(by_row, lane);
    const float dv_sum = sum_of_column(dv, lane);
    const float by_column_sum = C::VALUE_GATE ? sum_of_column(by_column, lane) : 0.0f;
    if ((lane & 4) == 0 && own_column < p.V) {
      const int64 token = w.row_tile * w.tokens + w.token + t0 + u;
      const int64 to = (token * w.out_heads + w.out_head) * p.V + own_column;
      p.dv[to] = dv_sum;
      if (C::VALUE_GATE) p.by_column[to] = by_column_sum;
    }
  }
}

// Sums over columns of `count` steps: those of the warps added up, to memory.
template <class C>
__device__ __forceinline__ void write_rows(const Problem<C>& p, const Work<C>& w, Shared<C>& s,
                                           int t0, int count) {
  for (int x = threadIdx.x; x < count * SUMS * TILE_ROWS; x += C::THREADS) {
    const int u = x / (SUMS * TILE_ROWS), kind = x / TILE_ROWS % SUMS, i = x % TILE_ROWS;
    if (w.row + i >= p.K || (kind == 2 && !C::BY_ROW)) continue;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < C::WARPS; ++warp) sum += s.sums[u][kind][warp][i];
    const int64 token = w.column_tile * w.tokens + w.token + t0 + u;
    const int64 to = (token * w.out_heads + w.out_head) * p.K + w.row + i;
    if (kind == 0) p.dq[to] = p.scale * sum;
    else if (kind == 1) p.dk[to] = sum;
    else p.by_row[to] = sum;
  }
}

// A matrix of a lane from or to a tensor of states.
template <class C, class F>
__device__ __forceinline__ void each_cell(const Problem<C>& p, const Work<C>& w, const Strides& s,
                                          float (&x)[SIDE][SIDE], F act) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int e = 0; e < CELLS; ++e) {
    const int i = w.row + 4 * (lane & 7) + e / SIDE;
    const int j = w.column + WARP_COLUMNS * warp + 4 * (lane >> 3) + e % SIDE;
    if (i < p.K && j < p.V)
      act(w.sequence * s.b + w.h * s.t + i * s.h + j * s.d, x[e / SIDE][e % SIDE]);
  }
}

__device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }

// One chunk from its end back; `state` is the state at its start.
template <class C>
__device__ __forceinline__ void chunk_back(const Problem<C>& p, const Work<C>& w, Shared<C>& s,
                                           int t0, int count, float (&state)[SIDE][SIDE],
                                           float (&d)[SIDE][SIDE]) {
  float* const starts = p.starts + blockIdx.x * static_cast<int64>(CHUNK / SUB * CELLS * C::THREADS);
  const int subs = (count + SUB - 1) / SUB;
  for (int n = 0; n < subs; ++n) {
    keep<C>(starts + n * CELLS * C::THREADS, state);
    if (n == subs - 1) break;
    stage<C>(p, w, s, t0 + n * SUB, SUB, false);
    __syncthreads();
    forward<C, false>(s, SUB, state);
    __syncthreads();
  }
  for (int n = subs - 1; n >= 0; --n) {
    const int first = t0 + n * SUB, steps = least(SUB, count - n * SUB);
    stage<C>(p, w, s, first, steps, true);
    __syncthreads();
    take<C>(starts + n * CELLS * C::THREADS, state);
    forward<C, true>(s, steps, state);
    backward<C>(p, w, s, first, steps, d);
    __syncthreads();
    write_rows<C>(p, w, s, first, steps);
  }
}

template <class C>
__device__ __forceinline__ void tile_back(const Problem<C>& p, const Work<C>& w, Shared<C>& s) {
  float state[SIDE][SIDE], d[SIDE][SIDE];
#pragma unroll
  for (int e = 0; e < CELLS; ++e) state[e / SIDE][e % SIDE] = d[e / SIDE][e % SIDE] = 0.0f;
  if (p.initial != nullptr)
    each_cell<C>(p, w, p.si, state, [&](int64 at, float& x) { x = p.initial[at]; });
  if (p.grad_last != nullptr)
    each_cell<C>(p, w, p.sl, d, [&](int64 at, float& x) { x = p.grad_last[at]; });
  const int64 apart = w.apart;
  const int chunks = (w.steps + CHUNK - 1) / CHUNK;
  for (int n = 0; n < chunks - 1; ++n) {
    keep<C>(w.checkpoints + n * apart, state);
    for (int t = n * CHUNK; t < (n + 1) * CHUNK; t += SUB) {
      stage<C>(p, w, s, t, SUB, false);
      __syncthreads();
      forward<C, false>(s, SUB, state);
      __syncthreads();
    }
  }
  for (int n = chunks - 1; n >= 0; --n) {
    if (n < chunks - 1) take<C>(w.checkpoints + n * apart, state);
    chunk_back<C>(p, w, s, n * CHUNK, least(CHUNK, w.steps - n * CHUNK), state, d);
  }
  if (p.d_initial != nullptr) {
    const int64 matrix = static_cast<int64>(p.K) * p.V;
    each_cell<C>(p, w, Strides{p.H * matrix, matrix, p.V, 1}, d,
                 [&](int64 at, float& x) { p.d_initial[at] = x; });
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS)
    gradients(const typename C::Element* q, const typename C::Element* k,
              const typename C::Element* v, const typename C::Gate* gate_k,
              const typename C::Gate* gate_v, const typename C::Gate* gate_head,
              const float* initial, const typename C::Element* grad, const float* grad_last,
              float* checkpoints, float* starts, float* dq, float* dk, float* dv, float* by_row,
              float* by_column, float* d_initial, int B, int T, int H, int K, int V, float scale,
              STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(gate_k), STRIDES(gate_v),
              STRIDES(gate_head), STRIDES(initial), STRIDES(grad), STRIDES(grad_last), int group,
              const void* bounds, int bounds_64, int64 items) {
  extern __shared__ __align__(16) char memory[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(memory);
  const Problem<C> p{q, k, v, gate_k, gate_v, gate_head, initial, grad, grad_last, checkpoints,
                     starts, dq, dk, by_row, dv, by_column, d_initial, B, T, H, K, V, scale,
                     GIVEN(q), GIVEN(k), GIVEN(v), GIVEN(gate_k), GIVEN(gate_v), GIVEN(gate_head),
                     GIVEN(initial), GIVEN(grad), GIVEN(grad_last), group, bounds, bounds_64};
  // No barrier between items: an item ends with reads of `sums` alone, which the next one writes
  // behind a barrier of its own.
  for (int64 item = blockIdx.x; item < items; item += gridDim.x)
    tile_back<C>(p, work_of<C>(p, item), s);
}

// The sums over tiles of one head's (T, width), to (B, T, H, width).
template <class C, class To>
__device__ __forceinline__ void put(const Problem<C>& p, const Work<C>& w, const float* from,
                                    int tiles, int width, To* to) {
  const int64 size = static_cast<int64>(p.T) * width;
  for (int64 x = threadIdx.x; x < size; x += C::THREADS) {
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; ++tile) sum += from[tile * size + x];
    const int64 token = w.b * p.T + x / width;
    from_float(sum, to + (token * p.H + w.h) * width + x % width);
  }
}

// The same for those of `heads` heads of all batches that `only` marks, one after the other in a
// block, whose checkpoints and sums are its own: the gradients themselves, to `to_q` and so on.
template <class C>
__global__ void __launch_bounds__(C::THREADS)
    gradients_of_some(
        const typename C::Element* q, const typename C::Element* k, const typename C::Element* v,
        const typename C::Gate* gate_k, const typename C::Gate* gate_v,
        const typename C::Gate* gate_head, const float* initial, const typename C::Element* grad,
        const float* grad_last, float* checkpoints, float* starts, float* dq, float* dk, float* dv,
        float* by_row, float* by_column, float* d_initial, int B, int T, int H, int K, int V,
        float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(gate_k), STRIDES(gate_v),
        STRIDES(gate_head), STRIDES(initial), STRIDES(grad), STRIDES(grad_last), int group,
        const int* only, int64 heads, typename C::Element* to_q, typename C::Element* to_k,
        typename C::Element* to_v, float* to_row, float* to_column) {
  extern __shared__ __align__(16) char memory[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(memory);
  const int row_tiles = (K + TILE_ROWS - 1) / TILE_ROWS;
  const int column_tiles = (V + C::COLUMNS - 1) / C::COLUMNS, tiles = row_tiles * column_tiles;
  const int64 rows = blockIdx.x * static_cast<int64>(column_tiles) * T * K;
  const int64 columns = blockIdx.x * static_cast<int64>(row_tiles) * T * V;
  const Problem<C> p{q, k, v, gate_k, gate_v, gate_head, initial, grad, grad_last, checkpoints,
                     starts, dq + rows, dk + rows, by_row + rows, dv + columns,
                     by_column + columns, d_initial, B, T, H, K, V, scale,
                     GIVEN(q), GIVEN(k), GIVEN(v), GIVEN(gate_k), GIVEN(gate_v), GIVEN(gate_head),
                     GIVEN(initial), GIVEN(grad), GIVEN(grad_last), group, nullptr, 0};
  constexpr int64 STATE = CELLS * C::THREADS;
  for (int64 head = blockIdx.x; head < heads; head += gridDim.x) {
    if (!only[head]) continue;
    Work<C> w;
    for (int tile = 0; tile < tiles; ++tile) {
      w = work_of<C>(p, head * tiles + tile);
      w.tokens = T, w.token = 0, w.out_heads = 1, w.out_head = 0;
      w.checkpoints = checkpoints + blockIdx.x * ((T + CHUNK - 1) / CHUNK) * STATE, w.apart = STATE;
      tile_back<C>(p, w, s);
    }
    __syncthreads();
    put(p, w, p.dq, column_tiles, K, to_q), put(p, w, p.dk, column_tiles, K, to_k);
    put(p, w, p.dv, row_tiles, V, to_v);
    if (to_row != nullptr) put(p, w, p.by_row, column_tiles, K, to_row);
    if (to_column != nullptr) put(p, w, p.by_column, row_tiles, V, to_column);
    __syncthreads();
  }
}
