// Gated recurrence on a GPU: state[i][j] = g[i][j] * state[i][j] + k[i] * v[j],
// y[j] = scale * sum_i q[i] * state[i][j], where g is a product of gates given per row (gate_k),
// per column (gate_v) and for the whole matrix (gate_head).
//
// Columns are independent, so blocks share them out; the state lives in registers, its rows over
// the lanes of a warp. What is left is the length of the chain through time, and that is cut by
// splitting time over the warps of a block. A block takes SPAN = SEGMENTS * STEPS steps at a time:
//
//   stage    every warp copies the inputs of its own STEPS steps to shared memory;
//   pass 1   each segment alone: its end state from zero (U), and the product D of its gates,
//            by Horner's rule from the last step back, so that only products of gates occur;
//   combine  the state at a segment's start is the carried state, times D plus U of every
//            earlier segment in turn;
//   pass 2   the plain recurrence from there, which gives y.
//
// No division and no logarithm: gates of any sign, zeros included, are as exact as in the plain
// recurrence. One thing differs: with gates above one, D or a part of it may leave the range of
// float where the plain recurrence would not. A segment whose D may have done so marks it NaN, and
// the segments after it start from end states handed over one by one (see `turns`). Segments up
// to the marked one are computed as always, so y[t] never depends on later steps.
//
// The lanes of a warp: LANES along the rows (ROWS rows each, in quads dealt out in turn, so that
// one 16-byte load per lane has no bank conflict), 32 / LANES along the columns (COLS each).
// GROUPS warps share a segment, on different columns. Partial sums of y go to shared memory and
// are added up after the segment: two instructions a step where a shuffle tree takes six or more.

#include "elements.cuh"

// ---- asynchronous copies to shared memory

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_16_bytes(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_4_bytes(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most PENDING of the groups committed by this thread are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four floats of shared memory from four elements of a row, `fill` from the count-th on.
template <bool WIDE>
__device__ __forceinline__ void stage_quad(float* to, const float* from, int64 stride, int count,
                                           float fill) {
  if (WIDE) {
    if (count > 0) copy_16_bytes(to, from);
    else *reinterpret_cast<float4*>(to) = make_float4(fill, fill, fill, fill);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e < count) copy_4_bytes(to + e, from + e * stride);
      else to[e] = fill;
    }
  }
}
template <bool WIDE, class Element>
__device__ __forceinline__ void stage_quad(float* to, const Element* from, int64 stride, int count,
                                           float fill) {
  __align__(16) Element x[4];
  if (WIDE) {
    if (count > 0) {
      if constexpr (sizeof(Element) == 4)
        *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(from);
      else *reinterpret_cast<uint2*>(x) = *reinterpret_cast<const uint2*>(from);
    }
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < count) x[e] = from[e * stride];
  }
  float4 out;
  out.x = 0 < count ? to_float(x[0]) : fill;
  out.y = 1 < count ? to_float(x[1]) : fill;
  out.z = 2 < count ? to_float(x[2]) : fill;
  out.w = 3 < count ? to_float(x[3]) : fill;
  *reinterpret_cast<float4*>(to) = out;
}

// ---- configuration; cuda.py chooses it and computes SHARED likewise

template <class Element_, class Gate_, int K_, int LANES_, int ROWS_, int COLS_, int SEGMENTS_,
          int GROUPS_, int STEPS_, int BUFFERS_, int GATES, bool WIDE_, int SHARED>
struct Config {
  typedef Element_ Element;
  typedef Gate_ Gate;
  static constexpr int K = K_, LANES = LANES_, ROWS = ROWS_, COLS = COLS_;
  static constexpr int SEGMENTS = SEGMENTS_, GROUPS = GROUPS_, STEPS = STEPS_;
  static constexpr int BUFFERS = BUFFERS_;  // 1: the whole sequence fits one span
  static constexpr bool KEY_GATE = GATES & 1, VALUE_GATE = GATES & 2, HEAD_GATE = GATES & 4;
  static constexpr bool COLUMN_GATE = VALUE_GATE || HEAD_GATE;
  static constexpr bool WIDE = WIDE_;  // rows may be read four elements at a time

  static constexpr int QUADS = ROWS / 4, STATE = ROWS * COLS;  // of a lane
  static constexpr int ROW = (K + 3) / 4 * 4;                  // floats of a staged row
  static constexpr int COLUMN_LANES = 32 / LANES, WARP_COLUMNS = COLUMN_LANES * COLS;
  static constexpr int TILE = GROUPS * WARP_COLUMNS;  // columns of a block
  static constexpr int SPAN = SEGMENTS * STEPS;
  static constexpr int THREADS = 32 * SEGMENTS * GROUPS;
  // Rows of partial sums; the padding keeps the 16-byte reads of neighbouring rows apart.
  static constexpr int PARTIAL = LANES >= 8 ? LANES + 4 : LANES;

  static constexpr int KEYS = SPAN * ROW, VALUES = SPAN * TILE, HEADS = (SPAN + 3) / 4 * 4;
  static constexpr int STAGE =
      KEYS * (KEY_GATE ? 3 : 2) + VALUES * (VALUE_GATE ? 2 : 1) + (HEAD_GATE ? HEADS : 0);
  static constexpr int DECAY = (KEY_GATE ? ROWS : 0) + (COLUMN_GATE ? COLS : 0);
  static constexpr int ENDS = 32 * (SEGMENTS - 1) * GROUPS * (STATE + DECAY);
  static constexpr int CARRY = 32 * GROUPS * STATE;
  static constexpr int PARTIALS = SEGMENTS * GROUPS * STEPS * WARP_COLUMNS * PARTIAL;
  static_assert(4 * (BUFFERS * (STAGE + ENDS) + 2 * CARRY + PARTIALS) == SHARED,
                "cuda.py and kernel.cu disagree on the shared memory");
  static_assert(LANES * ROWS >= K && TILE % 4 == 0, "rows of the state without a lane");
};

template <class C>
struct Problem {
  const typename C::Element *q, *k, *v;
  const typename C::Gate *gate_k, *gate_v, *gate_head;
  const float* initial;  // (N, H, K, V) or null
  typename C::Element* y;
  float* last;  // (N, H, K, V) or null
  int T, H, V;
  float scale;
  Strides sq, sk, sv, sgk, sgv, sgh, si, sl;  // of the states: sequence, h, row, column
  int group;  // heads of v to a head of q and k
  // Packed sequences: their first steps and the end, 32 or 64 bits each. Null for a plain batch.
  const void* bounds;
  int bounds_64;
};

template <class C>
struct Buffers {  // of one span
  float *q, *k, *gate_k, *v, *gate_v, *gate_head, *ends, *decays;
};

template <class C>
__device__ __forceinline__ Buffers<C> buffers(float* shared, int parity) {
  Buffers<C> s;
  float* at = shared + parity * (C::STAGE + C::ENDS);
  s.k = at, at += C::KEYS;
  s.q = at, at += C::KEYS;
  s.gate_k = at, at += C::KEY_GATE ? C::KEYS : 0;
  s.v = at, at += C::VALUES;
  s.gate_v = at, at += C::VALUE_GATE ? C::VALUES : 0;
  s.gate_head = at, at += C::HEAD_GATE ? C::HEADS : 0;
  s.ends = at, at += 32 * (C::SEGMENTS - 1) * C::GROUPS * C::STATE;
  s.decays = at;
  return s;
}

// Rows t0 ... t0 + STEPS of one input, WIDTH floats each, by the warps of a segment. `columns` of
// a row exist; steps from T on, and columns that do not exist, are `fill`.
template <class C, int WIDTH, class Element>
__device__ __forceinline__ void stage_rows(float* to, const Element* from, const Strides& s,
                                           int t0, int T, int columns, float fill) {
  constexpr int QUADS = WIDTH / 4, ALL = C::STEPS * QUADS, THREADS = 32 * C::GROUPS;
  const int thread = threadIdx.x % THREADS;
#pragma unroll
  for (int round = 0; round < (ALL + THREADS - 1) / THREADS; ++round) {
    const int i = round * THREADS + thread, u = i / QUADS, x = i % QUADS, t = t0 + u;
    if (ALL % THREADS == 0 || i < ALL)
      stage_quad<C::WIDE>(to + u * WIDTH + 4 * x, from + t * s.t + 4 * x * s.d, s.d,
                          t < T ? columns - 4 * x : 0, fill);
  }
}

// Inputs of the segment that starts at t0, in two groups of copies: pass 1 does without q.
// Steps past the end are made to change nothing: gate 1, k and v 0.
template <class C>
__device__ __forceinline__ void stage(const Problem<C>& p, const Buffers<C>& s, int64 b, int64 h,
                                      int column, int segment, int t0) {
  constexpr int K = C::K, TILE = C::TILE;
  const int keys = segment * C::STEPS * C::ROW, values = segment * C::STEPS * TILE;
  const int columns = p.V - column;
  const int64 key_head = h / p.group;
  stage_rows<C, C::ROW>(s.k + keys, p.k + b * p.sk.b + key_head * p.sk.h, p.sk, t0, p.T, K, 0.0f);
  if (C::KEY_GATE)
    stage_rows<C, C::ROW>(s.gate_k + keys, p.gate_k + b * p.sgk.b + h * p.sgk.h, p.sgk, t0, p.T,
                          K, 1.0f);
  stage_rows<C, TILE>(s.v + values, p.v + b * p.sv.b + h * p.sv.h + column * p.sv.d, p.sv, t0, p.T,
                      columns, 0.0f);
  if (C::VALUE_GATE)
    stage_rows<C, TILE>(s.gate_v + values,
                        p.gate_v + b * p.sgv.b + h * p.sgv.h + column * p.sgv.d, p.sgv, t0, p.T,
                        columns, 1.0f);
  if (C::HEAD_GATE) {
    const int u = threadIdx.x % (32 * C::GROUPS), t = t0 + u;
    static_assert(C::STEPS <= 32, "one lane per step");
    if (u < C::STEPS)
      s.gate_head[segment * C::STEPS + u] =
          t < p.T ? to_float(p.gate_head[b * p.sgh.b + h * p.sgh.h + t * p.sgh.t]) : 1.0f;
  }
  commit_copies();
  stage_rows<C, C::ROW>(s.q + keys, p.q + b * p.sq.b + key_head * p.sq.h, p.sq, t0, p.T, K, 0.0f);
  commit_copies();
}

// Which quads of rows a lane holds: quad x starts at row 4 * (x * LANES + lane).
template <class C>
__device__ __forceinline__ int quad_row(int x, int row_lane) {
  return 4 * (x * C::LANES + row_lane);
}
// Lanes beyond the last row read row 0: valid memory, and what they make of it is not used.
template <class C>
__device__ __forceinline__ void read_quad(float (&to)[4], const float* row, int x, int row_lane) {
  const int at = quad_row<C>(x, row_lane);
  const float4 quad = *reinterpret_cast<const float4*>(row + (at < C::K ? at : 0));
  to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
}

// Pass 1. U[r][c]: the end state of a segment that starts from zero; the products of its gates.
template <class C>
__device__ __forceinline__ void segment_end(
    const Buffers<C>& s, int segment, int row_lane, const float (&v)[C::STEPS][C::COLS],
    const float (&g)[C::STEPS][C::COLS], float (&U)[C::ROWS][C::COLS], float (&row_decay)[C::ROWS],
    float (&column_decay)[C::COLS]) {
#pragma unroll
  for (int c = 0; c < C::COLS; ++c) column_decay[c] = 1.0f;
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r) {
    row_decay[r] = 1.0f;
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) U[r][c] = 0.0f;
  }
  float row_growth = 1.0f, column_growth = 1.0f;
#pragma unroll
  for (int u = C::STEPS - 1; u >= 0; --u) {
    const int row = (segment * C::STEPS + u) * C::ROW;
    float w[C::COLS], row_top = 1.0f, column_top = 1.0f;
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) {
      w[c] = C::COLUMN_GATE ? v[u][c] * column_decay[c] : v[u][c];
      if (C::COLUMN_GATE) {
        column_decay[c] *= g[u][c];
        column_top = fmaxf(column_top, fabsf(g[u][c]));
      }
    }
#pragma unroll
    for (int x = 0; x < C::QUADS; ++x) {
      float k[4], gate[4];
      read_quad<C>(k, s.k + row, x, row_lane);
      if (C::KEY_GATE) read_quad<C>(gate, s.gate_k + row, x, row_lane);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = 4 * x + e;
        if (C::KEY_GATE) {
          k[e] *= row_decay[r];
          row_decay[r] *= gate[e];
          row_top = fmaxf(row_top, fabsf(gate[e]));
        }
#pragma unroll
        for (int c = 0; c < C::COLS; ++c) U[r][c] = fmaf(k[e], w[c], U[r][c]);
      }
    }
    if (C::COLUMN_GATE) column_growth *= column_top;
    if (C::KEY_GATE) row_growth *= row_top;
  }
#pragma unroll
  for (int c = 0; c < C::COLS; ++c)
    if (C::COLUMN_GATE) column_decay[c] = checked_decay(column_decay[c], column_growth);
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r)
    if (C::KEY_GATE) row_decay[r] = checked_decay(row_decay[r], row_growth);
}

// Ends and decays of segment j and column group `group` in shared memory, lane by lane.
template <class C>
__device__ __forceinline__ float4* end_of(const Buffers<C>& s, int j, int group, int lane) {
  return reinterpret_cast<float4*>(s.ends) + (j * C::GROUPS + group) * (C::STATE / 4) * 32 + lane;
}
template <class C>
__device__ __forceinline__ float* decay_of(const Buffers<C>& s, int j, int group, int lane) {
  return s.decays + (j * C::GROUPS + group) * C::DECAY * 32 + lane;
}

template <class C>
__device__ __forceinline__ void put_state(float4* to, const float (&state)[C::ROWS][C::COLS]) {
#pragma unroll
  for (int x = 0; x < C::QUADS; ++x)
#pragma unroll
    for (int c = 0; c < C::COLS; ++c)
      to[(x * C::COLS + c) * 32] = make_float4(state[4 * x][c], state[4 * x + 1][c],
                                               state[4 * x + 2][c], state[4 * x + 3][c]);
}
template <class C>
__device__ __forceinline__ void get_state(const float4* from, float (&state)[C::ROWS][C::COLS]) {
#pragma unroll
  for (int x = 0; x < C::QUADS; ++x)
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) {
      const float4 quad = from[(x * C::COLS + c) * 32];
      state[4 * x][c] = quad.x, state[4 * x + 1][c] = quad.y;
      state[4 * x + 2][c] = quad.z, state[4 * x + 3][c] = quad.w;
    }
}

// Writes the end state and its decays; true where a decay is marked NaN.
template <class C>
__device__ __forceinline__ bool put_end(const Buffers<C>& s, int segment, int group, int lane,
                                        const float (&U)[C::ROWS][C::COLS],
                                        const float (&row_decay)[C::ROWS],
                                        const float (&column_decay)[C::COLS]) {
  put_state<C>(end_of<C>(s, segment, group, lane), U);
  float* const decays = decay_of<C>(s, segment, group, lane);
  bool marked = false;
  if (C::COLUMN_GATE)
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) {
      decays[c * 32] = column_decay[c];
      marked = marked || isnan(column_decay[c]);
    }
  if (C::KEY_GATE)
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r) {
      decays[((C::COLUMN_GATE ? C::COLS : 0) + r) * 32] = row_decay[r];
      marked = marked || isnan(row_decay[r]);
    }
  return marked;
}

// Lets the state pass over segment j.
template <class C>
__device__ __forceinline__ void skip_segment(const Buffers<C>& s, int j, int group, int lane,
                                             float (&state)[C::ROWS][C::COLS]) {
  float U[C::ROWS][C::COLS];
  get_state<C>(end_of<C>(s, j, group, lane), U);
  const float* const decays = decay_of<C>(s, j, group, lane);
#pragma unroll
  for (int c = 0; c < C::COLS; ++c) {
    const float column_decay = C::COLUMN_GATE ? decays[c * 32] : 1.0f;
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r) {
      float old = state[r][c];
      if (C::KEY_GATE) old *= decays[((C::COLUMN_GATE ? C::COLS : 0) + r) * 32];
      state[r][c] = C::COLUMN_GATE ? fmaf(column_decay, old, U[r][c]) : old + U[r][c];
    }
  }
}

// True where a segment before this one has marked a decay of this lane's part of the state.
template <class C>
__device__ __forceinline__ bool after_marked(const Buffers<C>& s, int segment, int group,
                                             int lane) {
  bool found = false;
  for (int j = 0; j < segment; ++j)
    for (int i = 0; i < C::DECAY; ++i)
      found = found || isnan(decay_of<C>(s, j, group, lane)[i * 32]);
  return found;
}

// Pass 2: the plain recurrence over a segment; partial sums of y to shared memory.
template <class C>
__device__ __forceinline__ void walk(const Buffers<C>& s, int segment, int row_lane,
                                     int column_lane, const float (&v)[C::STEPS][C::COLS],
                                     const float (&g)[C::STEPS][C::COLS],
                                     float (&state)[C::ROWS][C::COLS], float* partials) {
#pragma unroll
  for (int u = 0; u < C::STEPS; ++u) {
    const int row = (segment * C::STEPS + u) * C::ROW;
    float sum[C::COLS][2];
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) sum[c][0] = sum[c][1] = 0.0f;
#pragma unroll
    for (int x = 0; x < C::QUADS; ++x) {
      float k[4], q[4], gate[4];
      read_quad<C>(k, s.k + row, x, row_lane);
      read_quad<C>(q, s.q + row, x, row_lane);
      if (C::KEY_GATE) read_quad<C>(gate, s.gate_k + row, x, row_lane);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = quad_row<C>(x, row_lane) + e < C::K;
#pragma unroll
        for (int c = 0; c < C::COLS; ++c) {
          float& now = state[4 * x + e][c];
          if (C::KEY_GATE && C::COLUMN_GATE) now = fmaf(g[u][c], gate[e] * now, k[e] * v[u][c]);
          else if (C::KEY_GATE) now = fmaf(gate[e], now, k[e] * v[u][c]);
          else if (C::COLUMN_GATE) now = fmaf(g[u][c], now, k[e] * v[u][c]);
          else now = fmaf(k[e], v[u][c], now);
          // A row that does not exist must not reach y even as 0 * infinity.
          if (exists) sum[c][e & 1] = fmaf(q[e], now, sum[c][e & 1]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < C::COLS; ++c)
      partials[((u * C::COLS + c) * C::COLUMN_LANES + column_lane) * C::PARTIAL + row_lane] =
          sum[c][0] + sum[c][1];
  }
}

// Adds up the partial sums of a segment and writes y.
template <class C>
__device__ __forceinline__ void write_y(const Problem<C>& p, const float* partials, int64 b,
                                        int64 h, int column, int t0) {
  typename C::Element* const y = p.y + (b * p.T * p.H + h) * p.V + column;
  const int64 step = static_cast<int64>(p.H) * p.V;
  const int lane = threadIdx.x % 32;
  constexpr int ALL = C::STEPS * C::WARP_COLUMNS;
#pragma unroll
  for (int round = 0; round < (ALL + 31) / 32; ++round) {
    const int o = round * 32 + lane;
    if (ALL % 32 != 0 && o >= ALL) break;
    const float* const row = partials + o * C::PARTIAL;
    float sum;
    if constexpr (C::LANES >= 4) {
      float4 sums = *reinterpret_cast<const float4*>(row);
#pragma unroll
      for (int x = 1; x < C::LANES / 4; ++x) {
        if (4 * x * 4 >= C::K) break;  // lanes whose first quad is past the last row
        const float4 more = *reinterpret_cast<const float4*>(row + 4 * x);
        sums.x += more.x, sums.y += more.y, sums.z += more.z, sums.w += more.w;
      }
      sum = (sums.x + sums.y) + (sums.z + sums.w);
    } else {
      sum = row[0];
#pragma unroll
      for (int l = 1; l < C::LANES; ++l) sum += row[l];
    }
    const int t = t0 + o / C::WARP_COLUMNS, x = o % C::WARP_COLUMNS;
    if (t < p.T && column + x < p.V) from_float(sum * p.scale, y + t * step + x);
  }
}

// The state of a lane from or to global memory, in (B, H, K, V).
template <class C, class F>
__device__ __forceinline__ void each_element(const Problem<C>& p, const Strides& s, int64 b,
                                             int64 h, int row_lane, int column, int column_lane,
                                             float (&state)[C::ROWS][C::COLS], F act) {
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r)
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) {
      const int i = quad_row<C>(r / 4, row_lane) + r % 4;
      const int j = column + c * C::COLUMN_LANES + column_lane;
      if (i < C::K && j < p.V) act(b * s.b + h * s.t + i * s.h + j * s.d, state[r][c]);
    }
}

// The problem of one packed sequence alone, as a batch of one.
template <class C>
__device__ __forceinline__ Problem<C> sequence(Problem<C> p, int64 n) {
  const int64 first = bound(p.bounds, p.bounds_64, n, p.T);
  const int end = bound(p.bounds, p.bounds_64, n + 1, p.T);
  p.q += first * p.sq.t, p.k += first * p.sk.t, p.v += first * p.sv.t;
  if (C::KEY_GATE) p.gate_k += first * p.sgk.t;
  if (C::VALUE_GATE) p.gate_v += first * p.sgv.t;
  if (C::HEAD_GATE) p.gate_head += first * p.sgh.t;
  p.y += first * p.H * p.V;
  p.T = end > first ? end - static_cast<int>(first) : 0;
  return p;
}

// Head h of index b of the batch; its states are those of sequence n.
template <class C>
__device__ __forceinline__ void recur(const Problem<C>& p, int64 b, int64 n_state, int64 h) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int segment = warp / C::GROUPS, group = warp % C::GROUPS;
  const int row_lane = lane % C::LANES, column_lane = lane / C::LANES;
  const int tiles = (p.V + C::TILE - 1) / C::TILE;
  const int tile_column = blockIdx.x % tiles * C::TILE;
  const int column = tile_column + group * C::WARP_COLUMNS;  // first of this warp
  float4* const carry = reinterpret_cast<float4*>(shared + C::BUFFERS * (C::STAGE + C::ENDS));
  float* const partials = reinterpret_cast<float*>(carry) + 2 * C::CARRY +
                          warp * C::STEPS * C::WARP_COLUMNS * C::PARTIAL;
  float4* const carry_of_lane = carry + group * (C::STATE / 4) * 32 + lane;
  constexpr int PARITY = C::CARRY / 4;  // from one of the two carries to the other

  float state[C::ROWS][C::COLS];
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r)
#pragma unroll
    for (int c = 0; c < C::COLS; ++c) state[r][c] = 0.0f;
  const int spans = C::BUFFERS == 1 ? 1 : (p.T + C::SPAN - 1) / C::SPAN;
  stage<C>(p, buffers<C>(shared, 0), b, h, tile_column, segment, segment * C::STEPS);
  if (p.initial != nullptr)
    each_element<C>(p, p.si, n_state, h, row_lane, column, column_lane, state,
                    [&](int64 at, float& x) { x = p.initial[at]; });

  for (int n = 0; n < spans; ++n) {
    const Buffers<C> s = buffers<C>(shared, C::BUFFERS == 1 ? 0 : n & 1);
    const int t0 = n * C::SPAN + segment * C::STEPS;
    wait_copies<1>();
    // A segment's inputs are staged by its own warps: one alone needs no block barrier.
    if (C::GROUPS == 1) __syncwarp();
    else __syncthreads();

    float v[C::STEPS][C::COLS], g[C::STEPS][C::COLS];
#pragma unroll
    for (int u = 0; u < C::STEPS; ++u)
#pragma unroll
      for (int c = 0; c < C::COLS; ++c) {
        const int step = segment * C::STEPS + u;
        const int at = step * C::TILE + group * C::WARP_COLUMNS + c * C::COLUMN_LANES + column_lane;
        v[u][c] = s.v[at];
        g[u][c] = C::VALUE_GATE ? s.gate_v[at] : 1.0f;
        if (C::HEAD_GATE) g[u][c] = column_gate(g[u][c], s.gate_head[step]);
      }

    bool marked = false;
    if (segment < C::SEGMENTS - 1) {
      float U[C::ROWS][C::COLS], row_decay[C::ROWS], column_decay[C::COLS];
      segment_end<C>(s, segment, row_lane, v, g, U, row_decay, column_decay);
      marked = put_end<C>(s, segment, group, lane, U, row_decay, column_decay);
    }
    wait_copies<0>();
    // One barrier a span: ends are complete, q has come, and nobody reads the other buffers now.
    int turns = 1;
    if (C::SEGMENTS > 1) turns = __syncthreads_or(marked) ? C::SEGMENTS : 1;
    else if (C::GROUPS > 1) __syncthreads();
    else __syncwarp();
    if (C::BUFFERS > 1 && n + 1 < spans)
      stage<C>(p, buffers<C>(shared, (n + 1) & 1), b, h, tile_column, segment, t0 + C::SPAN);

    // Every segment of the first span starts from the initial state, which is in registers.
    if (n > 0) get_state<C>(carry_of_lane + (n & 1) * PARITY, state);
#pragma unroll
    for (int j = 0; j < C::SEGMENTS - 1; ++j)
      if (j < segment) skip_segment<C>(s, j, group, lane, state);

    // Normally one turn, of all segments at once. With a marked decay the segments take turns,
    // and one that comes after it starts from the end of the one before.
    for (int turn = 0; turn < turns; ++turn) {
      if (turns == 1 || turn == segment) {
        if (turns > 1 && after_marked<C>(s, segment, group, lane))
          get_state<C>(carry_of_lane + ((n + 1) & 1) * PARITY, state);
        walk<C>(s, segment, row_lane, column_lane, v, g, state, partials);
        if (turns > 1 || (segment == C::SEGMENTS - 1 && n + 1 < spans))
          put_state<C>(carry_of_lane + ((n + 1) & 1) * PARITY, state);
        __syncwarp();
        write_y<C>(p, partials, b, h, column, t0);
      }
      if (turns > 1) __syncthreads();
    }
  }

  if (p.last != nullptr && segment == C::SEGMENTS - 1)
    each_element<C>(p, p.sl, n_state, h, row_lane, column, column_lane, state,
                    [&](int64 at, float& x) { p.last[at] = x; });
}

template <class C>
__device__ __forceinline__ void recur(const Problem<C>& p) {
  const int head = blockIdx.x / ((p.V + C::TILE - 1) / C::TILE);
  const int64 n = head / p.H, h = head % p.H;
  recur<C>(p, n, n, h);
}

// Everything contiguous: strides follow from the sizes. As many heads of q and k as of v.
template <class C>
__global__ void __launch_bounds__(C::THREADS)
    contiguous(const typename C::Element* q, const typename C::Element* k,
               const typename C::Element* v, const typename C::Gate* gate_k,
               const typename C::Gate* gate_v, const typename C::Gate* gate_head,
               const float* initial, typename C::Element* y, float* last, int T, int H, int V,
               float scale) {
  const int64 keys = static_cast<int64>(H) * C::K, values = static_cast<int64>(H) * V;
  const Strides sk{T * keys, keys, C::K, 1}, sv{T * values, values, V, 1};
  const Strides sh{static_cast<int64>(T) * H, H, 1, 0}, ss{keys * V, static_cast<int64>(C::K) * V, V, 1};
  recur<C>({q, k, v, gate_k, gate_v, gate_head, initial, y, last, T, H, V, scale, sk, sk, sv, sk,
            sv, sh, ss, ss, 1, nullptr, 0});
}

// Any strides. y is contiguous still.
#define STRIDED_ARGUMENTS                                                                       \
  const typename C::Element *q, const typename C::Element *k, const typename C::Element *v,     \
      const typename C::Gate *gate_k, const typename C::Gate *gate_v,                           \
      const typename C::Gate *gate_head, const float *initial, typename C::Element *y,          \
      float *last, int T, int H, int V, float scale, STRIDES(q), STRIDES(k), STRIDES(v),        \
      STRIDES(gate_k), STRIDES(gate_v), STRIDES(gate_head), STRIDES(initial), STRIDES(last),    \
      int group
#define STRIDED_PROBLEM                                                                         \
  q, k, v, gate_k, gate_v, gate_head, initial, y, last, T, H, V, scale, GIVEN(q), GIVEN(k),     \
      GIVEN(v), GIVEN(gate_k), GIVEN(gate_v), GIVEN(gate_head), GIVEN(initial), GIVEN(last), group

template <class C>
__global__ void __launch_bounds__(C::THREADS) strided(STRIDED_ARGUMENTS) {
  recur<C>({STRIDED_PROBLEM, nullptr, 0});
}

// Sequences packed into one row: their length is found on the device.
template <class C>
__global__ void __launch_bounds__(C::THREADS)
    packed(STRIDED_ARGUMENTS, const void* bounds, int bounds_64) {
  const int head = blockIdx.x / ((V + C::TILE - 1) / C::TILE);
  const int64 n = head / H, h = head % H;
  recur<C>(sequence<C>({STRIDED_PROBLEM, bounds, bounds_64}, n), 0, n, h);
}
