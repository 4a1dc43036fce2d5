// Gradients of the gated recurrence on tensor cores, bfloat16 in and out, by chunks of 64 steps that
// do not depend on one another once backward_states.cu has made the state before each chunk and the
// gradient by the state after it. No division and no logarithm, so that gates of zero and negative
// ones get their gradient.
//
// With S_t = g_t * S_{t-1} + k_t v_t^T, D_t = scale q_t dy_t^T + g_{t+1} * D_{t+1} (g: one gate for
// each row), let B[r][s] = dy_r v_s. Of some steps a ... e, with S the state before them and D the
// gradient after them (times the gates that follow), let for each row of the state
//
//   X[r] = S dy_r,  Y[s] = D v_s,  Z = sum_j S D.
//
// For a single step, dq = scale (g X + k B), dk = scale q B + Y and dg = scale q X + Z. More steps are
// cut in half. With P the product of gates of the first half and Q that of the second, u_s the key of
// step s times the gates after it within the first half, and p_r the query of step r times scale and
// the gates up to and with it within the second, the halves have
//
//   first half:   X as it is,  Y[s] = Q Y[s] + sum_r p_r B[r][s],  Z = Q Z + sum_r p_r X[r]
//   second half:  Y as it is,  X[r] = P X[r] + sum_s u_s B[r][s],  Z = P Z + sum_s u_s Y[s]
//
// where X and Y on the right are those from before the cut. So a chunk goes from 64 steps to 32, 16
// and 8 with products of matrices for the sums over B, in bfloat16, and from 8 to 1 in float, each
// lane with two rows of the state and B of these steps. No state of a single step is formed.
//
// dv_s = sum_{r >= s} A[r][s] dy_r + D k_s, where A[r][s] is the product q_r k_s with the gates
// between: p_r u_s where a cut parts r and s. The same cuts go down to single steps there, as in
// levels.cuh.
//
// A block of threads takes 64 * PARTS rows of the state, a warp 16 steps of 32 rows. Between 8 steps
// accumulators have rows of the state as rows and steps as columns; within them, half a warp takes 8
// steps.

#include "backward_halves.cuh"

// chunked_backward.py computes SHARED likewise.
template <class Gate_, int GATES_, int PARTS_, bool TRANSPOSED_, int SHARED_>
struct Config {
  typedef Gate_ Gate;
  static constexpr int GATES = GATES_;             // 1: of rows, 2: of the head
  static constexpr int PARTS = PARTS_;             // 64 rows each
  static constexpr bool TRANSPOSED = TRANSPOSED_;  // gates of columns: y instead of dq
  static constexpr int QUARTERS = 2 * PARTS;       // 32 rows each
  static constexpr int WARPS = BLOCKS * QUARTERS, THREADS = 32 * WARPS;
  // So many times 64 columns are there at once, where there is room.
  static constexpr int STAGES = PARTS == 2 && !TRANSPOSED ? 2 : 1;
  // Bytes of shared memory: stages of v, dy, S and D.
  static constexpr int V = 0, DY = TILE, S = 2 * TILE, D = S + PARTS * TILE, STAGE = D + PARTS * TILE;
  static constexpr int AT_PARTS = STAGES * STAGE;
  // For each part, tiles of 16 steps by 64 rows, one for each block of steps. At the cuts of 64 and
  // 32 steps and of 16: u of blocks in a first half, p of those in a second.
  static constexpr int TILE16 = TILE / 4;
  static constexpr int CUT64 = 0, CUT32 = CUT64 + TILE, CUT16 = CUT32 + TILE;
  // Keys times the gates up to the end of the chunk; q times those from its start.
  static constexpr int TO_END = CUT16 + TILE, FROM_START = TO_END + TILE;
  static constexpr int QUERIES = FROM_START + (TRANSPOSED ? TILE : 0), KEYS = QUERIES + TILE;
  // Floats of 64 rows: gates of 8, 16 and 32 steps; Z of the chunk, in four parts; sums for Z.
  static constexpr int FLOATS = 256;
  static constexpr int GATES8 = KEYS + TILE, GATES16 = GATES8 + 8 * FLOATS;
  static constexpr int GATES32 = GATES16 + 4 * FLOATS, Z = GATES32 + 2 * FLOATS;
  static constexpr int SUMS64 = Z + 4 * FLOATS, SUMS32 = SUMS64 + 4 * FLOATS;
  static constexpr int SUMS16 = SUMS32 + 4 * FLOATS, PART = SUMS16 + 8 * FLOATS;
  // A and B: blocks of 16 x 16 as four tiles of 8 x 8. B within 8 steps, in float.
  static constexpr int A = AT_PARTS + PARTS * PART, B = A + 10 * 512, NEAR = B + 10 * 512;
  static constexpr int NEAR8 = 8 * 8 * 4 + 16;  // padded against bank conflicts
  // Parts of A within 16 steps, before there is B.
  static constexpr int SOME_OF_A = 6 * 32 * 4, OF_QUARTER = BLOCKS * SOME_OF_A;
  static constexpr int LEAST = (QUARTERS - 1) * OF_QUARTER, USED = 10 * 512 + 8 * NEAR8;
  static constexpr int SHARED = B + (LEAST > USED ? LEAST : USED);
  static_assert(SHARED == SHARED_, "chunked_backward.py and backward_chunks.cu disagree");
};

// Block (r, s) of A or B, s <= r.
__device__ __forceinline__ int block_of(int r, int s) { return (r * (r + 1) / 2 + s) * 512; }
// Its tile of rows half * 8 ... and columns n * 8 ... is number half * 2 + n.
__device__ __forceinline__ void store_block(u32 at, const float (&x)[2][4], int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store32(at + (half * 2 + n) * 128 + lane * 4, pack(x[n][2 * half], x[n][2 * half + 1]));
}
// As left operand, as it is and transposed; as a pair of right operands, whose columns are the
// block's columns, and its rows.
__device__ __forceinline__ void left_of_block(u32 (&x)[4], u32 at, int lane) {
  load_matrices(x, at + (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16);
}
__device__ __forceinline__ void left_of_block_transposed(u32 (&x)[4], u32 at, int lane) {
  load_transposed(x, at + lane * 16);
}
__device__ __forceinline__ void right_of_block(u32 (&x)[4], u32 at, int lane) {
  load_transposed(x, at + (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16);
}
__device__ __forceinline__ void right_of_block_transposed(u32 (&x)[4], u32 at, int lane) {
  load_matrices(x, at + lane * 16);
}
// Operands from a state of 64 columns: its rows are rows of the product; its columns are columns.
__device__ __forceinline__ void left_of_state(u32 (&x)[4], u32 at, int row, int unit, int lane) {
  load_matrices(x, at + ((row / 8 + lane / 8 % 2) * 8 + unit + lane / 16) * 128 + lane % 8 * 16);
}
__device__ __forceinline__ void right_of_state(u32 (&x)[4], u32 at, int row, int unit, int lane) {
  load_transposed(x, at + ((row / 8 + lane / 8 % 2) * 8 + unit + lane / 16) * 128 + lane % 8 * 16);
}

// What a warp and a lane are for.
struct Role {
  int lane, block, part, rows;  // rows: first of the warp's 32 within its part
  int quarter, half;            // half: which 8 steps
  int row, eighth;              // the lane's first row within the part; its 8 steps in the chunk
  u32 shared, own;              // shared memory: all, of the part
  u32 tile;                     // the first of the tiles of the warp's 16 steps
  u32 word;                     // of the lane's rows at the first of its steps, within such a tile
};
template <class C>
__device__ __forceinline__ Role role_of(u32 shared, u32 thread) {
  Role r;
  const int warp = thread / 32;
  r.lane = thread % 32, r.block = warp % BLOCKS, r.quarter = warp / BLOCKS;
  r.part = r.quarter / 2, r.rows = r.quarter % 2 * 32;
  r.half = r.lane / 16, r.row = r.rows + r.lane % 16 * 2, r.eighth = 2 * r.block + r.half;
  r.shared = shared, r.own = shared + C::AT_PARTS + r.part * C::PART;
  r.tile = r.own + r.block * C::TILE16;
  r.word = unit_of(r.half * 8, r.row / 8) + r.lane % 4 * 4;
  return r;
}

// Keys times the gates after their step within the lane's 8, q times the scale and those before.
struct Within {
  float2 u[8], p[8];
};

// Where the lane's rows at its step t are, from the tile on.
__device__ __forceinline__ u32 word_at(const Role& r, int t) { return (r.word ^ t << 4) + t * 128; }

// A within 16 steps, from the warp's 32 rows: element (t, s) of the first 8 steps, of the second 8,
// and of both; t = lane / 4, s = lane % 4 * 2 + {0, 1}. Tiles of the cuts are the warp's own until
// then.
template <class C>
__device__ __forceinline__ void products_within(const Role& r, const Steps<8>& x, const Within& w,
                                                float scale, float (&sums)[3][2]) {
  const int lane = r.lane;
  constexpr int BITS[3] = {C::CUT64, C::CUT32, C::TO_END};
  float2 g2[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) g2[i] = x.g[2 * i] * x.g[2 * i + 1];
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    auto put = [&](int to, u32 y) { store32(r.tile + word_at(r, t) + to, y); };
    const float2 Q = unpack(x.q[t]), K = unpack(x.k[t]);
    put(C::QUERIES, x.q[t]), put(C::KEYS, x.k[t]);
    put(C::CUT16, pack(r.half ? w.p[t] : w.u[t]));
    if (!C::GATES) continue;
    put(BITS[0], t % 2 ? pack(Q * x.g[t]) : x.k[t]);
    if (t % 4 == 0) put(BITS[1], pack(K * x.g[t + 1]));
    if (t % 4 == 1) put(BITS[1], x.k[t]);
    if (t % 4 == 2) put(BITS[1], pack(Q * x.g[t]));
    if (t % 4 == 3) put(BITS[1], pack(Q * g2[t / 2]));
    if (t == 0) put(BITS[2], pack(K * (x.g[1] * g2[1])));
    if (t == 1) put(BITS[2], pack(K * g2[1]));
    if (t == 2) put(BITS[2], pack(K * x.g[3]));
    if (t == 3) put(BITS[2], x.k[3]);
    if (t == 4) put(BITS[2], pack(Q * x.g[4]));
    if (t == 5) put(BITS[2], pack(Q * g2[2]));
    if (t == 6) put(BITS[2], pack(Q * (g2[2] * x.g[6])));
    if (t == 7) put(BITS[2], pack(Q * (g2[2] * g2[3])));
  }
  __syncwarp();
  float plain[2][4] = {}, level[3][2][4] = {}, across[4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int unit = r.rows / 8 + 2 * i;
    u32 e[4], f[4];
    left(e, r.tile + C::QUERIES, 0, unit, lane), right(f, r.tile + C::KEYS, 0, unit, lane);
    multiply(plain[0], e, f[0], f[1]), multiply(plain[1], e, f[2], f[3]);
    left(e, r.tile + C::CUT16, 0, unit, lane);
    multiply(across, e, e[0], e[2]);
    if (C::GATES)
#pragma unroll
      for (int bit = 0; bit < 3; ++bit) {
        left(e, r.tile + BITS[bit], 0, unit, lane);
        multiply(level[bit][0], e, e[0], e[2]), multiply(level[bit][1], e, e[1], e[3]);
      }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int t = lane / 4, s = lane % 4 * 2 + n, differ = t ^ s;
      const float(&all)[4] = plain[half];
      float picked = all[2 * half + n];
      if (C::GATES && differ) {
        picked = differ == 1 ? level[0][half][2 * half + n] : level[1][half][2 * half + n];
        if (differ >= 4) picked = level[2][half][2 * half + n];
      }
      sums[half][n] = s <= t ? scale * picked : 0.0f;
    }
  sums[2][0] = across[2], sums[2][1] = across[3];
}

// Tiles of the cuts for the warp's 16 steps and 32 rows, and the gates of more steps than 8.
template <class C>
__device__ __forceinline__ void put_tiles(const Role& r, const Within& w) {
  const u32 floats = r.own + r.row * 4;
  const int first = r.block & 2 ? 4 : 0;  // of the eighths of this half of the chunk
  auto gates = [&](int eighth) { return load64(floats + C::GATES8 + eighth * C::FLOATS); };
  const float2 one = make_float2(1.0f, 1.0f);
  float2 at32 = one, at64 = one, before = one, after = one;
  if (C::GATES) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 g = gates(i);
      if (i < r.eighth) before = before * g;
      if (i > r.eighth) after = after * g;
      const bool between = r.block & 2 ? i >= 4 && i < r.eighth : i < 4 && i > r.eighth;
      if (between) at64 = at64 * g;
    }
    const float2 other = gates(r.eighth ^ 1), own = gates(r.eighth);
    if (r.half == (r.block & 1)) at32 = other;
    if (r.half == 0) store64(floats + C::GATES16 + r.block * C::FLOATS, own * other);
    if (r.half == 0 && r.block % 2 == 0)
      store64(floats + C::GATES32 + r.block / 2 * C::FLOATS,
              (own * other) * (gates(first + 2) * gates(first + 3)));
  }
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    auto put = [&](int to, float2 x) { store32(r.tile + word_at(r, t) + to, pack(x)); };
    put(C::CUT32, r.block & 1 ? w.p[t] * at32 : w.u[t] * at32);
    put(C::CUT64, r.block & 2 ? w.p[t] * at64 : w.u[t] * at64);
    put(C::TO_END, w.u[t] * after);
    if (C::TRANSPOSED) put(C::FROM_START, w.p[t] * before);
  }
}

// A between blocks of steps that a cut parts, by one warp each, and within them.
template <class C>
__device__ __forceinline__ void put_products(const Role& r, const float (&sums)[3][2]) {
  const int lane = r.lane, block = r.block;
  const u32 some = r.shared + C::B + block * C::SOME_OF_A + lane * 4;
  if (r.part == C::PARTS - 1 && (r.rows || block < 2)) {
    const int row = r.rows ? 2 + block / 2 : 2 * block + 1, column = r.rows ? block % 2 : 2 * block;
    const int cut = r.rows ? C::CUT64 : C::CUT32;
    float a[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4 * C::PARTS; ++i) {
      const u32 tiles = r.shared + C::AT_PARTS + i / 4 * C::PART + cut;
      u32 e[4], f[4];
      left(e, tiles + row * C::TILE16, 0, i % 4 * 2, lane);
      right(f, tiles + column * C::TILE16, 0, i % 4 * 2, lane);
      multiply(a[0], e, f[0], f[1]), multiply(a[1], e, f[2], f[3]);
    }
    store_block(r.shared + C::A + block_of(row, column), a, lane);
  }
  if (r.quarter) return;
  float a[2][4] = {{sums[0][0], sums[0][1], sums[2][0], sums[2][1]}, {0, 0, sums[1][0], sums[1][1]}};
#pragma unroll
  for (int quarter = 1; quarter < C::QUARTERS; ++quarter) {
    const u32 more = some + (quarter - 1) * C::OF_QUARTER;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[0][i] += load_float(more + i * 128), a[1][2 + i] += load_float(more + (2 + i) * 128);
      a[0][2 + i] += load_float(more + (4 + i) * 128);
    }
  }
  store_block(r.shared + C::A + block_of(block, block), a, lane);
}

// Tiles of the cuts, gates of the steps between them, and A.
template <class C>
__device__ __forceinline__ void prepare(const Role& r, const Steps<8>& x, float scale) {
  Within w;
  float2 gates = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int t = 7; t >= 0; --t) {
    w.u[t] = C::GATES && t < 7 ? unpack(x.k[t]) * gates : unpack(x.k[t]);
    if (C::GATES) gates = t < 7 ? gates * x.g[t] : x.g[t];
  }
  if (C::GATES)
    store64(r.own + C::GATES8 + r.eighth * C::FLOATS + r.row * 4, gates);
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    w.p[t] = times(unpack(x.q[t]), scale);
    if (!C::GATES) continue;
    gates = t ? gates * x.g[t] : x.g[t];
    w.p[t] = w.p[t] * gates;
  }
  float sums[3][2];
  products_within<C>(r, x, w, scale, sums);
  if (r.quarter)
#pragma unroll
    for (int i = 0; i < 6; ++i)
      store32(r.shared + C::B + (r.quarter - 1) * C::OF_QUARTER + r.block * C::SOME_OF_A + i * 128 +
                  r.lane * 4,
              __float_as_uint(sums[i / 2][i % 2]));
  __syncthreads();
  put_tiles<C>(r, w);
  __syncthreads();
  put_products<C>(r, sums);
}

// Bytes to the stage of 64 columns.
template <class C>
__device__ __forceinline__ u32 stage_of(int tile) { return tile % C::STAGES * C::STAGE; }

// Copies of 64 columns of v, dy and the two states: 16 bytes by each thread, every STEP rows.
template <class C>
struct Columns {
  static constexpr int STEP = C::THREADS / 8;
  const bfloat *v, *dy, *states, *gradients;  // what the thread copies first
  int64 v_step, dy_step, states_step;         // from one to the next
  int row, valid;
  u32 to_steps, to_states;

  __device__ __forceinline__ Columns(const bfloat* v, const bfloat* dy, const bfloat* states,
                                     const bfloat* gradients, int64 v_row, int64 dy_row, int valid,
                                     int columns, u32 shared)
      : v_step(v_row * STEP), dy_step(dy_row * STEP), row(threadIdx.x / 8), valid(valid) {
    const int thread = threadIdx.x, unit = thread % 8;
    const bool exists = row < valid;  // else the first row stands for it
    this->v = v + (exists ? row * v_row : 0) + unit * 8;
    this->dy = dy + (exists ? row * dy_row : 0) + unit * 8;
    const int at = thread / 64 * columns * 8 + thread % 64 * 8;  // 64 threads to 8 rows of a state
    this->states = states + at, this->gradients = gradients + at;
    states_step = STEP * columns;
    to_steps = shared + unit_of(row, unit), to_states = shared + thread * 16;
  }
  __device__ __forceinline__ void fetch(int tile) const {
    const u32 stage = tile % C::STAGES * C::STAGE;
#pragma unroll
    for (int i = 0; i < 64 / STEP; ++i) {
      const bool exists = row + i * STEP < valid;
      const int64 column = tile * 64;
      const u32 to = to_steps + stage + i * STEP * 128;
      copy16(to + C::V, v + column + (exists ? i * v_step : 0), exists ? 16 : 0);
      copy16(to + C::DY, dy + column + (exists ? i * dy_step : 0), exists ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 to = to_states + stage + i * C::THREADS * 16;
      copy16(to + C::S, states + i * states_step + tile * 512);
      copy16(to + C::D, gradients + i * states_step + tile * 512);
    }
    commit_copies();
  }
};

// An accumulator of 16 steps by 8 * N columns, rounded or as a part of a sum. Lanes next to each
// other exchange, so that each stores 8 bytes of rounded numbers.
template <int N>
__device__ __forceinline__ void write_columns(const float (&x)[N][4], bfloat* rounded, float* part,
                                              int64 next, int valid, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = lane / 4 + half * 8;
    const int64 at = t * next;
    if (part != nullptr) {
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (t < valid)
          *reinterpret_cast<float2*>(part + at + n * 8 + lane % 4 * 2) =
              make_float2(x[n][2 * half], x[n][2 * half + 1]);
      continue;
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      const u32 one = pack(x[n][2 * half], x[n][2 * half + 1]);
      const u32 two = pack(x[n + 1][2 * half], x[n + 1][2 * half + 1]);
      const u32 got = __shfl_xor_sync(~0u, lane % 2 ? one : two, 1);
      const uint2 both = lane % 2 ? make_uint2(got, two) : make_uint2(one, got);
      if (t < valid)
        *reinterpret_cast<uint2*>(rounded + at + (n + lane % 2) * 8 + lane % 4 / 2 * 4) = both;
    }
  }
}

// dv, and y where gates are of columns, of the warp's 16 steps and its share of 64 columns.
template <class C>
__device__ __forceinline__ void write_tile(const Role& r, const Sizes& z, const Place& w, int tile,
                                           const Outputs& out) {
  constexpr int N = 4 / C::QUARTERS;  // times 16 columns
  const u32 stage = r.shared + stage_of<C>(tile);
  const int lane = r.lane, block = r.block, valid = w.valid - block * 16, unit = r.quarter * N * 2;
  float dv[2 * N][4] = {}, y[2 * N][4] = {};
  auto add = [&](float (&to)[2 * N][4], const u32 (&a)[4], int n, const u32 (&b)[4]) {
    multiply(to[2 * n], a, b[0], b[1]), multiply(to[2 * n + 1], a, b[2], b[3]);
  };
#pragma unroll 1
  for (int later = block; later < BLOCKS; ++later) {
    u32 a[4];
    left_of_block_transposed(a, r.shared + C::A + block_of(later, block), lane);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      u32 b[4];
      right_transposed(b, stage + C::DY, later * 16, unit + n * 2, lane);
      add(dv, a, n, b);
    }
  }
  if (C::TRANSPOSED)
#pragma unroll 1
    for (int s = 0; s <= block; ++s) {
      u32 a[4];
      left_of_block(a, r.shared + C::A + block_of(block, s), lane);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        u32 b[4];
        right_transposed(b, stage + C::V, s * 16, unit + n * 2, lane);
        add(y, a, n, b);
      }
    }
#pragma unroll
  for (int part = 0; part < C::PARTS; ++part) {
    const u32 tiles = r.shared + C::AT_PARTS + part * C::PART + block * C::TILE16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 a[4], b[4];
      left(a, tiles + C::TO_END, 0, i * 2, lane);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        right_of_state(b, stage + C::D + part * TILE, i * 16, unit + n * 2, lane);
        add(dv, a, n, b);
      }
      if (C::TRANSPOSED) {
        left(a, tiles + C::FROM_START, 0, i * 2, lane);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          right_of_state(b, stage + C::S + part * TILE, i * 16, unit + n * 2, lane);
          add(y, a, n, b);
        }
      }
    }
  }
  const int64 next = static_cast<int64>(z.H) * z.columns;
  const int64 token = static_cast<int64>(w.b) * z.T + w.first + block * 16;
  const int64 at = (token * z.H + w.h) * z.columns + tile * 64 + unit * 8;
  const int64 part = static_cast<int64>(gridDim.z) * z.T * next * w.piece;
  write_columns(dv, out.dv + at, out.dv_parts == nullptr ? nullptr : out.dv_parts + part + at,
                next, valid, lane);
  if (C::TRANSPOSED)
    write_columns(y, out.dq + at, out.y_parts == nullptr ? nullptr : out.y_parts + part + at,
                  next, valid, lane);
}

// Of an accumulator of the warp: tiles of 16 rows of the state by 8 steps.
typedef float Tall[2][2][4];

// Over all columns: X, Y and Z of the chunk, B; dv is written.
template <class C>
__device__ __forceinline__ void over_columns(const Role& r, const Columns<C>& columns, int tiles,
                                             const Sizes& sizes, const Place& w, const Outputs& out,
                                             Tall& x, Tall& y) {
  constexpr int SLOTS = BLOCKS / C::QUARTERS;
  const int lane = r.lane, block = r.block;
  float b[SLOTS][2][4] = {}, z[2][2][4] = {};  // z: products of rows, on the diagonal
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i / 8][i / 4 % 2][i % 4] = y[i / 8][i / 4 % 2][i % 4] = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    if (C::STAGES > 1 && tile + 1 < tiles) {
      columns.fetch(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const u32 stage = r.shared + stage_of<C>(tile);
    const u32 states = stage + C::S + r.part * TILE, gradients = stage + C::D + r.part * TILE;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 dy[4], v[4];
      right(dy, stage + C::DY, block * 16, i * 2, lane);
      right(v, stage + C::V, block * 16, i * 2, lane);
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        const int s = slot * C::QUARTERS + r.quarter;
        if (s > block) continue;
        u32 a[4];
        left(a, stage + C::V, s * 16, i * 2, lane);
        multiply(b[slot][0], a, dy[0], dy[1]), multiply(b[slot][1], a, dy[2], dy[3]);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        u32 a[4], c[4];
        left_of_state(a, states, r.rows + m * 16, i * 2, lane);
        left_of_state(c, gradients, r.rows + m * 16, i * 2, lane);
        multiply(x[m][0], a, dy[0], dy[1]), multiply(x[m][1], a, dy[2], dy[3]);
        multiply(y[m][0], c, v[0], v[1]), multiply(y[m][1], c, v[2], v[3]);
        if (!C::GATES || i != block) continue;
        multiply(z[m][0], a, c[0], c[2]), multiply(z[m][1], a, c[1], c[3]);
      }
    }
    write_tile<C>(r, sizes, w, tile, out);
    if (tile + 1 < tiles) __syncthreads();
    if (C::STAGES == 1 && tile + 1 < tiles) columns.fetch(tile + 1);
  }
  if (C::GATES && lane % 4 == lane / 8)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&of)[4] = z[i / 2][i % 2];
      store32(r.own + C::Z + block * C::FLOATS + (r.rows + i * 8 + lane / 4) * 4,
              __float_as_uint(lane & 4 ? of[i % 2 * 2 + 1] : of[i % 2 * 2]));
    }
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {  // rows of these products are steps of v
    const int s = slot * C::QUARTERS + r.quarter;
    if (s > block) continue;
    store_block(r.shared + C::B + block_of(block, s), b[slot], lane);
    if (s != block) continue;
    const u32 near = r.shared + C::NEAR + 2 * block * C::NEAR8 + lane / 4 * 32 + lane % 4 * 8;
    store64(near, times(make_float2(b[slot][0][0], b[slot][0][1]), sizes.scale));
    store64(near + C::NEAR8, times(make_float2(b[slot][1][2], b[slot][1][3]), sizes.scale));
  }
}

// x[rows] += a row's sum over columns n * 8 ... of the accumulator times those of a tile.
__device__ __forceinline__ void add_products(float (&sum)[2], const float (&x)[4], u32 up, u32 down) {
  sum[0] = fmaf(x[1], high(up), fmaf(x[0], low(up), sum[0]));
  sum[1] = fmaf(x[3], high(down), fmaf(x[2], low(down), sum[1]));
}
// Sums of four lanes, to the floats of rows lane / 4 and 8 below.
__device__ __forceinline__ void store_sums(float (&sum)[2], u32 to, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
    sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    if (lane % 4 == 0) store32(to + (i * 8 + lane / 4) * 4, __float_as_uint(sum[i]));
  }
}
__device__ __forceinline__ void times_rows(float (&x)[4], u32 gates, int lane) {
  const float up = load_float(gates + lane / 4 * 4), down = load_float(gates + lane / 4 * 4 + 32);
  x[0] *= up, x[1] *= up, x[2] *= down, x[3] *= down;
}

// One cut, for 16 steps of its second half (x: X, FIRST false) or of its first (x: Y): sums for Z of
// the other half, the gates of that, and its steps in blocks from `from` on.
template <class C, bool FIRST, int OTHERS>
__device__ __forceinline__ void cut(const Role& r, Tall& x, int tiles, int sums, int gates, int from) {
  const int lane = r.lane;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int rows = r.rows + m * 16;
    if (C::GATES) {
      u32 a[4];
      float sum[2] = {};
      left_transposed(a, r.tile + tiles, 0, rows / 8, lane);
      add_products(sum, x[m][0], a[0], a[1]);
      add_products(sum, x[m][1], a[2], a[3]);
      store_sums(sum, r.own + sums + r.block * C::FLOATS + rows * 4, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n) times_rows(x[m][n], r.own + gates + rows * 4, lane);
    }
  }
#pragma unroll
  for (int i = 0; i < OTHERS; ++i) {
    const int other = from + i;
    u32 b[4];
    if (FIRST) right_of_block_transposed(b, r.shared + C::B + block_of(other, r.block), lane);
    else right_of_block(b, r.shared + C::B + block_of(r.block, other), lane);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      u32 a[4];
      left_transposed(a, r.own + tiles + other * C::TILE16, 0, r.rows / 8 + m * 2, lane);
      multiply(x[m][0], a, b[0], b[1]), multiply(x[m][1], a, b[2], b[3]);
    }
  }
}

// From the chunk to the lane's 8 steps; its Z.
template <class C>
__device__ __forceinline__ float2 cut_chunk(const Role& r, Tall& x, Tall& y) {
  const int lane = r.lane, block = r.block;
  if (block < 2) cut<C, true, 2>(r, y, C::CUT64, C::SUMS64, C::GATES32 + C::FLOATS, 2);
  else cut<C, false, 2>(r, x, C::CUT64, C::SUMS64, C::GATES32, 0);
  const int other = block ^ 1, gates = C::GATES16 + other * C::FLOATS;
  if (block % 2 == 0) cut<C, true, 1>(r, y, C::CUT32, C::SUMS32, gates, other);
  else cut<C, false, 1>(r, x, C::CUT32, C::SUMS32, gates, other);
  u32 forward[4], back[4];
  right_of_block(forward, r.shared + C::B + block_of(block, block), lane);
  right_of_block_transposed(back, r.shared + C::B + block_of(block, block), lane);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int rows = r.rows + m * 16;
    u32 a[4];
    left_transposed(a, r.tile + C::CUT16, 0, rows / 8, lane);
    if (C::GATES) {
      const u32 sums = r.own + C::SUMS16 + 2 * block * C::FLOATS + rows * 4;
      const u32 of8 = r.own + C::GATES8 + 2 * block * C::FLOATS + rows * 4;
      float later[2] = {}, earlier[2] = {};
      add_products(later, x[m][1], a[2], a[3]);
      add_products(earlier, y[m][0], a[0], a[1]);
      store_sums(earlier, sums, lane);
      store_sums(later, sums + C::FLOATS, lane);
      times_rows(x[m][1], of8, lane);
      times_rows(y[m][0], of8 + C::FLOATS, lane);
    }
    multiply8(x[m][1], a[0], a[1], forward[2]);
    multiply8(y[m][0], a[2], a[3], back[1]);
  }
  __syncthreads();
  if (!C::GATES) return make_float2(0.0f, 0.0f);
  auto floats = [&](int at, int n) { return load64(r.own + at + n * C::FLOATS + r.row * 4); };
  auto plus = [](float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); };
  float2 z = plus(plus(floats(C::Z, 0), floats(C::Z, 1)), plus(floats(C::Z, 2), floats(C::Z, 3)));
  const int far = block & 2 ^ 2;  // the first block of the other half
  z = fma2(floats(C::GATES32, far / 2), z, plus(floats(C::SUMS64, far), floats(C::SUMS64, far + 1)));
  z = fma2(floats(C::GATES16, other), z, floats(C::SUMS32, other));
  return fma2(floats(C::GATES8, r.eighth ^ 1), z, floats(C::SUMS16, r.eighth ^ 1));
}

// Where step t (4 to a unit) of one of the warp's rows of the state is in its scratch: units permuted
// so that neither 4 rows next to each other nor 8 even ones meet in a bank.
__device__ __forceinline__ u32 scratch_at(u32 scratch, int row, int unit) {
  const int pair = row / 2, permuted = (pair & 1) << 1 | (pair >> 1 & 1);
  return scratch + pair * 128 + ((row ^ row >> 3) & 1) * 64 + ((unit ^ permuted) << 4);
}
// From accumulators to the lane's two rows and 8 steps.
__device__ __forceinline__ void to_lanes(const Role& r, u32 scratch, const Tall& x, float factor,
                                         float2 (&to)[8]) {
  const int lane = r.lane;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int m = i / 4, n = i / 2 % 2, half = i % 2;
    const float2 two = make_float2(x[m][n][2 * half], x[m][n][2 * half + 1]);
    store64(scratch_at(scratch, m * 16 + half * 8 + lane / 4, n * 2 + lane % 4 / 2) + lane % 2 * 8,
            times(two, factor));
  }
  __syncwarp();
#pragma unroll
  for (int unit = 0; unit < 2; ++unit) {
    const int row = lane % 16 * 2;
    const uint4 a = load128(scratch_at(scratch, row, r.half * 2 + unit));
    const uint4 b = load128(scratch_at(scratch, row + 1, r.half * 2 + unit));
    const u32 as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int t = 0; t < 4; ++t)
      to[unit * 4 + t] = make_float2(__uint_as_float(as[t]), __uint_as_float(bs[t]));
  }
  __syncwarp();
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 2 / C::PARTS)
    gradients_in_chunks(const bfloat* q, const bfloat* k, const bfloat* v, const bfloat* dy,
              const typename C::Gate* gate, const typename C::Gate* gate_head,
              const bfloat* states, const bfloat* gradients_by, const int* unsafe, bfloat* dq,
              bfloat* dk, bfloat* dv, float* dv_parts, float* y_parts, float* dg, int T, int H,
              int rows, int columns, int row_group, int column_group, float scale,
              const __grid_constant__ Layout s) {
  extern __shared__ __align__(128) char memory[];
  const Sizes z{T, H, rows, columns, row_group, column_group, scale};
  const int tiles = columns / 64, chunks = (T + CHUNK - 1) / CHUNK;
  Place w = place_of(z, rows / (64 * C::PARTS));
  if (unsafe[w.chain]) return;  // backward.cu takes such heads
  const u32 shared = shared_address(memory);
  const int head = w.h / column_group;
  const Outputs out{dq, dk, dv, dv_parts, y_parts, dg};
  auto columns_of = [&](const Place& w) {
    const int64 state = static_cast<int64>(w.chain) * chunks + w.chunk;
    const int64 tile0 = state_tile(state, rows, columns, w.piece * C::PARTS * 8, 0);
    return Columns<C>(v + w.b * s.v[0] + w.first * s.v[1] + head * s.v[2],
                      dy + w.b * s.dy[0] + w.first * s.dy[1] + head * s.dy[2], states + tile0,
                      gradients_by + tile0, s.v[1], s.dy[1], w.valid, columns, shared);
  };
  Columns<C> of_chunk = columns_of(w);
  of_chunk.fetch(0);
#pragma unroll 1
  for (int chunk = w.chunk; chunk < chunks; chunk += gridDim.x) {
    w.move(z, chunk);
    u32 thread = threadIdx.x;
    stay(thread);  // or what follows from it would be kept for the next chunk, where there is no room
    const Role r = role_of<C>(shared, thread);
    const int step = r.eighth * 8, row = (w.piece * C::PARTS + r.part) * 64 + r.row;
    Steps<8> steps;
    load_steps<typename C::Gate, C::GATES>(steps, q, k, gate, gate_head, z, s, w, step, row);
    prepare<C>(r, steps, scale);
    Tall x, y;
    over_columns<C>(r, of_chunk, tiles, z, w, out, x, y);
    __syncthreads();
    if (chunk + static_cast<int>(gridDim.x) < chunks) {  // the next chunk's, behind the rest of this one
      Place next = w;
      next.move(z, chunk + gridDim.x);
      of_chunk = columns_of(next);
      of_chunk.fetch(0);
      prefetch_steps<typename C::Gate, C::GATES>(q, k, gate, z, s, next, r.block * 16 + r.lane % 16,
                                                 row - r.lane % 16 * 2, r.half);
    }
    const float2 first = cut_chunk<C>(r, x, y);
    float2 of_x[8], of_y[8];
    const u32 scratch = r.tile + (r.quarter % 2 ? C::CUT64 : C::CUT32);  // which are done with
    to_lanes(r, scratch, x, scale, of_x);
    to_lanes(r, scratch, y, 1.0f, of_y);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      steps.q[t] = load32(r.tile + word_at(r, t) + C::QUERIES);
      steps.k[t] = load32(r.tile + word_at(r, t) + C::KEYS);
    }
    u32 by_q[8], by_k[8];
    float2 by_gate[8];
    Halves<C::GATES != 0, 0, 8>::run(steps, of_x, of_y, first, r.shared + C::NEAR + r.eighth * C::NEAR8,
                                     [&](int t, float2 dq_t, float2 dk_t, float2 dg_t) {
                                       by_q[t] = pack(dq_t), by_k[t] = pack(dk_t), by_gate[t] = dg_t;
                                     });
    const int64 first_row = ((static_cast<int64>(w.b) * T + w.first) * H + w.h) * rows;
    const u32 next = H * rows * 2, to = step * next + row * 2;
    bfloat* const q_to = at_bytes(dq + first_row, to), *const k_to = at_bytes(dk + first_row, to);
    float* const gate_to = C::GATES ? at_bytes(dg + first_row, to * 2) : nullptr;
    auto store = [&](int t) {
      if (!C::TRANSPOSED) *reinterpret_cast<u32*>(at_bytes(q_to, t * next)) = by_q[t];
      *reinterpret_cast<u32*>(at_bytes(k_to, t * next)) = by_k[t];
      if (C::GATES) *reinterpret_cast<float2*>(at_bytes(gate_to, t * next * 2)) = by_gate[t];
    };
    const int valid = w.valid - step;
    if (valid >= 8) {
#pragma unroll
      for (int t = 0; t < 8; ++t) store(t);
    } else {
#pragma unroll
      for (int t = 0; t < 8; ++t)
        if (t < valid) store(t);
    }
    __syncthreads();
  }
}
