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
// Blocks are chunks (one at least to a block) by heads (and pieces of a state) by sequences.
struct Place {
  int b, h, chain, chunk, first, valid, piece;

  __device__ __forceinline__ void move(const Sizes& z, int to) {
    chunk = to, first = to * CHUNK, valid = min(CHUNK, z.T - first);
  }
};
__device__ __forceinline__ Place place_of(const Sizes& z, int pieces) {
  Place x;
  x.b = blockIdx.z, x.h = blockIdx.y, x.piece = 0;
  if (pieces > 1) x.h = blockIdx.y / pieces, x.piece = blockIdx.y % pieces;
  x.chain = x.b * z.H + x.h;
  x.move(z, blockIdx.x);
  return x;
}

// States are kept in tiles of 8 x 8, each 128 bytes, row by row: a tile is a matrix of ldmatrix, and
// its 32 words lie as accumulators do. Tile (i, j) of a state that has `columns`.
__device__ __forceinline__ int64 state_tile(int64 state, int rows, int columns, int i, int j) {
  return state * rows * columns + (static_cast<int64>(i) * (columns / 8) + j) * 64;
}

// Two gates next to each other, at an address that is a multiple of their size together.
__device__ __forceinline__ float2 load_pair(const float* at) {
  return *reinterpret_cast<const float2*>(at);
}
__device__ __forceinline__ float2 load_pair(const bfloat* at) {
  return unpack(*reinterpret_cast<const u32*>(at));
}
__device__ __forceinline__ float2 load_pair(const half16* at) {
  const u32 x = *reinterpret_cast<const u32*>(at);
  return make_float2(to_float(half16{static_cast<unsigned short>(x)}),
                     to_float(half16{static_cast<unsigned short>(x >> 16)}));
}
template <class Element>
__device__ __forceinline__ float2 load_pair(const logarithm<Element>* at) {
  const float2 x = load_pair(reinterpret_cast<const Element*>(at));
  return make_float2(expf(x.x), expf(x.y));
}

// A lane's two rows of the state over N steps: q, k and gates.
template <int N>
struct Steps {
  u32 q[N], k[N];
  float2 g[N];
};

// An element of a block's, so many bytes after the first. The plan sees to it that 64 steps are less
// than 2^32 bytes apart: with 32 bits an address takes one instruction.
template <class T>
__device__ __forceinline__ T* at_bytes(T* first, u32 bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(first) + bytes);
}
template <class T>
__device__ __forceinline__ const T* at_bytes(const T* first, u32 bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + bytes);
}

// From step `first` of the chunk on.
template <class Gate, int GATES, int N>
__device__ __forceinline__ void load_steps(Steps<N>& x, const bfloat* q, const bfloat* k,
                                           const Gate* gate, const Gate* gate_head, const Sizes& z,
                                           const Layout& s, const Place& w, int first, int row) {
  const int key_head = w.h / z.row_group, valid = w.valid - first;
  q += w.b * s.q[0] + w.first * s.q[1] + key_head * s.q[2];
  k += w.b * s.k[0] + w.first * s.k[1] + key_head * s.k[2];
  if (GATES & 1) gate += w.b * s.gate[0] + w.first * s.gate[1] + w.h * s.gate[2];
  if (GATES & 2) gate_head += w.b * s.gate_head[0] + w.first * s.gate_head[1] + w.h * s.gate_head[2];
  const u32 of_q = static_cast<u32>(s.q[1]) * 2, of_k = static_cast<u32>(s.k[1]) * 2;
  const u32 of_gate = static_cast<u32>(s.gate[1]) * sizeof(Gate);
  const u32 of_head = static_cast<u32>(s.gate_head[1]) * sizeof(Gate);
  u32 q_at = first * of_q + row * 2, k_at = first * of_k + row * 2;
  u32 gate_at = first * of_gate + row * sizeof(Gate), head_at = first * of_head;
#pragma unroll
  for (int t = 0; t < N; ++t) {
    const bool exists = t < valid;
    x.q[t] = exists ? *reinterpret_cast<const u32*>(at_bytes(q, q_at)) : 0;
    x.k[t] = exists ? *reinterpret_cast<const u32*>(at_bytes(k, k_at)) : 0;
    x.g[t] = make_float2(1.0f, 1.0f);
    if ((GATES & 1) && exists) x.g[t] = load_pair(at_bytes(gate, gate_at));
    if ((GATES & 2) && exists) {
      const float head = to_float(*at_bytes(gate_head, head_at));
      x.g[t] = GATES & 1 ? make_float2(column_gate(x.g[t].x, head), column_gate(x.g[t].y, head))
                         : make_float2(head, head);
    }
    q_at += of_q, k_at += of_k, gate_at += of_gate, head_at += of_head;
  }
}

// What `load_steps` will ask for, to the L2: 32 rows of a step, q or (with `second`) k.
template <class Gate, int GATES>
__device__ __forceinline__ void prefetch_steps(const bfloat* q, const bfloat* k, const Gate* gate,
                                               const Sizes& z, const Layout& s, const Place& w,
                                               int step, int row, bool second) {
  if (step >= w.valid) return;
  const int key_head = w.h / z.row_group;
  const int64 t = w.first + step;
  const bfloat* const at = second ? k + w.b * s.k[0] + t * s.k[1] + key_head * s.k[2]
                                  : q + w.b * s.q[0] + t * s.q[1] + key_head * s.q[2];
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at + row));
  if ((GATES & 1) && !second)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(gate + w.b * s.gate[0] + t * s.gate[1] +
                                                  w.h * s.gate[2] + row));
}

template <int N>
__device__ __forceinline__ float2 product(const float2 (&g)[N]) {
  float2 all = g[0];
#pragma unroll
  for (int t = 1; t < N; ++t) all = all * g[t];
  return all;
}

__device__ __forceinline__ float2 times(float2 x, float y) { return make_float2(x.x * y, x.y * y); }
__device__ __forceinline__ float2 fma2(float2 a, float2 b, float2 c) {
  return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y));
}
__device__ __forceinline__ float2 fma2(float2 a, float b, float2 c) {
  return make_float2(fmaf(a.x, b, c.x), fmaf(a.y, b, c.y));
}

// Rows of 128 bytes have their 16-byte units permuted by the row, so that 8 rows next to each other
// are in different banks, and so are rows 8 apart, which the halves of a warp write together.
__device__ __forceinline__ u32 unit_of(int row, int unit) {
  return (row * 128 + (((row & 7) ^ (row >> 1 & 4)) << 4)) ^ (unit << 4);
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

// Fragments of matrices in such a tile. Left operands, of rows from `row` (a multiple of 16) on and
// 16 columns from `unit` (8 each, even) on, as they lie and transposed; pairs of right operands
// likewise.
__device__ __forceinline__ void left(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_matrices(x, tile + row * 128 + (unit_of(lane % 16, lane / 16) ^ unit << 4));
}
__device__ __forceinline__ void left_transposed(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_transposed(x, tile + row * 128 + (unit_of(lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ unit << 4));
}
// x[0,1]: columns of the product from `row` on, x[2,3]: 8 further ones; depth from `unit` on.
__device__ __forceinline__ void right(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_matrices(x, tile + row * 128 + (unit_of(lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ unit << 4));
}
// The depth from `row` on, columns of the product from `unit` on.
__device__ __forceinline__ void right_transposed(u32 (&x)[4], u32 tile, int row, int unit, int lane) {
  load_transposed(x, tile + row * 128 + (unit_of(lane % 16, lane / 16) ^ unit << 4));
}
