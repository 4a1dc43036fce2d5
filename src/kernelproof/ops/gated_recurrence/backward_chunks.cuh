// What the kernels of the gradients in chunks share. See backward_chunks.cu for the method.
//
// They are written for gates of rows. For gates of columns the state is transposed: what is called
// q, k, v and dy here are then dy, v, k and q, and gradients are called accordingly.

#pragma once

#include "levels.cuh"

constexpr int CHUNK = 64, BLOCKS = 4;  // steps; blocks of 16 steps in a chunk
constexpr int TILE = 8192;             // bytes of 64 x 64 bfloat16
// 64 gates of this size make 2^58.
constexpr float MOST_GATE = 1.875f;
constexpr float MOST = 0x1.fep127f;  // of bfloat16

// Strides in elements: batch, step, head; of states sequence, head, row, column.
struct Layout {
  int64 q[3], k[3], v[3], dy[3], gate[3], gate_head[3], initial[4], last[4], d_initial[4];
};

// Rows and columns: of the state. The group is how many heads share a head of q and k, or v and dy.
struct Sizes {
  int T, H, rows, columns, row_group, column_group;
  float scale;
};

// Where a block works: a chunk of a head of a sequence, `first` its first step, `valid` its steps.
struct Place {
  int chain, chunk, chunks, first, valid;
  int64 b, h;
};
__device__ __forceinline__ Place place_of(const Sizes& z, int block) {
  Place x;
  x.chunks = (z.T + CHUNK - 1) / CHUNK;
  x.chain = block / x.chunks, x.chunk = block % x.chunks;
  x.b = x.chain / z.H, x.h = x.chain % z.H;
  x.first = x.chunk * CHUNK, x.valid = min(CHUNK, z.T - x.first);
  return x;
}

// States are kept in tiles of 8 x 8, each 128 bytes, row by row: a tile is a matrix of ldmatrix, and
// its 32 words lie as accumulators do. Tile (i, j) of a state that has `columns`.
__device__ __forceinline__ int64 state_tile(int64 state, int rows, int columns, int i, int j) {
  return state * rows * columns + (static_cast<int64>(i) * (columns / 8) + j) * 64;
}

// A lane's two rows of the state over 16 steps: q, k and gates.
struct Steps {
  u32 q[16], k[16];
  float2 g[16];
};

template <class Gate, int GATES>
__device__ __forceinline__ void load_steps(Steps& x, const bfloat* q, const bfloat* k,
                                           const Gate* gate, const Gate* gate_head, const Sizes& z,
                                           const Layout& s, const Place& w, int first, int row) {
  const int64 t0 = w.first + first, key_head = w.h / z.row_group;
  const int valid = w.valid - first;
  q += w.b * s.q[0] + t0 * s.q[1] + key_head * s.q[2] + row;
  k += w.b * s.k[0] + t0 * s.k[1] + key_head * s.k[2] + row;
  if (GATES & 1) gate += w.b * s.gate[0] + t0 * s.gate[1] + w.h * s.gate[2] + row;
  if (GATES & 2) gate_head += w.b * s.gate_head[0] + t0 * s.gate_head[1] + w.h * s.gate_head[2];
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    x.q[t] = t < valid ? *reinterpret_cast<const u32*>(q + t * s.q[1]) : 0;
    x.k[t] = t < valid ? *reinterpret_cast<const u32*>(k + t * s.k[1]) : 0;
    x.g[t] = make_float2(1.0f, 1.0f);
    if ((GATES & 1) && t < valid) {
      const Gate* const pair = gate + t * s.gate[1];
      x.g[t] = make_float2(to_float(pair[0]), to_float(pair[1]));
    }
    if ((GATES & 2) && t < valid) {
      const float head = to_float(gate_head[t * s.gate_head[1]]);
      x.g[t] = GATES & 1 ? make_float2(column_gate(x.g[t].x, head), column_gate(x.g[t].y, head))
                         : make_float2(head, head);
    }
  }
}

__device__ __forceinline__ float2 product(const float2 (&g)[16]) {
  float2 all = g[0];
#pragma unroll
  for (int t = 1; t < 16; ++t) all = all * g[t];
  return all;
}

__device__ __forceinline__ float2 times(float2 x, float y) { return make_float2(x.x * y, x.y * y); }
__device__ __forceinline__ float2 fma2(float2 a, float2 b, float2 c) {
  return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y));
}
__device__ __forceinline__ float2 fma2(float2 a, float b, float2 c) {
  return make_float2(fmaf(a.x, b, c.x), fmaf(a.y, b, c.y));
}

// Rows of 128 bytes have their 16-byte units permuted by the row.
__device__ __forceinline__ u32 unit_of(int row, int unit) {
  return row * 128 + ((unit ^ (row & 7)) << 4);
}
// The word of a lane's pair of columns.
__device__ __forceinline__ u32 pair_of(int row, int lane) {
  return unit_of(row, lane / 4) + lane % 4 * 4;
}

// 16 rows of 64 elements by one warp, from row `row` of a tile on; rows from `valid` on are zeros.
__device__ __forceinline__ void copy_16(u32 tile, int row, const bfloat* from, int64 stride,
                                        int valid, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i * 4 + lane / 8;
    const bool exists = r < valid;
    copy16(tile + unit_of(r, lane % 8), from + (exists ? r * stride : 0) + lane % 8 * 8,
           exists ? 16 : 0);
  }
}

// Fragments of matrices in such a tile. Left operands, of rows from `row` on and 16 columns from
// `unit` (8 each) on, as they lie and transposed; pairs of right operands likewise.
__device__ __forceinline__ void left(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_matrices(x, tile + unit_of(row + lane % 16, unit + lane / 16));
}
__device__ __forceinline__ void left_transposed(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_transposed(x, tile + unit_of(row + lane % 8 + lane / 16 * 8, unit + lane / 8 % 2));
}
// x[0,1]: columns of the product from `row` on, x[2,3]: 8 further ones; depth from `unit` on.
__device__ __forceinline__ void right(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_matrices(x, tile + unit_of(row + lane % 8 + lane / 16 * 8, unit + lane / 8 % 2));
}
// The depth from `row` on, columns of the product from `unit` on.
__device__ __forceinline__ void right_transposed(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_transposed(x, tile + unit_of(row + lane % 16, unit + lane / 16));
}
