// Gradients of the gated recurrence on tensor cores, bfloat16 in and out, by chunks of 64 steps that
// do not depend on one another once backward_states.cu has made the state before each chunk and the
// gradient by the state after it. No division and no logarithm, so that gates of zero and negative
// ones get their gradient.
//
// With S_t = g_t * S_{t-1} + k_t v_t^T, D_t = scale q_t dy_t^T + g_{t+1} * D_{t+1} (g: one gate for
// each row), let B[r][s] = dy_r v_s. In a block of 16 steps of a chunk, with S the state before it and
// D the gradient behind it, times the gates that follow:
//
//   X_t[r] = S_{t-1} dy_r:  X_0[r] = S dy_r,  X_{t+1}[r] = g_t X_t[r] + k_t B[r][t],  dq_t = X_{t+1}[t]
//   Y_t[s] = D_t v_s:       Y_t[s] = q_t B[t][s] + g_{t+1} Y_{t+1}[s], from D v_s;    dk_t = Y_t[t]
//   dg_t = sum_j S_{t-1} D_t = sum_{r >= t} (g_{t+1} ... g_r) q_r X_t[r] + (g_{t+1} ... g_15) Z_t,
//   where Z_t = sum_j S_{t-1} D:  Z_{t+1} = g_t Z_t + k_t D v_t
//
// for each row of the state by itself, in float, with no state of a single step: a lane takes two
// rows. S dy_r, D v_s and the first Z of a block come from the chunk's, with products of matrices
// between blocks: keys times the gates up to the end of a later block (`KEYS`), and q times those from
// the end of an earlier one (`QUERIES`). dv_s = sum_{r >= s} A[r][s] dy_r + D k_s, where A[r][s] is the
// product q_r k_s with the gates between; within a block it comes from levels.cuh.
//
// A block of threads takes 64 * PARTS rows of the state, a warp one block of steps of 64 rows.

#include "backward_chunks.cuh"

// chunked_backward.py computes SHARED likewise.
template <class Gate_, int GATES_, int PARTS_, bool TRANSPOSED_, int SHARED_>
struct Config {
  typedef Gate_ Gate;
  static constexpr int GATES = GATES_;             // 1: of rows, 2: of the head
  static constexpr int PARTS = PARTS_;             // 64 rows each
  static constexpr bool TRANSPOSED = TRANSPOSED_;  // gates of columns: y instead of dq
  static constexpr int WARPS = 4 * PARTS, THREADS = 32 * WARPS;
  // So many times 64 columns are there at once, where there is room.
  static constexpr int STAGES = PARTS == 2 && !TRANSPOSED ? 2 : 1;
  // Bytes of shared memory: stages of v, dy, S and D; then, for each part, 16 x 64 tiles.
  static constexpr int TILE16 = TILE / 4, SCRATCH = 16 * 72 * 4;
  static constexpr int V = 0, DY = TILE, S = 2 * TILE, D = S + PARTS * TILE, STAGE = D + PARTS * TILE;
  static constexpr int AT_PARTS = STAGES * STAGE;
  static constexpr int KEYS = 0, QUERIES = KEYS + 10 * TILE16;
  static constexpr int SCRATCHES = QUERIES + (TRANSPOSED ? 10 : 6) * TILE16;
  // Floats of 64 rows: gates of blocks, those before and after; Z; sums for Z.
  static constexpr int TOTAL = SCRATCHES + 4 * SCRATCH, BEFORE = TOTAL + 1024, AFTER = BEFORE + 1024;
  static constexpr int FIRST = AFTER + 1024, LATER = FIRST + 256, EARLIER = LATER + 6 * 256;
  static constexpr int PART = EARLIER + 3 * 256;
  static constexpr int A = AT_PARTS + PARTS * PART, B = A + 10 * 512, NEAR = B + 6 * 512;
  static constexpr int SHARED = NEAR + 2 * 4 * 1024;
  static_assert(SHARED == SHARED_, "chunked_backward.py and backward_chunks.cu disagree");
  static_assert(SCRATCH >= 2 * LEVEL, "scratch");
};

// Keys of block `a` times the gates up to the end of block b - 1, a < b <= 4; q of block b times
// those after the end of block a, -1 <= a < b (a = -1 only where they are needed).
template <class C>
__device__ __forceinline__ u32 keys_at(u32 part, int a, int b) {
  return part + C::KEYS + (a * 4 - a * (a - 1) / 2 + b - a - 1) * C::TILE16;
}
template <class C>
__device__ __forceinline__ u32 queries_at(u32 part, int a, int b) {
  const int n = C::TRANSPOSED ? b + 1 : b;
  return part + C::QUERIES + (n * (n - 1) / 2 + b - a - 1) * C::TILE16;
}
// A[r][s] and B[r][s] as blocks of 16 x 16, each as four tiles of 8 x 8.
__device__ __forceinline__ int block_of(int r, int s) { return r * (r + 1) / 2 + s; }
__device__ __forceinline__ int far_block_of(int r, int s) { return r * (r - 1) / 2 + s; }
__device__ __forceinline__ void store_block(u32 at, const float (&x)[2][4], int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store32(at + (half * 2 + n) * 128 + lane * 4, pack(x[n][2 * half], x[n][2 * half + 1]));
}
__device__ __forceinline__ void left_of_block(u32 (&x)[4], u32 at, int lane) {
  load_matrices(x, at + (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16);
}
__device__ __forceinline__ void left_of_block_transposed(u32 (&x)[4], u32 at, int lane) {
  load_transposed(x, at + lane * 16);
}
// Pairs of right operands from a state: its rows are columns of the product, and transposed.
__device__ __forceinline__ void right_of_state(u32 (&x)[4], u32 at, int row, int unit, int lane) {
  load_matrices(x, at + ((row / 8 + lane / 16) * 8 + unit + lane / 8 % 2) * 128 + lane % 8 * 16);
}
__device__ __forceinline__ void right_of_state_transposed(u32 (&x)[4], u32 at, int row, int unit,
                                                          int lane) {
  load_transposed(x, at + ((row / 8 + lane / 8 % 2) * 8 + unit + lane / 16) * 128 + lane % 8 * 16);
}

// Sums over the 16 rows of an accumulator times those of a tile; to 64 floats.
__device__ __forceinline__ void sum_of_products(const float (&x)[8][4], u32 tile, u32 to, int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 up = unpack(load32(tile + unit_of(lane / 4, n) + lane % 4 * 4));
    const float2 down = unpack(load32(tile + unit_of(lane / 4 + 8, n) + lane % 4 * 4));
    float2 sum = make_float2(fmaf(x[n][0], up.x, x[n][2] * down.x),
                             fmaf(x[n][1], up.y, x[n][3] * down.y));
#pragma unroll
    for (int other = 4; other < 32; other *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, other);
      sum.y += __shfl_xor_sync(~0u, sum.y, other);
    }
    if (lane < 4) store64(to + n * 32 + lane * 8, sum);
  }
}
// Columns of an accumulator times 64 floats.
__device__ __forceinline__ void times_columns(float (&to)[8][4], const float (&x)[8][4], u32 by,
                                              int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 g = load64(by + n * 32 + lane % 4 * 8);
    to[n][0] = x[n][0] * g.x, to[n][1] = x[n][1] * g.y;
    to[n][2] = x[n][2] * g.x, to[n][3] = x[n][3] * g.y;
  }
}
// += a (16 x 16) * a tile of 16 x 64.
__device__ __forceinline__ void multiply_tile(float (&x)[8][4], const u32 (&a)[4], u32 tile, int lane) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    u32 b[4];
    right_transposed(b, tile, 0, n * 2, lane);
    multiply(x[2 * n], a, b[0], b[1]), multiply(x[2 * n + 1], a, b[2], b[3]);
  }
}
// An accumulator to the scratch of the warp, whose lanes then read pairs of columns.
__device__ __forceinline__ void store_columns(u32 scratch, const float (&x)[8][4], int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store64(scratch + (lane / 4 + half * 8) * 288 + n * 32 + lane % 4 * 8,
              make_float2(x[n][2 * half], x[n][2 * half + 1]));
}
__device__ __forceinline__ float2 column_of_scratch(u32 scratch, int t, int lane) {
  return load64(scratch + t * 288 + lane * 8);
}
// Row t of 16 x 16 floats, the same for all lanes.
__device__ __forceinline__ void load_row(float (&x)[16], u32 at, int t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 y = load128(at + t * 64 + i * 16);
    x[4 * i] = __uint_as_float(y.x), x[4 * i + 1] = __uint_as_float(y.y);
    x[4 * i + 2] = __uint_as_float(y.z), x[4 * i + 3] = __uint_as_float(y.w);
  }
}

struct Outputs {
  bfloat *dq, *dk;  // (B, T, H, rows); dq also where it is called y, (B, T, H, columns)
  bfloat* dv;       // (B, T, H, columns), or null
  float* dv_parts;  // (groups of rows, B, T, H, columns), where there is more than one
  float *y_parts, *dg;
};

// What a warp and a lane are for.
struct Role {
  int lane, block, part, row;  // row: first of the lane's two
  u32 shared, own, scratch;    // shared memory: all, of the part, of the warp
};

struct Nothing {
  template <class T>
  __device__ __forceinline__ void operator()(int, T) const {}
};

// Keys and q with gates, and A, of the warp's block of steps.
template <class C>
__device__ __forceinline__ void prepare(const Role& r, const Steps& x, const Sizes& z) {
  const int lane = r.lane, block = r.block;
  const u32 pair = lane * 8, own = r.own;
  store64(own + C::TOTAL + block * 256 + pair, product(x.g));
  // Products without gates, whose diagonal is that of A.
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    store32(r.scratch + t * LEVEL_ROW + lane * 4, x.q[t]);
    store32(r.scratch + LEVEL + t * LEVEL_ROW + lane * 4, x.k[t]);
  }
  __syncwarp();
  float plain[2][4] = {}, sums[6];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 a[4], b[4];
    load_matrices(a, r.scratch + lane % 16 * LEVEL_ROW + lane / 16 * 16 + i * 32);
    load_matrices(b, r.scratch + LEVEL + (lane % 8 + lane / 16 * 8) * LEVEL_ROW + lane / 8 % 2 * 16 +
                         i * 32);
    multiply(plain[0], a, b[0], b[1]), multiply(plain[1], a, b[2], b[3]);
  }
  pick_diagonal(sums, plain, lane);
  __syncwarp();
  gated_products(sums, x.q, x.k, x.g, r.scratch, lane, Nothing(), Nothing());
  __syncthreads();

  float2 to_later[BLOCKS], to_earlier[BLOCKS];  // gates of the blocks between
  to_later[0] = to_earlier[0] = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int d = 1; d < BLOCKS; ++d) {
    const int later = block + d, earlier = block - d;
    to_later[d] = later < BLOCKS ? to_later[d - 1] * load64(own + C::TOTAL + later * 256 + pair)
                                 : make_float2(0.0f, 0.0f);
    to_earlier[d] = earlier >= 0 ? to_earlier[d - 1] * load64(own + C::TOTAL + earlier * 256 + pair)
                                 : make_float2(0.0f, 0.0f);
  }
  float2 before = make_float2(1.0f, 1.0f), after = before;
#pragma unroll
  for (int d = 1; d < BLOCKS; ++d) {
    if (block - d >= 0) before = to_earlier[d];
    if (block + d < BLOCKS) after = to_later[d];
  }
  store64(own + C::BEFORE + block * 256 + pair, before);
  store64(own + C::AFTER + block * 256 + pair, after);
  const u32 keys = keys_at<C>(own, block, block + 1), queries = queries_at<C>(own, block - 1, block);
  const int earliest = C::TRANSPOSED ? -1 : 0;
  float2 g = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int t = 15; t >= 0; --t) {
    const float2 key = unpack(x.k[t]) * g;
#pragma unroll
    for (int d = 0; d < BLOCKS; ++d)
      if (block + 1 + d <= BLOCKS) store32(keys + d * C::TILE16 + pair_of(t, lane), pack(key * to_later[d]));
    g = g * x.g[t];
  }
  g = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    g = g * x.g[t];
    const float2 query = times(unpack(x.q[t]) * g, z.scale);
#pragma unroll
    for (int d = 0; d < BLOCKS; ++d)
      if (block - 1 - d >= earliest)
        store32(queries + d * C::TILE16 + pair_of(t, lane), pack(query * to_earlier[d]));
  }
  __syncthreads();

  // A of this block of steps with itself and with earlier ones; parts of the rows added up.
  float a[BLOCKS][2][4];
#pragma unroll
  for (int s = 0; s < BLOCKS; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[s][i / 4][i % 4] = 0.0f;
    if (s == block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[s][0][i] = z.scale * sums[i], a[s][0][2 + i] = z.scale * sums[2 + i];
        a[s][1][2 + i] = z.scale * sums[4 + i];
      }
    } else if (s < block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        u32 e[4], f[4];
        left(e, queries, 0, i * 2, lane);
        right(f, keys_at<C>(own, s, block), 0, i * 2, lane);
        multiply(a[s][0], e, f[0], f[1]), multiply(a[s][1], e, f[2], f[3]);
      }
    }
  }
  if (C::PARTS > 1) {
    const u32 other = r.scratch + (r.part ? 0 : C::PART);
    if (r.part)
#pragma unroll
      for (int i = 0; i < 32; ++i) store32(other + i * 128 + lane * 4, __float_as_uint(a[i / 8][i / 4 % 2][i % 4]));
    __syncthreads();
    if (!r.part)
#pragma unroll
      for (int i = 0; i < 32; ++i) a[i / 8][i / 4 % 2][i % 4] += load_float(other + i * 128 + lane * 4);
    __syncthreads();
  }
  if (r.part == 0)
#pragma unroll
    for (int s = 0; s < BLOCKS; ++s)
      if (s <= block) store_block(r.shared + C::A + block_of(block, s) * 512, a[s], lane);
}

// Bytes to the stage of 64 columns.
template <class C>
__device__ __forceinline__ u32 stage_of(int tile) { return tile % C::STAGES * C::STAGE; }

// Copies of 64 columns of v, dy and the two states.
template <class C>
struct Columns {
  const bfloat *v, *dy, *states, *gradients;  // of this place
  int64 v_row, dy_row;
  int valid, columns;

  __device__ __forceinline__ void fetch(u32 shared, int tile) const {
    shared += stage_of<C>(tile);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < 4) copy_16(shared + C::V, warp * 16, v + tile * 64, v_row, valid, lane);
    if (C::PARTS > 1 ? warp >= 4 : true)
      copy_16(shared + C::DY, warp % 4 * 16, dy + tile * 64, dy_row, valid, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int unit = i * C::THREADS + threadIdx.x;  // 64 to each 8 rows
      const int64 from = static_cast<int64>(unit / 64) * columns * 8 + tile * 512 + unit % 64 * 8;
      copy16(shared + C::S + unit * 16, states + from);
      copy16(shared + C::D + unit * 16, gradients + from);
    }
    commit_copies();
  }
};

// Over all columns: B, S dy and D v of the warp's block of steps, and the first Z.
template <class C>
__device__ __forceinline__ void over_columns(const Role& r, const Columns<C>& columns, int tiles,
                                             float scale, float (&s_dy)[8][4],
                                             float (&d_v)[8][4]) {
  const int lane = r.lane, block = r.block;
  float b[BLOCKS][2][4], z = 0.0f;
#pragma unroll
  for (int i = 0; i < 32; ++i) b[i / 8][i / 4 % 2][i % 4] = s_dy[i / 4][i % 4] = d_v[i / 4][i % 4] = 0.0f;
  const int of_part = threadIdx.x % 128, z_row = of_part / 2;
  for (int tile = 0; tile < tiles; ++tile) {
    if (C::STAGES > 1 && tile + 1 < tiles) {
      columns.fetch(r.shared, tile + 1);
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
      left(dy, stage + C::DY, block * 16, i * 2, lane);
      left(v, stage + C::V, block * 16, i * 2, lane);
#pragma unroll
      for (int s = 0; s < BLOCKS; ++s) {
        if (s > block) break;
        u32 f[4];
        right(f, stage + C::V, s * 16, i * 2, lane);
        multiply(b[s][0], dy, f[0], f[1]), multiply(b[s][1], dy, f[2], f[3]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        u32 f[4], e[4];
        right_of_state(f, states, n * 16, i * 2, lane);
        right_of_state(e, gradients, n * 16, i * 2, lane);
        multiply(s_dy[2 * n], dy, f[0], f[1]), multiply(s_dy[2 * n + 1], dy, f[2], f[3]);
        multiply(d_v[2 * n], v, e[0], e[1]), multiply(d_v[2 * n + 1], v, e[2], e[3]);
      }
    }
    if (C::GATES)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 at = (z_row / 8 * 8 + of_part % 2 * 4 + i) * 128 + z_row % 8 * 16;
        const uint4 x = load128(states + at), y = load128(gradients + at);
        const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          z = fmaf(high(xs[e]), high(ys[e]), fmaf(low(xs[e]), low(ys[e]), z));
      }
    if (tile + 1 < tiles) __syncthreads();
    if (C::STAGES == 1 && tile + 1 < tiles) columns.fetch(r.shared, tile + 1);
  }
  z += __shfl_xor_sync(~0u, z, 1);
  if (of_part % 2 == 0) store32(r.own + C::FIRST + z_row * 4, __float_as_uint(z));
  if (r.part != 0) return;
#pragma unroll
  for (int s = 0; s < BLOCKS; ++s) {
    if (s < block) store_block(r.shared + C::B + far_block_of(block, s) * 512, b[s], lane);
    if (s != block) continue;
    const u32 near = r.shared + C::NEAR + block * 2048;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      store32(near + row * 64 + column * 4, __float_as_uint(b[s][i / 4][i % 4]));
      store32(near + 1024 + column * 64 + row * 4, __float_as_uint(scale * b[s][i / 4][i % 4]));
    }
  }
}

// From the chunk's states to those around the warp's block of steps: S dy, D v, and Z, which is
// returned for the lane's rows. `x`: S dy and `y`: D v.
template <class C>
__device__ __forceinline__ float2 to_block(const Role& r, float (&x)[8][4], float (&y)[8][4]) {
  const int lane = r.lane, block = r.block;
  const u32 own = r.own, far = r.shared + C::B;
  if (C::GATES && block < BLOCKS - 1)
    sum_of_products(y, keys_at<C>(own, block, block + 1), own + C::EARLIER + block * 256, lane);
  float now[8][4];
#pragma unroll 1
  for (int at = C::GATES ? 0 : block; at <= block; ++at) {  // S before block `at`
    times_columns(now, x, own + C::BEFORE + at * 256, lane);
#pragma unroll 1
    for (int s = 0; s < at; ++s) {
      u32 a[4];
      left_of_block(a, far + far_block_of(block, s) * 512, lane);
      multiply_tile(now, a, keys_at<C>(own, s, at), lane);
    }
    if (at < block)
      sum_of_products(now, queries_at<C>(own, at, block),
                      own + C::LATER + far_block_of(block, at) * 256, lane);
  }
  times_columns(y, y, own + C::AFTER + block * 256, lane);
#pragma unroll 1
  for (int later = block + 1; later < BLOCKS; ++later) {
    u32 a[4];
    left_of_block_transposed(a, far + far_block_of(later, block) * 512, lane);
    multiply_tile(y, a, queries_at<C>(own, block, later), lane);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i / 4][i % 4] = now[i / 4][i % 4];
  __syncthreads();
  if (!C::GATES) return make_float2(0.0f, 0.0f);
  const u32 pair = lane * 8;
  float2 z = load64(own + C::FIRST + pair);
  for (int before = 0; before < block; ++before)
    z = fma2(load64(own + C::TOTAL + before * 256 + pair), z,
             load64(own + C::EARLIER + before * 256 + pair));
  z = z * load64(own + C::AFTER + block * 256 + pair);
  for (int later = block + 1; later < BLOCKS; ++later) {
    const float2 more = load64(own + C::LATER + far_block_of(later, block) * 256 + pair);
    z.x += more.x, z.y += more.y;
  }
  return z;
}

// Step by step through the warp's block, for the lane's two rows.
template <class C>
__device__ __forceinline__ void through_steps(const Role& r, const Steps& steps, const Sizes& z,
                                              const Place& w, const float (&x)[8][4],
                                              const float (&y)[8][4], float2 first,
                                              const Outputs& out) {
  const int lane = r.lane, valid = w.valid - r.block * 16;
  const u32 near = r.shared + C::NEAR + r.block * 2048;
  const int64 token = (w.b * z.T + w.first + r.block * 16) * z.H + w.h;
  const int64 to = token * z.rows + r.row, next = static_cast<int64>(z.H) * z.rows;
  auto query = [&](int t) { return unpack(steps.q[t]); };
  auto key = [&](int t) { return unpack(steps.k[t]); };
  const float2(&g)[16] = steps.g;
  float2 column[16], sums[16];  // of X or Y; Z of each step

  store_columns(r.scratch, y, lane);
  __syncwarp();
#pragma unroll
  for (int t = 0; t < 16; ++t) column[t] = column_of_scratch(r.scratch, t, lane);
  sums[0] = first;
#pragma unroll
  for (int t = 0; t < 15; ++t)
    if (C::GATES) sums[t + 1] = fma2(g[t], sums[t], key(t) * column[t]);
#pragma unroll
  for (int t = 15; t >= 0; --t) {
    float b[16];
    load_row(b, near, t);
    const float2 q = times(query(t), z.scale);
#pragma unroll
    for (int s = 0; s <= t; ++s)
      column[s] = fma2(q, b[s], t == 15 ? column[s] : column[s] * g[t == 15 ? 0 : t + 1]);
    if (t < valid) *reinterpret_cast<u32*>(out.dk + to + t * next) = pack(column[t]);
  }
  if (!C::GATES && C::TRANSPOSED) return;

  // X times the scale, as the second copy of B is.
  __syncwarp();
  store_columns(r.scratch, x, lane);
  __syncwarp();
  float2 queries[C::GATES ? 16 : 1];
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    column[t] = times(column_of_scratch(r.scratch, t, lane), z.scale);
    if (C::GATES) queries[C::GATES ? t : 0] = query(t);
  }
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    if (C::GATES) {
      float2 sum = sums[t];
#pragma unroll
      for (int s = 15; s >= t; --s)
        sum = fma2(queries[C::GATES ? s : 0], column[s], s == 15 ? sum : sum * g[s == 15 ? 0 : s + 1]);
      if (t < valid) *reinterpret_cast<float2*>(out.dg + to + t * next) = sum;
    }
    float b[16];
    load_row(b, near + 1024, t);
    const float2 k = key(t);
#pragma unroll
    for (int s = t; s < 16; ++s) column[s] = fma2(k, b[s], column[s] * g[t]);
    if (!C::TRANSPOSED && t < valid)
      *reinterpret_cast<u32*>(out.dq + to + t * next) = pack(column[t]);
  }
}

// An accumulator of 16 steps by 8 * N columns, rounded or as a part of a sum.
template <int N>
__device__ __forceinline__ void write_columns(const float (&x)[N][4], bfloat* rounded, float* part,
                                              int64 next, int valid, int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = lane / 4 + half * 8;
      if (t >= valid) continue;
      const int64 at = t * next + n * 8 + lane % 4 * 2;
      if (part != nullptr)
        *reinterpret_cast<float2*>(part + at) = make_float2(x[n][2 * half], x[n][2 * half + 1]);
      else
        *reinterpret_cast<u32*>(rounded + at) = pack(x[n][2 * half], x[n][2 * half + 1]);
    }
}

// dv, and y where gates are of columns, of the warp's block of steps and its share of 64 columns.
template <class C>
__device__ __forceinline__ void write_tile(const Role& r, const Sizes& z, const Place& w, int tile,
                                           int group, const Outputs& out) {
  constexpr int N = 4 / C::PARTS;
  const u32 stage = r.shared + stage_of<C>(tile);
  const int lane = r.lane, block = r.block, valid = w.valid - block * 16, unit = r.part * N * 2;
  float dv[2 * N][4] = {}, y[2 * N][4] = {};
  auto add = [&](float (&to)[2 * N][4], const u32 (&a)[4], int n, const u32 (&b)[4]) {
    multiply(to[2 * n], a, b[0], b[1]), multiply(to[2 * n + 1], a, b[2], b[3]);
  };
#pragma unroll 1
  for (int later = block; later < BLOCKS; ++later) {
    u32 a[4];
    left_of_block_transposed(a, r.shared + C::A + block_of(later, block) * 512, lane);
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
      left_of_block(a, r.shared + C::A + block_of(block, s) * 512, lane);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        u32 b[4];
        right_transposed(b, stage + C::V, s * 16, unit + n * 2, lane);
        add(y, a, n, b);
      }
    }
#pragma unroll
  for (int part = 0; part < C::PARTS; ++part) {
    const u32 of_part = r.shared + C::AT_PARTS + part * C::PART;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 a[4], b[4];
      left(a, keys_at<C>(of_part, block, BLOCKS), 0, i * 2, lane);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        right_of_state_transposed(b, stage + C::D + part * TILE, i * 16, unit + n * 2, lane);
        add(dv, a, n, b);
      }
      if (C::TRANSPOSED) {
        left(a, queries_at<C>(of_part, -1, block), 0, i * 2, lane);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          right_of_state_transposed(b, stage + C::S + part * TILE, i * 16, unit + n * 2, lane);
          add(y, a, n, b);
        }
      }
    }
  }
  const int64 tokens = static_cast<int64>(w.chain) / z.H * z.T + w.first + block * 16;
  const int64 next = static_cast<int64>(z.H) * z.columns;
  const int64 at = (tokens * z.H + w.h) * z.columns + tile * 64 + unit * 8;
  const int64 all = static_cast<int64>(gridDim.x) / w.chunks / (z.rows / (64 * C::PARTS)) * z.T * z.columns;
  write_columns(dv, out.dv + at, out.dv_parts == nullptr ? nullptr : out.dv_parts + group * all + at,
                next, valid, lane);
  if (C::TRANSPOSED)
    write_columns(y, out.dq + at, out.y_parts == nullptr ? nullptr : out.y_parts + group * all + at,
                  next, valid, lane);
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
  const int groups = rows / (64 * C::PARTS), group = blockIdx.x % groups, tiles = columns / 64;
  const Place w = place_of(z, blockIdx.x / groups);
  if (unsafe[w.chain]) return;  // backward.cu takes such heads
  Role r;
  r.lane = threadIdx.x % 32, r.block = threadIdx.x / 32 % BLOCKS, r.part = threadIdx.x / 128;
  r.row = (group * C::PARTS + r.part) * 64 + r.lane * 2;
  r.shared = shared_address(memory), r.own = r.shared + C::AT_PARTS + r.part * C::PART;
  r.scratch = r.own + C::SCRATCHES + r.block * C::SCRATCH;
  const int64 state = static_cast<int64>(w.chain) * w.chunks + w.chunk, head = w.h / column_group;
  const int64 tile0 = state_tile(state, rows, columns, group * C::PARTS * 8, 0);
  const Columns<C> of_place{v + w.b * s.v[0] + w.first * s.v[1] + head * s.v[2],
                            dy + w.b * s.dy[0] + w.first * s.dy[1] + head * s.dy[2],
                            states + tile0, gradients_by + tile0, s.v[1], s.dy[1], w.valid, columns};
  of_place.fetch(r.shared, 0);
  Steps steps;
  load_steps<typename C::Gate, C::GATES>(steps, q, k, gate, gate_head, z, s, w, r.block * 16, r.row);
  prepare<C>(r, steps, z);
  float x[8][4], y[8][4];
  over_columns<C>(r, of_place, tiles, scale, x, y);
  __syncthreads();
  const float2 first = to_block<C>(r, x, y);
  const Outputs out{dq, dk, dv, dv_parts, y_parts, dg};
  through_steps<C>(r, steps, z, w, x, y, first, out);
  // From the last tile back: as many as there are stages are still there.
  for (int i = 0; i < tiles; ++i) {
    const int tile = tiles - 1 - i, ahead = tile - C::STAGES;
    if (i >= C::STAGES) {
      if (C::STAGES > 1 && tile > 0) wait_copies<1>();
      else wait_copies<0>();
      __syncthreads();
    }
    write_tile<C>(r, z, w, tile, group, out);
    if (ahead < 0) continue;
    __syncthreads();
    of_place.fetch(r.shared, ahead);
  }
}
